package packets_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestClientKnowsTheBackendToo: a client connects to a Service and, from the same source port, to the
// endpoint selected for it. Each connection gets its own replies, and the first one goes on.
func TestClientKnowsTheBackendToo(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string {
		return append(c.service(1, "near", "", []endpoint{local}), c.service(2, "far", "", []endpoint{remote})...)
	})
	port := uint16(40000)
	for _, network := range networks {
		for i, e := range []endpoint{local, remote} {
			service := nodePort(network, i+1)
			direct := netip.AddrPortFrom(c.addrsOf(e).of(network), backendPort)
			for _, order := range [][]netip.AddrPort{{service, direct}, {direct, service}} {
				port++
				first, _ := connectFrom(t, c.client, network, port, order[0])
				second, hello := connectFrom(t, c.client, network, port, order[1])
				if hello.name != e.server() {
					t.Errorf("%s to %s after %s: reached %s", network, order[1], order[0], hello.name)
				}
				for _, s := range []*lab.Socket{first, second} {
					if err := goesOn(s, network); err != nil {
						t.Errorf("%s to %s and then to %s from one port: %v", network, order[0], order[1], err)
					}
				}
			}
		}
	}
}

// connectFrom is connect from a port that may be in use.
func connectFrom(t *testing.T, n *lab.Namespace, network string, port uint16, to netip.AddrPort) (*lab.Socket, greeting) {
	t.Helper()
	s := boundSocket(t, n, network, port)
	return s, begin(t, s, network, to)
}

// goesOn reports why a connection does not go on.
func goesOn(s *lab.Socket, network string) error {
	if strings.HasPrefix(network, "udp") {
		_, err := talkUDP(s, "again")
		return err
	}
	return echo(s, "again")
}

// TestNetfilterTranslatesToo: netfilter masquerades a connection, as for kube-proxy, with the source
// port of a connection that Beeline forwards to the same endpoint. The endpoint sees two clients.
func TestNetfilterTranslatesToo(t *testing.T) {
	t.Parallel()
	lab.Need(t, "nft")
	for _, mode := range []string{"off", "native"} {
		t.Run("XDP "+mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "off")
			c := newXDPCluster(t, false)
			c.serveAll(t)
			startAgent(t, c.nodes[0], c.service(1, "far", "", []endpoint{remote}), "--xdp", mode)
			const elsewhere, port = 29000, 25000
			translate(t, c.nodes[0].Namespace, elsewhere, c.addrsOf(remote), nodeAddrs(1), port, port)
			for _, network := range networks {
				self := nodeAddrs(1).of(network)
				theirs, hello := connect(t, c.client, network, netip.AddrPortFrom(self, elsewhere))
				if hello.client != netip.AddrPortFrom(self, port) {
					t.Fatalf("%s: the endpoint sees %s, so this test proves nothing", network, hello.client)
				}
				lab.Eventually(t, "the agent sees that connections are tracked", func() bool { return asksTracking(t, c.nodes[0]) })
				ours, hello := connectFrom(t, c.client, network, port, nodePort(network, 1))
				if hello.client.Addr() != self || hello.client.Port() == port {
					t.Errorf("%s: the endpoint sees %s as its second client", network, hello.client)
				}
				for whose, s := range map[string]*lab.Socket{"somebody else's": theirs, "Beeline's": ours} {
					if err := goesOn(s, network); err != nil {
						t.Errorf("%s, %s: %v", network, whose, err)
					}
				}
			}
			if sent := sentByXDP(t, c.nodes[0]); (sent > 0) != (mode == "native") {
				t.Errorf("XDP has sent %d packets", sent)
			}
		})
	}
}

// asksTracking reports whether the node's programs ask connection tracking about source ports.
func asksTracking(t *testing.T, n *node) bool {
	t.Helper()
	m := pinned(t, n.BPFFS, "bl_tracking")
	var entry struct{ NoneUntil, _ uint32 }
	if err := m.Lookup(uint32(0), &entry); err != nil {
		t.Fatal(err)
	}
	return entry.NoneUntil == 0
}

