package netns_test

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// connectedCase is a kind of UDP socket and what it is connected to.
type connectedCase struct {
	name, network string
	to            netip.AddrPort // a Service of three backends
	other         netip.AddrPort // a Service of one
	otherBackend  netip.AddrPort
	plain         netip.AddrPort // a server that is no Service's
}

var (
	connected4 = connectedCase{
		to: dualUDP4, other: ap("10.96.0.2:53"), otherBackend: backendPort(lab.Backend4(4)),
		plain: backendPort(lab.Backend4(6)),
	}
	connected6 = connectedCase{
		to: dualUDP6, other: ap("[fd96::2]:53"), otherBackend: backendPort(lab.Backend6(4)),
		plain: backendPort(lab.Backend6(6)),
	}
)

func connectedCases() []connectedCase {
	cases := []connectedCase{connected4, connected6, connected4}
	cases[0].name, cases[0].network = "IPv4", "udp4"
	cases[1].name, cases[1].network = "IPv6", "udp6"
	cases[2].name, cases[2].network = "mapped", "udp6"
	return cases
}

func applyConnected(a *lab.Agent) {
	applyDual(a)
	a.Apply(lab.Service("other", `{clusterIPs: [10.96.0.2, "fd96::2"], ports: [{port: 53, protocol: UDP}]}`),
		lab.Slice("other", "8080/UDP", lab.Backend4(4)), lab.Slice("other", "8080/UDP", lab.Backend6(4)))
}

// connect connects a new socket and returns which backend answers there.
func (c *connectedCase) connect(t *testing.T, n *lab.Namespace, to netip.AddrPort) (*lab.Socket, netip.AddrPort) {
	t.Helper()
	s := n.Socket(c.network)
	if err := s.Connect(to); err != nil {
		t.Fatalf("connect to %s: %v", to, err)
	}
	return s, c.ask(t, s, to)
}

// ask sends without an address and returns which backend answers; the answer has to come
// from the address that the socket is connected to, and getpeername() to show that.
func (c *connectedCase) ask(t *testing.T, s *lab.Socket, to netip.AddrPort) netip.AddrPort {
	t.Helper()
	text, number := request()
	if err := s.Send(text); err != nil {
		t.Fatalf("send: %v", err)
	}
	got := wantReply(t, s, c.network, number, to)
	c.wantPeer(t, s, to)
	return got
}

func (c *connectedCase) wantPeer(t *testing.T, s *lab.Socket, to netip.AddrPort) {
	t.Helper()
	if peer, err := s.Peer(); err != nil || peer != shown(c.network, to) {
		t.Errorf("getpeername() shows %s, %v, want %s", peer, err, shown(c.network, to))
	}
}

// sendTo sends to an address that is not the one the socket is connected to: the kernel
// drops the answer if it comes before the socket is connected there. The next thing to come
// is the answer to what is sent without an address.
func (c *connectedCase) sendTo(t *testing.T, s *lab.Socket, elsewhere, own, backend netip.AddrPort) {
	t.Helper()
	text, dropped := request()
	if err := s.SendTo(text, elsewhere); err != nil {
		t.Fatalf("sendto %s: %v", elsewhere, err)
	}
	text, number := request()
	if err := s.Send(text); err != nil {
		t.Fatalf("send: %v", err)
	}
	all, err := replies(s, number)
	if err != nil {
		t.Fatalf("answer of %s: %v", own, err)
	}
	for _, r := range all {
		if r.number == dropped {
			t.Errorf("sendto %s: %s answers from %s, want no answer", elsewhere, r.backend, r.from)
		}
	}
	if r := all[len(all)-1]; r.backend != backend || r.from != shown(c.network, own) {
		t.Errorf("after sendto %s: %s answers from %s, want %s from %s", elsewhere, r.backend, r.from, backend, own)
	}
	c.wantPeer(t, s, own)
}

// TestConnectedSendTo: sendto() to the Service that a socket is connected to reaches the
// socket's backend, for the kernel drops what comes from any other.
func TestConnectedSendTo(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyConnected(a)
	for _, c := range connectedCases() {
		t.Run(c.name, func(t *testing.T) {
			for range 30 {
				s, backend := c.connect(t, h.Pod, c.to)
				for range 3 {
					if got := send(t, s, c.network, c.to); got != backend {
						t.Fatalf("sendto reaches %s, send %s", got, backend)
					}
				}
				s.Close()
			}
		})
	}
}

