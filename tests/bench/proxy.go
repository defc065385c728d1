package main

import (
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// proxy stands between the agent and the API server and notes when something
// arrives at the agent.
type proxy struct {
	listener net.Listener
	target   string

	mu       sync.Mutex
	arrivals []arrival
}

// arrival is what the agent was given at once.
type arrival struct {
	at    time.Time
	bytes int
}

func newProxy(target string) (*proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: listener, target: target}
	go p.accept()
	return p, nil
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) close() { p.listener.Close() }

func (p *proxy) accept() {
	for {
		agent, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.forward(agent)
	}
}

func (p *proxy) forward(agent net.Conn) {
	defer agent.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, agent)
		server.Close()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if n > 0 {
			p.note(arrival{time.Now(), n})
			if _, err := agent.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *proxy) note(a arrival) {
	p.mu.Lock()
	p.arrivals = append(p.arrivals, a)
	p.mu.Unlock()
}

// lastList returns when the last data of a list arrived before t. Less than a
// kilobyte is none: the protocol's own frames.
func (p *proxy) lastList(t time.Time) (time.Time, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var last time.Time
	for _, a := range p.arrivals {
		if a.bytes >= 1<<10 && a.at.Before(t) {
			last = a.at
		}
	}
	if last.IsZero() {
		return last, fmt.Errorf("no list has arrived before %s", t)
	}
	return last, nil
}

// firstAfter returns when the first data arrived after t.
func (p *proxy) firstAfter(t time.Time) (time.Time, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.arrivals {
		if a.at.After(t) {
			return a.at, nil
		}
	}
	return time.Time{}, fmt.Errorf("nothing has arrived after %s", t)
}