// translate has the node's own connection tracking translate what comes to a port: to
// backends, from the source addresses and one of the ports.
func translate(t *testing.T, n *lab.Namespace, from uint16, to, source addrs, low, high uint16) {
	t.Helper()
	const table = `table %[1]s other {
	chain prerouting {
		type nat hook prerouting priority dstnat;
		tcp dport %[2]d ct mark set 1 dnat to %[3]s;
		udp dport %[2]d ct mark set 1 dnat to %[3]s;
	}
	chain postrouting {
		type nat hook postrouting priority srcnat;
		meta l4proto { tcp, udp } ct mark 1 snat to %[4]s-%[5]d;
	}
}`
	for i, family := range []string{"ip", "ip6"} {
		rules := fmt.Sprintf(table, family, from, netip.AddrPortFrom(to[i], backendPort), netip.AddrPortFrom(source[i], low), high)
		if _, err := n.Output("nft", rules); err != nil {
			t.Fatal(failure(err))
		}
	}
}

// TestNodeKnowsTheBackendToo: a process of the node connects to an endpoint from the source port of a
// client that the node forwards there, before or after the client. Each gets its own replies.
func TestNodeKnowsTheBackendToo(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string {
		return c.service(1, "far", "", []endpoint{remote})
	})
	type party struct {
		name string
		from *lab.Namespace
		to   addrs
	}
	client := party{"client", c.client, nodeAddrs(1)}
	process := party{"process", c.nodes[0].Namespace, clusterIP(1)}
	for _, order := range []struct {
		port          uint16
		first, second party
	}{
		{45000, client, process},
		// Not one of the ports that are remapped: the flow would take it.
		{25000, process, client},
	} {
		for _, network := range networks {
			sockets := make(map[string]*lab.Socket)
			for _, who := range []party{order.first, order.second} {
				to := netip.AddrPortFrom(who.to.of(network), 80)
				if who == client {
					to = nodePort(network, 1)
				}
				s, hello := connectFrom(t, who.from, network, order.port, to)
				if want := netip.AddrPortFrom(nodeAddrs(1).of(network), order.port); who == process && hello.client != want {
					t.Fatalf("%s: the endpoint sees the process as %s, so this test proves nothing", network, hello.client)
				}
				sockets[who.name] = s
			}
			for whose, s := range sockets {
				if err := goesOn(s, network); err != nil {
					t.Errorf("%s, %s first, the %s: %v", network, order.first.name, whose, err)
				}
			}
		}
	}
}

// TestHostTakesThePortOfAUDPFlow: a process of the node connects a UDP socket to an endpoint from the
// source port of a UDP flow with SNAT that goes on. The process gets its own answers, and the
// client's next datagram another port.
func TestHostTakesThePortOfAUDPFlow(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"off", "native"} {
		t.Run("XDP "+mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "off")
			c := newClusterFor(t, mode)
			c.serve(t, c.service(1, "far", "", []endpoint{remote}), "--xdp", mode)
			port := uint16(25000)
			for _, network := range networks[2:] {
				for _, to := range []netip.AddrPort{
					netip.AddrPortFrom(c.addrsOf(remote).of(network), backendPort), netip.AddrPortFrom(clusterIP(1).of(network), 80),
				} {
					port++
					own := netip.AddrPortFrom(nodeAddrs(1).of(network), port)
					client, hello := connectFrom(t, c.client, network, port, nodePort(network, 1))
					if hello.client != own {
						t.Fatalf("%s: the endpoint sees %s, want %s, so this test proves nothing", network, hello.client, own)
					}
					process := boundSocket(t, c.nodes[0].Namespace, network, port)
					if err := process.Connect(to); err != nil {
						t.Fatalf("%s to %s: %v", network, to, err)
					}
					// Who owns the port is looked up once a second; the client may get an answer before.
					processGets := func(payload string) func() bool {
						return func() bool {
							hello, answered := greeted(t, process, payload)
							if answered && hello.client != own {
								t.Errorf("%s: the endpoint sees the process as %s, which is %s", network, hello.client, own)
							}
							return answered
						}
					}
					lab.Eventually(t, fmt.Sprintf("%s: the process gets answers from %s", network, to), processGets("process"))
					lab.Eventually(t, network+": the client gets answers", func() bool {
						hello, answered := greeted(t, client, "client")
						if answered && hello.client == own {
							t.Errorf("%s: the endpoint sees the client as %s, which is the process", network, own)
						}
						return answered
					})
					lab.Eventually(t, network+": the process goes on", processGets("again"))
				}
			}
		})
	}
}