// TestConnectedIdle: a connected socket never times out, whichever system call sends.
func TestConnectedIdle(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{})
	applyConnected(a)
	for _, c := range connectedCases() {
		s, backend := c.connect(t, h.Pod, c.to)
		for range 10 {
			h.AgeUDPPeers(time.Hour)
			if got := send(t, s, c.network, c.to); got != backend {
				t.Errorf("%s: sendto reaches %s, want %s", c.name, got, backend)
			}
		}
	}
}

// TestConnectedMixes: connect(), sendto() and connect(AF_UNSPEC) in any order, wherever the state of
// a socket is kept.
func TestConnectedMixes(t *testing.T) {
	t.Parallel()
	for _, places := range []string{"own place", "place of another socket"} {
		t.Run(places, func(t *testing.T) {
			t.Parallel()
			h, a := newHost(t, lab.AgentOptions{})
			applyConnected(a)
			if places != "own place" {
				h.TakeUDPPlaces()
			}
			for _, c := range connectedCases() {
				t.Run(c.name, func(t *testing.T) { testConnectedMixes(t, h.Pod, &c) })
			}
		})
	}
}

func testConnectedMixes(t *testing.T, n *lab.Namespace, c *connectedCase) {
	t.Run("sendto another Service", func(t *testing.T) {
		s, backend := c.connect(t, n, c.to)
		for range 3 {
			c.sendTo(t, s, c.other, c.to, backend)
			if got := send(t, s, c.network, c.to); got != backend {
				t.Errorf("sendto reaches %s, want %s", got, backend)
			}
		}
	})
	t.Run("sendto no Service", func(t *testing.T) {
		s, backend := c.connect(t, n, c.to)
		c.sendTo(t, s, c.plain, c.to, backend)
		if got := send(t, s, c.network, c.to); got != backend {
			t.Errorf("sendto reaches %s, want %s", got, backend)
		}
	})
	t.Run("sendto the backend itself", func(t *testing.T) {
		s, backend := c.connect(t, n, c.to)
		text, number := request()
		if err := s.SendTo(text, backend); err != nil {
			t.Fatal(err)
		}
		wantReply(t, s, c.network, number, c.to) // all that such a socket gets is of its peer
		c.ask(t, s, c.to)
	})
	t.Run("dissolved", func(t *testing.T) {
		s, _ := c.connect(t, n, c.to)
		dissolve(t, s)
		for range 3 {
			send(t, s, c.network, c.to)
			if c.to.Addr().Is6() {
				continue // the kernel still drops what comes from other IPv6 addresses
			}
			send(t, s, c.network, c.other)
			send(t, s, c.network, c.plain)
		}
	})
	t.Run("dissolved, then the backend itself", func(t *testing.T) {
		s, backend := c.connect(t, n, c.to)
		dissolve(t, s)
		send(t, s, c.network, backend)
		first := send(t, s, c.network, c.to)
		if got := send(t, s, c.network, c.to); got != first {
			t.Errorf("went from %s to %s", first, got)
		}
		if _, err := s.Peer(); err != unix.ENOTCONN {
			t.Errorf("getpeername(): %v, want %v", err, unix.ENOTCONN)
		}
	})
	t.Run("connected to another Service", func(t *testing.T) {
		s, _ := c.connect(t, n, c.to)
		if err := s.Connect(c.other); err != nil {
			t.Fatal(err)
		}
		c.ask(t, s, c.other)
		if got := send(t, s, c.network, c.other); got != c.otherBackend {
			t.Errorf("sendto reaches %s, want %s", got, c.otherBackend)
		}
		c.sendTo(t, s, c.to, c.other, c.otherBackend)
	})
	t.Run("connected anew", func(t *testing.T) {
		s, _ := c.connect(t, n, c.to)
		for range 10 {
			if err := s.Connect(c.to); err != nil {
				t.Fatal(err)
			}
			backend := c.ask(t, s, c.to)
			if got := send(t, s, c.network, c.to); got != backend {
				t.Errorf("sendto reaches %s, want %s", got, backend)
			}
		}
	})
	t.Run("connected to no Service", func(t *testing.T) {
		s, _ := c.connect(t, n, c.plain)
		c.sendTo(t, s, c.to, c.plain, c.plain)
		c.sendTo(t, s, c.other, c.plain, c.plain)
		if err := s.Connect(c.to); err != nil {
			t.Fatal(err)
		}
		backend := c.ask(t, s, c.to)
		if got := send(t, s, c.network, c.to); got != backend {
			t.Errorf("sendto reaches %s, want %s", got, backend)
		}
		if err := s.Connect(c.plain); err != nil {
			t.Fatal(err)
		}
		c.ask(t, s, c.plain)
	})
	t.Run("first unconnected, then to a backend", func(t *testing.T) {
		s := n.Socket(c.network)
		send(t, s, c.network, c.to)
		send(t, s, c.network, c.other) // one more than the socket's own entry has
		if err := s.Connect(c.otherBackend); err != nil {
			t.Fatal(err)
		}
		c.ask(t, s, c.otherBackend)
	})
	t.Run("first unconnected, then to its backend", func(t *testing.T) {
		s := n.Socket(c.network)
		backend := send(t, s, c.network, c.to)
		if err := s.Connect(backend); err != nil {
			t.Fatal(err)
		}
		c.ask(t, s, backend)
		dissolve(t, s)
		send(t, s, c.network, c.to)
	})
	t.Run("first unconnected, then connected", func(t *testing.T) {
		s := n.Socket(c.network)
		send(t, s, c.network, c.to)
		send(t, s, c.network, c.other)
		if err := s.Connect(c.to); err != nil {
			t.Fatal(err)
		}
		backend := c.ask(t, s, c.to)
		if got := send(t, s, c.network, c.to); got != backend {
			t.Errorf("sendto reaches %s, want %s", got, backend)
		}
		c.sendTo(t, s, c.other, c.to, backend)
	})
	t.Run("control data", func(t *testing.T) {
		s, backend := c.connect(t, n, c.to)
		sendControl := func() netip.AddrPort {
			t.Helper()
			text, number := request()
			if err := s.SendControl(text, c.to, unix.SOL_SOCKET, unix.SO_MARK, 0); err != nil {
				t.Fatal(err)
			}
			return wantReply(t, s, c.network, number, c.to)
		}
		if got := sendControl(); got != backend {
			t.Errorf("sendmsg with control data reaches %s, want %s", got, backend)
		}
		dissolve(t, s)
		sendControl()
	})
}

