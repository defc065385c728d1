package packets_test

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// The addresses of node 1 and of the other machine on a cable between them, which no default
// route leads to.
var (
	cableNode    = parseAddrs("172.31.0.1", "fd31::1")
	cableMachine = parseAddrs("172.31.0.2", "fd31::2")
)

// TestNodePortDevice: a device whose address is in --nodeport-addresses is served, with backends on
// both nodes, and NodePorts do not answer at other devices. Without that CIDR the device is not
// served, and a process of the node gets what is sent to the port.
func TestNodePortDevice(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		addresses string
		cable     bool // NodePorts answer there, else at the uplink
	}{
		"network of the cable":  {"172.31.0.0/24,fd31::/64", true},
		"network of the uplink": {"10.2.0.0/24,fd02::/64", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, false)
			c.nodes[0].AddDevice("cable", c.other, "cable")
			addAddrs(c.nodes[0].Namespace, "cable", cableNode)
			addAddrs(c.other, "cable", cableMachine)
			c.serve(t, c.service(1, "web", "", []endpoint{local, remote}), "--nodeport-addresses", tc.addresses)
			for _, network := range networks {
				at := nodePort(network, 1)
				cable := netip.AddrPortFrom(cableNode.of(network), at.Port())
				yes, no, from, notFrom := cable, at, c.other, c.client
				if !tc.cable {
					yes, no, from, notFrom = at, cable, c.client, c.other
				}
				c.wantBoth(t, from, network, yes)
				if got, err := ask(notFrom, network, no, "x"); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("%s to %s: reached %v, error %v, want it refused", network, no, got, err)
				}
				serve := c.nodes[0].ServeTCP
				if network[:3] == "udp" {
					serve = c.nodes[0].ServeUDP
				}
				serve(no)
				if got, err := notFrom.Reach(network, no); err != nil || got != no {
					t.Errorf("%s to %s, where a process listens: reached %v, error %v", network, no, got, err)
				}
			}
		})
	}
}

// wantBoth asks a Service until its backends on both nodes have answered.
func (c *cluster) wantBoth(t *testing.T, from *lab.Namespace, network string, to netip.AddrPort) {
	t.Helper()
	both := reach{network: network, to: to, may: []endpoint{local, remote}}
	missing := map[string]bool{local.server(): true, remote.server(): true}
	lab.Eventually(t, network+" to "+to.String()+" reaches both backends", func() bool {
		got, err := ask(from, network, to, "x")
		if err == nil {
			err = c.checkAnswer(both, got)
		}
		if err != nil {
			t.Fatalf("%s to %s: %v", network, to, err)
		}
		delete(missing, got.name)
		return len(missing) == 0
	})
}