// greeted sends a datagram and returns the greeting of the server that answered it, if one does:
// answers to other datagrams are left out.
func greeted(t *testing.T, s *lab.Socket, payload string) (hello greeting, answered bool) {
	t.Helper()
	answer, err := s.AskWithin(payload, 200*time.Millisecond)
	for err == nil && !strings.HasSuffix(answer, " "+payload) {
		answer, _, err = s.Receive()
	}
	if err != nil {
		return greeting{}, false
	}
	hello, err = parseGreeting(strings.TrimSuffix(answer, " "+payload))
	if err != nil {
		t.Error(err)
	}
	return hello, true
}

// TestNodeIsAClientToo: the node connects to a NodePort of the endpoint's node, and forwards a
// client's connection with the same source port to the same endpoint, so that both have one source
// address and port there. The second connection gets another port when its SYN is retransmitted.
func TestNodeIsAClientToo(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"off", "native"} {
		t.Run("XDP "+mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "native")
			c := newXDPCluster(t, false)
			c.serveEverywhere(t, c.service(1, "web", "", []endpoint{remote}), "--xdp", mode)
			port := uint16(40000)
			for _, network := range networks[:2] {
				for _, over := range []bool{false, true} {
					port++
					there := netip.AddrPortFrom(nodeAddrs(2).of(network), nodePort(network, 1).Port())
					process, seen := connectFrom(t, c.nodes[0].Namespace, network, port, there)
					if seen.client.Addr() != nodeAddrs(1).of(network) {
						t.Fatalf("%s: the endpoint sees the process as %s, so this test proves nothing", network, seen.client)
					}
					if over {
						process.Close()
					}
					client, hello := connectFrom(t, c.client, network, port, nodePort(network, 1))
					if hello.client.Addr() != seen.client.Addr() || hello.client == seen.client {
						t.Errorf("%s: the endpoint sees %s and %s", network, seen.client, hello.client)
					}
					if err := goesOn(client, network); err != nil {
						t.Errorf("%s, the client: %v", network, err)
					}
					if over {
						continue
					}
					if err := goesOn(process, network); err != nil {
						t.Errorf("%s, the process: %v", network, err)
					}
				}
			}
		})
	}
}

// TestRefusedFromAPortOfTheNode: a client whose source port is one that the node listens on is told
// that the endpoint refuses, after one SYN.
func TestRefusedFromAPortOfTheNode(t *testing.T) {
	t.Parallel()
	const port = 25000
	c, _ := serveCluster(t, func(c *cluster) []string {
		list := c.service(1, "closed", "", []endpoint{remote})
		for i := range list {
			list[i] = strings.ReplaceAll(list[i], fmt.Sprint(backendPort), fmt.Sprint(backendPort+1))
		}
		return list
	})
	for _, network := range networks[:2] {
		for i := range uint16(2) {
			c.nodes[0].ServeTCP(netip.AddrPortFrom(nodeAddrs(1).of(network), port+i))
		}
		if err := boundSocket(t, c.client, network, port).Connect(nodePort(network, 1)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: connect: %v, want it refused", network, err)
		}
		syn := frame{
			from: netip.AddrPortFrom(clientAddrs.of(network), port+1), to: nodePort(network, 1),
			protocol: unix.IPPROTO_TCP, flags: flagSYN, seq: 1000,
		}
		if err := c.refused(syn); err != nil {
			t.Errorf("%s: after one SYN: %v", network, err)
		}
	}
}

// refused sends the client's SYN, once, and waits for the answer, a RST. It runs beside no
// other connection of the client.
func (c *cluster) refused(syn frame) error {
	family, header := unix.AF_INET6, 0
	if syn.to.Addr().Is4() {
		family, header = unix.AF_INET, 20 // raw sockets get it
	}
	s, err := c.client.TrySocket(family, unix.SOCK_RAW, unix.IPPROTO_TCP)
	if err != nil {
		return err
	}
	if err := s.SendTo(string(syn.segment()), netip.AddrPortFrom(syn.to.Addr(), 0)); err != nil {
		return err
	}
	for {
		packet, _, err := s.Receive()
		if err != nil {
			return err
		}
		segment := []byte(packet)[header:]
		if binary.BigEndian.Uint16(segment[2:]) != syn.from.Port() {
			continue // of another connection
		}
		from, ack, flags := binary.BigEndian.Uint16(segment), binary.BigEndian.Uint32(segment[8:]), segment[13]
		if from != syn.to.Port() || ack != syn.seq+1 || flags != flagRST|flagACK {
			return fmt.Errorf("flags %#x, ack %d from port %d", flags, ack, from)
		}
		return nil
	}
}
