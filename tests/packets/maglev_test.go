package packets_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/maglev"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// everywhere are the endpoints of a Service that has some on both nodes.
var everywhere = []endpoint{local, otherLocal, remote, otherRemote}

// ringServer returns the server that the ring gives to a client's flow.
func (c *cluster) ringServer(network string, client, to netip.AddrPort) string {
	list := make([]maglev.Backend, len(everywhere))
	for i, e := range everywhere {
		list[i] = maglev.Backend{AddrPort: netip.AddrPortFrom(c.addrsOf(e).of(network), backendPort), Weight: 1}
	}
	protocol := model.TCP
	if strings.HasPrefix(network, "udp") {
		protocol = model.UDP
	}
	ring := maglev.Ring(maglev.Size(len(list)), list)
	slot := lab.Hash(0).Addr(client.Addr()).Addr(to.Addr()).Ports(uint8(protocol), client.Port(), to.Port()).Slot(len(ring))
	return everywhere[ring[slot]].server()
}

// TestMaglev: the ring, which is the same on all nodes, selects the backend of a flow, so a connection
// whose flow is evicted goes on. With another algorithm it does not.
func TestMaglev(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []string{"maglev", "random"} {
		t.Run(algorithm, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, algorithm == "maglev")
			c, a := serveCluster(t, func(c *cluster) []string { return c.service(1, "web", "", everywhere) },
				"--algorithm", algorithm)
			port := uint16(20000)
			for _, network := range networks {
				for _, f := range frontends {
					to := netip.AddrPortFrom(f.address(1).of(network), uint16(f.port(1)))
					t.Run(network+" "+f.name, func(t *testing.T) {
						if algorithm == "maglev" {
							c.checkRing(t, a, network, to, &port)
						} else if strings.HasPrefix(network, "tcp") && f.name == frontends[0].name {
							c.checkForgotten(t, a, network, to)
						}
					})
				}
			}
		})
	}
}

// checkRing has clients reach the servers of the ring, all of them, and go on after
// the node has forgotten their flows. Each has a port of its own, the one after *port: of two
// flows with one, to different frontends, the second gets another from SNAT, and the first's
// when both are forgotten.
func (c *cluster) checkRing(t *testing.T, a *agent, network string, to netip.AddrPort, port *uint16) {
	t.Helper()
	var seen []string
	for i := range 40 {
		*port++
		s := boundSocket(t, c.client, network, *port)
		got, err := askBy(s, network, to, "first")
		if err != nil {
			t.Fatal(err)
		}
		if want := c.ringServer(network, got.self, to); got.name != want {
			t.Fatalf("%s reached %s, the ring has %s", got.self, got.name, want)
		}
		if !slices.Contains(seen, got.name) {
			seen = append(seen, got.name)
			if n := a.evict(func([]byte) bool { return true }); n < 2 {
				t.Fatalf("%d entries forgotten", n)
			}
			c.checkGoesOn(t, s, network, got.name, fmt.Sprint("again ", i))
		}
		s.Close()
	}
	if len(seen) != len(everywhere) {
		t.Errorf("the flows reached %v only", seen)
	}
}

// checkGoesOn sends another payload by a socket and wants the server to answer.
func (c *cluster) checkGoesOn(t *testing.T, s *lab.Socket, network, server, payload string) {
	t.Helper()
	if strings.HasPrefix(network, "tcp") {
		if err := echo(s, payload); err != nil {
			t.Errorf("the connection to %s after its flow was forgotten: %v", server, err)
		}
		return
	}
	if got, err := talkUDP(s, payload); err != nil || got.name != server {
		t.Errorf("after its flow was forgotten: %v, %v, want %s", got, err, server)
	}
}

// checkForgotten wants a connection whose flow is forgotten to end.
func (c *cluster) checkForgotten(t *testing.T, a *agent, network string, to netip.AddrPort) {
	t.Helper()
	s := c.client.Socket(network)
	defer s.Close()
	if _, err := askBy(s, network, to, "first"); err != nil {
		t.Fatal(err)
	}
	a.evict(func([]byte) bool { return true })
	if err := echo(s, "again"); err == nil {
		t.Error("the connection goes on without its flow")
	}
}