func dissolve(t *testing.T, s *lab.Socket) {
	t.Helper()
	if err := s.Disconnect(); err != nil {
		t.Fatal(err)
	}
}

// TestOneBackendTwoServices: when two Services select the same backend for a socket, replies come
// from the Service last sent to, and the socket keeps its backends.
func TestOneBackendTwoServices(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	a.Apply(lab.Service("same", `{clusterIP: 10.96.0.5, ports: [{port: 53, protocol: UDP}]}`),
		lab.Slice("same", "8080/UDP", backends4(3)...))
	same := ap("10.96.0.5:53")
	for range 10 {
		s := h.Pod.Socket("udp4")
		first, second := send(t, s, "udp4", dualUDP4), send(t, s, "udp4", same)
		for range 5 {
			if got := send(t, s, "udp4", dualUDP4); got != first {
				t.Errorf("went from %s to %s", first, got)
			}
			if got := send(t, s, "udp4", same); got != second {
				t.Errorf("went from %s to %s", second, got)
			}
		}
		s.Close()
	}
}

// TestOneBackendAfterIdle: the same when the backend of one of them is selected again.
func TestOneBackendAfterIdle(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	a.Apply(lab.Service("one", `{clusterIP: 10.96.0.4, ports: [{port: 53, protocol: UDP}]}`),
		lab.Slice("one", "8080/UDP", lab.Backend4(4)),
		lab.Service("same", `{clusterIP: 10.96.0.5, ports: [{port: 53, protocol: UDP}]}`),
		lab.Slice("same", "8080/UDP", lab.Backend4(4)))
	s := h.Pod.Socket("udp4")
	for range 3 {
		for _, to := range []string{"10.96.0.4:53", "10.96.0.5:53"} {
			send(t, s, "udp4", ap(to))
		}
		h.AgeUDPPeers(time.Minute)
	}
}

// TestLateReply: a reply in flight while the socket moves to another backend still has the
// Service's address.
func TestLateReply(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	s := h.Pod.Socket("udp4")
	for i := range 6 {
		a.Apply(lab.Slice("dual", "dns:8080/UDP", lab.Backend4(i%3+1)))
		if err := s.SendTo("who", dualUDP4); err != nil {
			t.Fatal(err)
		}
	}
	for range 6 {
		if answer, from, err := s.Receive(); err != nil || from != dualUDP4 {
			t.Errorf("%s answers from %s, %v, want %s", answer, from, err, dualUDP4)
		}
	}
}

