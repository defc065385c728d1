package packets_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/wait"
)

// answer is what a client learns from asking.
type answer struct {
	greeting
	self netip.AddrPort // the client's own address as it knows it
}

// ask sends a payload to an address by a new socket and returns who answered. UDP
// sockets are connected, so an answer from another address does not count. The
// error is that of the system call, plain, or says what of the answer was wrong.
func ask(n *lab.Namespace, network string, to netip.AddrPort, payload string) (answer, error) {
	s := n.Socket(network)
	defer s.Close()
	return askBy(s, network, to, payload)
}

// directPort counts the direct connections to servers, which have source ports of their own:
// a flow from the same port would get another one. Nobody listens there, and the kernel gives
// none of them to clients.
var directPort atomic.Uint32

// askDirectly asks a server by its own address.
func askDirectly(n *lab.Namespace, network string, server netip.Addr) error {
	s := n.Socket(network)
	defer s.Close()
	if err := bindPort(s, network, uint16(12_000+directPort.Add(1)%18_000)); err != nil {
		return err
	}
	_, err := askBy(s, network, netip.AddrPortFrom(server, backendPort), "later")
	return err
}

// askBy is ask by a socket that is not connected yet.
func askBy(s *lab.Socket, network string, to netip.AddrPort, payload string) (answer, error) {
	if err := s.Connect(to); err != nil {
		return answer{}, err
	}
	self, err := s.Local()
	if err != nil {
		return answer{}, err
	}
	talk := talkTCP
	if strings.HasPrefix(network, "udp") {
		talk = talkUDP
	}
	hello, err := talk(s, payload)
	return answer{hello, self}, err
}

// askHere is ask by the calling thread, for its user and its network, with a payload of any size.
func askHere(network string, to netip.AddrPort, payload string) (got answer, err error) {
	conn, err := net.DialTimeout(network, to.String(), wait.Limit)
	if err != nil {
		return got, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(wait.Limit)); err != nil {
		return got, err
	}
	if got.self, err = netip.ParseAddrPort(conn.LocalAddr().String()); err != nil {
		return got, err
	}
	talk := talkHereUDP
	if network[:3] == "tcp" {
		talk = talkHereTCP
	}
	got.greeting, err = talk(conn, payload)
	return got, err
}

// talkHereTCP is talkTCP by a connection of Go's.
func talkHereTCP(conn net.Conn, payload string) (hello greeting, err error) {
	buf := make([]byte, max(256, len(payload)))
	n, err := conn.Read(buf)
	if err != nil {
		return hello, err
	}
	if hello, err = parseGreeting(string(buf[:n])); err != nil {
		return hello, err
	}
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(conn, payload)
		written <- err
	}()
	back := buf[:len(payload)]
	if n, err := io.ReadFull(conn, back); err != nil {
		return hello, fmt.Errorf("after %d bytes of %d: %w", n, len(payload), err)
	}
	if string(back) != payload {
		err = fmt.Errorf("other bytes came back than %d sent", len(payload))
	}
	return hello, errors.Join(err, <-written)
}

// talkHereUDP is talkUDP by a socket of Go's.
func talkHereUDP(conn net.Conn, payload string) (hello greeting, err error) {
	if _, err := io.WriteString(conn, payload); err != nil {
		return hello, err
	}
	buf := make([]byte, 256+len(payload))
	n, err := conn.Read(buf)
	if err != nil {
		return hello, err
	}
	text, found := strings.CutSuffix(string(buf[:n]), " "+payload)
	if !found {
		return hello, fmt.Errorf("%d bytes came back of %d, or others", n, len(payload))
	}
	return parseGreeting(text)
}

// talkTCP reads the greeting of a new connection and has a payload sent back.
func talkTCP(s *lab.Socket, payload string) (greeting, error) {
	hello, _, err := s.Receive()
	if err != nil {
		return greeting{}, err
	}
	if err := echo(s, payload); err != nil {
		return greeting{}, err
	}
	return parseGreeting(hello)
}

// echo has a payload sent back on an established TCP connection.
func echo(s *lab.Socket, payload string) error {
	got, err := s.Ask(payload)
	if err == nil && got != payload {
		err = fmt.Errorf("%q came back as %q", payload, got)
	}
	return err
}

// talkUDP sends one datagram and returns the greeting of the server that answered. Calls with
// different payloads tell their answers apart.
func talkUDP(s *lab.Socket, payload string) (greeting, error) {
	got, err := s.Ask(payload)
	for err == nil && s.Repeated() && !strings.HasSuffix(got, " "+payload) {
		got, _, err = s.Receive() // that was the second answer to a datagram before
	}
	if err != nil {
		return greeting{}, err
	}
	hello, found := strings.CutSuffix(got, " "+payload)
	if !found {
		return greeting{}, fmt.Errorf("%q came back as %q", payload, got)
	}
	return parseGreeting(hello)
}

// silent sends to an address from a new socket. The error wraps [lab.ErrNothing] when nobody
// answers, is that of the system call when there was one, or says that there was an answer.
func (c *cluster) silent(n *lab.Namespace, network string, to netip.AddrPort) error {
	s := n.Socket(network)
	defer s.Close()
	return c.silentBy(s, n, network, to)
}

// silentBy is silent by a socket of the namespace that is not connected yet. Nobody answers
// when all servers of the cluster have answered twice what they got later, and nothing came.
func (c *cluster) silentBy(s *lab.Socket, n *lab.Namespace, network string, to netip.AddrPort) error {
	if err := s.StartConnect(to); err != nil {
		return err
	}
	if strings.HasPrefix(network, "udp") {
		if err := s.Send("hello"); err != nil {
			return err
		}
	}
	for range 2 {
		for _, node := range c.nodes {
			for _, server := range []addrs{nodeAddrs(node.index), node.routedAddrs(), node.bridgedAddrs()} {
				if err := askDirectly(n, network, server.of(network)); err != nil {
					return fmt.Errorf("ask the server at %s: %v", server.of(network), err)
				}
			}
		}
	}
	if !s.Ready(0) {
		return lab.ErrNothing
	}
	answer, _, err := s.Receive()
	if err != nil {
		return err
	}
	return fmt.Errorf("%q answers", answer)
}
