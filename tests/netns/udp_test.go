package netns_test

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// udpCases are the kinds of UDP sockets.
var udpCases = []struct {
	name, network string
	to            netip.AddrPort
}{
	{"IPv4", "udp4", dualUDP4},
	{"IPv6", "udp6", dualUDP6},
	{"mapped", "udp6", dualUDP4},
}

// requests is how many datagrams [request] has numbered.
var requests atomic.Int64

// request returns a datagram for a server of [lab.Namespace.ServeUDP], and the number by which its
// answer can be told from late ones of earlier datagrams.
func request() (text, number string) {
	number = strconv.FormatInt(requests.Add(1), 10)
	return "who #" + number, number
}

// reply is the answer to the request of a number.
type reply struct {
	backend, from netip.AddrPort
	number        string
}

// replies returns what a socket receives, up to and with the answer to a request.
func replies(s *lab.Socket, number string) ([]reply, error) {
	var all []reply
	for len(all) == 0 || all[len(all)-1].number != number {
		answer, from, err := s.Receive()
		if err != nil {
			return all, err
		}
		backend, of, _ := strings.Cut(answer, " ")
		all = append(all, reply{ap(backend), from, of})
	}
	return all, nil
}

// send sends a datagram without a connection and returns which backend answers;
// the answer has to come from the address that it was sent to.
func send(t *testing.T, s *lab.Socket, network string, to netip.AddrPort) netip.AddrPort {
	t.Helper()
	text, number := request()
	if err := s.SendTo(text, to); err != nil {
		t.Fatalf("sendto %s: %v", to, err)
	}
	return wantReply(t, s, network, number, to)
}

// wantReply returns which backend answers a request; the answer has to come from an address.
func wantReply(t *testing.T, s *lab.Socket, network, number string, from netip.AddrPort) netip.AddrPort {
	t.Helper()
	all, err := replies(s, number)
	if err != nil {
		t.Fatalf("answer of %s: %v", from, err)
	}
	last := all[len(all)-1]
	if want := shown(network, from); last.from != want {
		t.Errorf("the answer of %s comes from %s, want %s", last.backend, last.from, want)
	}
	return last.backend
}

// TestReplySource: recvfrom() and recvmsg() name the Service address, on connected
// and unconnected sockets.
func TestReplySource(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	for _, c := range udpCases {
		for _, connected := range []bool{false, true} {
			name := c.name + " unconnected"
			if connected {
				name = c.name + " connected"
			}
			t.Run(name, func(t *testing.T) {
				s := h.Socket(c.network)
				ask := func() error { return s.SendTo("who", c.to) }
				if connected {
					if err := s.Connect(c.to); err != nil {
						t.Fatal(err)
					}
					ask = func() error { return s.Send("who") }
				}
				for call, receive := range map[string]func() (string, netip.AddrPort, error){
					"recvfrom": s.Receive, "recvmsg": s.ReceiveMsg,
				} {
					if err := ask(); err != nil {
						t.Fatal(err)
					}
					_, from, err := receive()
					if want := shown(c.network, c.to); err != nil || from != want {
						t.Errorf("%s: from %v, %v, want %v", call, from, err, want)
					}
				}
			})
		}
	}
}

// TestReconnect: a socket shows what it is connected to now, whatever it was
// connected to before.
func TestReconnect(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	a.Apply(lab.Service("single", `{clusterIP: 10.96.0.2, ports: [{port: 53, protocol: UDP}]}`),
		lab.Slice("single", "8080/UDP", lab.Backend4(1)),
		lab.Service("empty", `{clusterIP: 10.96.0.3, ports: [{port: 53, protocol: UDP}]}`))
	single, empty := ap("10.96.0.2:53"), ap("10.96.0.3:53")
	backend := netip.AddrPortFrom(lab.Backend4(1), lab.BackendPort)
	wantPeer := func(t *testing.T, s *lab.Socket, want netip.AddrPort) {
		t.Helper()
		if got, err := s.Peer(); err != nil || got != want {
			t.Errorf("getpeername() shows %v, %v, want %v", got, err, want)
		}
		if err := s.Send("who"); err != nil {
			t.Fatal(err)
		}
		if _, from, err := s.Receive(); err != nil || from != want {
			t.Errorf("the answer comes from %v, %v, want %v", from, err, want)
		}
	}
	connect := func(t *testing.T, s *lab.Socket, to netip.AddrPort) {
		t.Helper()
		if err := s.Connect(to); err != nil {
			t.Fatal(err)
		}
		wantPeer(t, s, to)
	}
	t.Run("Service to its backend", func(t *testing.T) {
		s := h.Socket("udp4")
		connect(t, s, single)
		connect(t, s, backend)
		connect(t, s, single)
	})
	t.Run("Service to Service", func(t *testing.T) {
		s := h.Socket("udp4")
		connect(t, s, single)
		connect(t, s, dualUDP4)
	})
	t.Run("refused", func(t *testing.T) {
		s := h.Socket("udp4")
		connect(t, s, single)
		if err := s.Connect(empty); err != unix.ECONNREFUSED {
			t.Fatalf("connect() to a Service without endpoints: %v", err)
		}
		wantPeer(t, s, single)
	})
	t.Run("dissolved", func(t *testing.T) {
		s := h.Socket("udp4")
		connect(t, s, single)
		if err := s.Disconnect(); err != nil {
			t.Fatal(err)
		}
		if got := send(t, s, "udp4", backend); got != backend {
			t.Errorf("reached %s", got)
		}
	})
}

