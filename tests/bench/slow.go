package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/tun"
)

const (
	slowRounds   = 20
	slowRequests = 100 // of a round
	// slowBy is what the slow endpoint's answer takes longer.
	slowBy = 10 * time.Millisecond
)

// slowAlgorithms are compared where one endpoint of ten is slow.
var slowAlgorithms = []model.Algorithm{model.Random, model.LeastConn, model.EWMA}

// slowness is why the last endpoint of a Service is slow, and who asks.
type slowness struct {
	name    string
	title   string
	far     bool // it is behind a link with a delay; else it takes its time
	clients int  // at the same time, each with one request after the other
}

var slownesses = []slowness{
	{"far", "the network to it, one client", true, 1},
	{"busy", "its application, eight clients", false, 8},
}

func (s slowness) key(algorithm model.Algorithm) string {
	return "slow/" + s.name + "/" + algorithm.String()
}

// slowQuantities are measured for each family.
func slowQuantities() []quantity {
	var list []quantity
	for _, s := range slownesses {
		for _, algorithm := range slowAlgorithms {
			for _, p99 := range []bool{false, true} {
				share := map[bool]string{false: "median", true: "99th percentile"}[p99]
				list = append(list, quantity{
					key: s.key(algorithm), unit: "ms", p99: p99,
					title: fmt.Sprintf("connect, ask, close; one of ten endpoints is 10 ms slower: %s; %s, %s", s.title, algorithm, share),
				})
			}
		}
	}
	return list
}

// slowService returns the number of the Service of an algorithm. The first ones have session
// affinity.
func slowService(kind, algorithm int) int { return (kind+1)*len(slowAlgorithms) + algorithm }

// measureSlow measures what clients see of an endpoint that answers later than the others.
func measureSlow(ctx context.Context, box *sandbox) ([]samples, error) {
	l := load{services: slowService(len(slownesses), 0), endpoints: destinations, protocol: model.TCP, algorithms: slowAlgorithms}
	groups, err := servedGroups(ctx, box, l, beeline)
	if err != nil {
		return nil, err
	}
	if err := tuneTCP(); err != nil {
		return nil, err
	}
	stop, err := l.serveSlow()
	if err != nil {
		return nil, err
	}
	defer stop()
	s := make(samples)
	for _, family := range model.Families {
		for range slowRounds {
			for _, n := range rand.Perm(len(slownesses) * len(slowAlgorithms)) {
				kind, algorithm := n/len(slowAlgorithms), n%len(slowAlgorithms)
				to := netip.AddrPortFrom(l.clusterIP(slowService(kind, algorithm), family), servicePort)
				took, err := slownesses[kind].ask(ctx, groups[beeline], to)
				if err != nil {
					return nil, err
				}
				for _, t := range took {
					s.add(of(slownesses[kind].key(slowAlgorithms[algorithm]), family), t.Seconds()*1e3)
				}
			}
		}
	}
	return []samples{s}, nil
}

// ask has the clients send their requests, and returns how long each took.
func (s slowness) ask(ctx context.Context, group string, to netip.AddrPort) (took []time.Duration, err error) {
	var mu sync.Mutex
	var clients sync.WaitGroup
	for range s.clients {
		clients.Go(func() {
			runtime.LockOSThread() // for good: the cgroup is the thread's
			failed := join(group)
			for i := 0; i < slowRequests/s.clients && failed == nil; i++ {
				start := time.Now()
				failed = askOnce(ctx, to)
				mu.Lock()
				took = append(took, time.Since(start))
				mu.Unlock()
			}
			mu.Lock()
			err = errors.Join(err, failed)
			mu.Unlock()
		})
	}
	clients.Wait()
	return took, err
}

// askOnce connects, sends a byte, receives one and closes.
func askOnce(ctx context.Context, to netip.AddrPort) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	question := []byte{1}
	if _, err := conn.Write(question); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, question)
	return err
}

// serveSlow starts the endpoints. The last one of each Service is slow.
func (l load) serveSlow() (stop func(), err error) {
	far, err := newHost()
	if err != nil {
		return nil, err
	}
	var ends [2]*os.File
	if ends[0], err = tun.New("far"); err != nil {
		return nil, err
	}
	err = far.do(func() (err error) {
		ends[1], err = tun.New("far")
		return err
	})
	if err != nil {
		return nil, err
	}
	// A request takes two round trips: connect() one, and the question with its answer another.
	stop = tun.Connect(ends, slowBy/4)
	for _, p := range []netip.Prefix{netip.PrefixFrom(uplinkAddr4, 24), netip.PrefixFrom(uplinkAddr6, 64)} {
		if err := address("far", p); err != nil {
			return nil, err
		}
		if err := far.do(func() error { return routeBy("far", p.Masked()) }); err != nil {
			return nil, err
		}
	}
	for kind, s := range slownesses {
		for algorithm := range slowAlgorithms {
			for _, family := range model.Families {
				for e := range l.endpoints {
					if err := l.serveEndpoint(slowService(kind, algorithm), e, family, s, far); err != nil {
						return nil, err
					}
				}
			}
		}
	}
	return stop, nil
}

// serveEndpoint starts one endpoint of a Service.
func (l load) serveEndpoint(service, e int, family model.Family, s slowness, far *host) error {
	addr := l.endpoint(service, e, family)
	whole := netip.PrefixFrom(addr, addr.BitLen())
	slow := e == l.endpoints-1
	start := func(device string, pause time.Duration) error {
		if err := address(device, whole); err != nil {
			return err
		}
		listener, err := net.Listen("tcp", netip.AddrPortFrom(addr, endpointPort).String())
		if err != nil {
			return err
		}
		go answerAll(listener, pause)
		return nil
	}
	switch {
	case !slow:
		return start("lo", 0)
	case !s.far:
		return start("lo", slowBy)
	}
	if err := routeBy("far", whole); err != nil {
		return err
	}
	return far.do(func() error { return start("far", 0) })
}

// answerAll answers each connection's first byte after a pause, until the process ends.
func answerAll(listener net.Listener, pause time.Duration) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			continue // a client that has given up
		}
		go func() {
			defer conn.Close()
			question := make([]byte, 1)
			if _, err := io.ReadFull(conn, question); err != nil {
				return
			}
			time.Sleep(pause)
			_, _ = conn.Write(question) // the client misses it
			_, _ = conn.Read(question)  // its end
		}()
	}
}