// TestSharedSocket: threads that share a socket each reach their Service.
func TestSharedSocket(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyConnected(a)
	const each = 200
	s := h.Pod.Socket("udp4")
	services := []netip.AddrPort{connected4.to, connected4.other}
	var senders sync.WaitGroup
	for range 2 {
		for _, to := range services {
			senders.Go(func() {
				for range each {
					if err := s.SendTo("who", to); err != nil {
						t.Errorf("sendto %s: %v", to, err)
					}
				}
			})
		}
	}
	backends := make(map[netip.AddrPort]string) // of the first Service
	for got := 0; got < each; got++ {           // some may find the socket's buffer full
		answer, from, err := s.Receive()
		if err != nil {
			t.Fatalf("answer %d: %v", got, err)
		}
		switch {
		case from == connected4.other && ap(answer) == connected4.otherBackend:
		case from == connected4.to && ap(answer) != connected4.otherBackend:
			backends[ap(answer)] = answer
		default:
			t.Errorf("%s answers from %s", answer, from)
		}
	}
	senders.Wait()
	if len(backends) > 1 {
		t.Errorf("one socket has reached %v", backends)
	}
}

// TestClosedSockets: a socket's slot is free once the last process has closed it.
func TestClosedSockets(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyConnected(a)
	for _, c := range connectedCases() {
		s, _ := c.connect(t, h.Pod, c.to)
		unconnected := h.Pod.Socket(c.network)
		send(t, unconnected, c.network, c.to)
		if got := h.UDPPlaces(); got != 2 {
			t.Errorf("%s: %d places are taken by two sockets", c.name, got)
		}
		shared := s.Dup(t)
		s.Close()
		unconnected.Close()
		c.ask(t, shared, c.to)
		if got := h.UDPPlaces(); got != 1 {
			t.Errorf("%s: %d places are taken by a socket of two processes, of which one has closed it", c.name, got)
		}
		shared.Close()
		if got := h.UDPPlaces(); got != 0 {
			t.Errorf("%s: %d places are taken by sockets that are closed", c.name, got)
		}
	}
}

// TestManySocketsOfAnother: a pod that sends from as many new sockets as it can does not evict the
// entries of other pods' sockets.
func TestManySocketsOfAnother(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyConnected(a)
	void := ap("10.96.0.6:53")
	a.Apply(lab.Service("void", `{clusterIP: 10.96.0.6, ports: [{port: 53, protocol: UDP}]}`),
		lab.Slice("void", "9/UDP", lab.Backend4(7)))
	asking := make(map[*lab.Socket]netip.AddrPort)
	for range 50 {
		for _, to := range []netip.AddrPort{connected4.to, connected4.other} {
			s := h.Pod.Socket("udp4")
			if err := s.SendTo("who", to); err != nil {
				t.Fatal(err)
			}
			asking[s] = to
		}
	}
	attacker := h.NewPod()
	err := attacker.Run(func() error {
		to := &unix.SockaddrInet4{Addr: void.Addr().As4(), Port: int(void.Port())}
		for range 70000 {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			_ = unix.Sendto(fd, []byte("x"), 0, to)
			unix.Close(fd)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for s, to := range asking {
		if answer, from, err := s.Receive(); err != nil || from != to {
			t.Errorf("%s answers from %s, %v, want %s", answer, from, err, to)
		}
	}
}

// TestPlacesOfOthers: sockets whose slots are in use by others are served all the same.
func TestPlacesOfOthers(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyConnected(a)
	early := make(map[*lab.Socket]netip.AddrPort)
	for range 10 {
		s := h.Pod.Socket("udp4")
		early[s] = send(t, s, "udp4", dualUDP4)
	}
	h.TakeUDPPlaces()
	for range 10 {
		s := h.Pod.Socket("udp4")
		backend := send(t, s, "udp4", dualUDP4)
		if got := send(t, s, "udp4", dualUDP4); got != backend {
			t.Errorf("went from %s to %s", backend, got)
		}
	}
	for s, backend := range early {
		if got := send(t, s, "udp4", dualUDP4); got != backend {
			t.Errorf("went from %s to %s", backend, got)
		}
	}
}