// TestUnconnectedKeepsBackend: a socket keeps its backend while it sends to one address; another
// socket gets one of its own.
func TestUnconnectedKeepsBackend(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	for _, c := range udpCases {
		t.Run(c.name, func(t *testing.T) {
			seen := map[netip.AddrPort]bool{}
			for range 40 {
				s := h.Socket(c.network)
				first := send(t, s, c.network, c.to)
				for range 5 {
					if got := send(t, s, c.network, c.to); got != first {
						t.Errorf("a socket went from %s to %s", first, got)
					}
				}
				seen[first] = true
				s.Close()
			}
			if len(seen) != 3 {
				t.Errorf("40 sockets reached %v, want 3 backends", seen)
			}
		})
	}
}

// TestUnconnectedIdle: the backend is kept for 60 s after the last datagram.
func TestUnconnectedIdle(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	s := h.Socket("udp4")
	first := send(t, s, "udp4", dualUDP4)
	for range 20 {
		h.AgeUDPPeers(40 * time.Second) // leaves 20 s to a slow machine
		if got := send(t, s, "udp4", dualUDP4); got != first {
			t.Fatalf("went to another backend before 60 s")
		}
	}
	for range 60 {
		h.AgeUDPPeers(60 * time.Second)
		if send(t, s, "udp4", dualUDP4) != first {
			return
		}
	}
	t.Error("never chose another backend after 60 s")
}

// TestUnconnectedMoves: the next datagram after a backend is removed goes to another one, also after
// the Service had no endpoints, and after it was deleted and made again.
func TestUnconnectedMoves(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	const ports = "web:8080/TCP,dns:8080/UDP"
	s := h.Socket("udp4")
	first := send(t, s, "udp4", dualUDP4)
	var others []netip.Addr
	for _, b := range backends4(3) {
		if b != first.Addr() {
			others = append(others, b)
		}
	}
	a.Apply(lab.Slice("dual", ports, others...))
	if got := send(t, s, "udp4", dualUDP4); got == first {
		t.Errorf("still at %s, which has left", got)
	}
	a.Apply(lab.Slice("dual", ports))
	if err := s.SendTo("who", dualUDP4); err != unix.ECONNREFUSED {
		t.Errorf("sendto() without endpoints: %v, want ECONNREFUSED", err)
	}
	a.Apply(lab.Slice("dual", ports, first.Addr()))
	if got := send(t, s, "udp4", dualUDP4); got != first {
		t.Errorf("reached %s, want %s, which came back", got, first)
	}
	a.DeleteService("dual")
	if err := s.SendTo("who", dualUDP4); err != nil && !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("sendto() after the Service went: %v", err)
	}
	// What comes first is not an answer of the deleted Service.
	if got := send(t, s, "udp4", first); got != first {
		t.Errorf("reached %s, want %s", got, first)
	}
	a.Apply(dual)
	if got := send(t, s, "udp4", dualUDP4); got != first {
		t.Errorf("reached %s, want %s, after the Service came back", got, first)
	}
}

// TestUnconnectedManyPeers: one socket sends to several Services and to other addresses; each reply
// has the address that was sent to.
func TestUnconnectedManyPeers(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	a.Apply(lab.Service("one", `{clusterIP: 10.96.0.4, ports: [{port: 53, protocol: UDP}]}`),
		lab.Slice("one", "8080/UDP", lab.Backend4(4)),
		lab.Service("same", `{clusterIP: 10.96.0.5, ports: [{port: 53, protocol: UDP}]}`),
		lab.Slice("same", "8080/UDP", lab.Backend4(4)))
	plain := netip.AddrPortFrom(lab.Backend4(6), lab.BackendPort)
	for _, network := range []string{"udp4", "udp6"} {
		s := h.Socket(network)
		for range 10 {
			for _, to := range []netip.AddrPort{dualUDP4, ap("10.96.0.4:53"), plain, ap("10.96.0.5:53")} {
				send(t, s, network, to)
			}
		}
	}
}
