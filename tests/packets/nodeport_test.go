package packets_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
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
// both nodes, and NodePorts do not answer at other devices. There a process of the node gets what is
// sent to the port. The cable is a veth, behind which pods may be, so only that CIDR names it.
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

// secondNIC is a second network card of node 1: no default route, node IP or route to pods names it.
const secondNIC = "nic2"

// addSecondNIC connects node 1 to the other machine by the second card. It has an Ethernet address of its
// own on a cable, whose end pods may not be behind, as they may be behind that of a veth.
func (c *cluster) addSecondNIC(t *testing.T) {
	t.Helper()
	node := c.nodes[0].Namespace
	node.AddDevice("cable", c.other, "cable")
	for n, a := range map[*lab.Namespace]addrs{node: cableNode, c.other: cableMachine} {
		err := n.Run(func() error {
			cable, err := netlink.LinkByName("cable")
			if err != nil {
				return err
			}
			nic := &netlink.Macvlan{Mode: netlink.MACVLAN_MODE_PRIVATE, LinkAttrs: netlink.LinkAttrs{Name: secondNIC, ParentIndex: cable.Attrs().Index}}
			if err := netlink.LinkAdd(nic); err != nil {
				return err
			}
			return netlink.LinkSetUp(nic)
		})
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("the kernel has no macvlan devices: they need the module macvlan")
		}
		if err != nil {
			t.Fatalf("make %s: %v", secondNIC, err)
		}
		addAddrs(n, secondNIC, a)
	}
	for family, r := range balancerRanges {
		c.other.AddRoute(netip.MustParsePrefix(r), cableNode[family], secondNIC)
	}
}

// TestSecondNIC: with nothing set, NodePorts answer at each device that has an address, and what comes in
// there comes from outside: replies of backends on both nodes go back by it, and with
// externalTrafficPolicy: Local the endpoint of this node sees the client, that of the other none.
func TestSecondNIC(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	c.addSecondNIC(t)
	manifests := c.service(1, "web", "", []endpoint{local, remote})
	manifests = append(manifests, c.service(2, "here", "externalTrafficPolicy: Local,", []endpoint{local, remote})...)
	manifests = append(manifests, c.service(3, "elsewhere", "externalTrafficPolicy: Local,", []endpoint{remote})...)
	c.serve(t, manifests)
	if said := beeline(t, c.nodes[0], "status"); !strings.Contains(said, "has address "+cableNode[0].String()) {
		t.Errorf("beeline status does not say why %s is served:\n%s", secondNIC, said)
	}
	for _, network := range networks {
		at := func(i int) []netip.AddrPort {
			return []netip.AddrPort{
				netip.AddrPortFrom(cableNode.of(network), nodePort(network, i).Port()),
				netip.AddrPortFrom(balancerIP(i).of(network), 80),
			}
		}
		for _, to := range at(1) {
			c.wantBoth(t, c.other, network, to)
		}
		for _, to := range at(2) {
			for range 10 { // of two endpoints
				got, err := ask(c.other, network, to, "x")
				if err != nil || got.name != local.server() || got.client.Addr() != cableMachine.of(network) {
					t.Errorf("%s to %s: %v, %v, want %s to see %s", network, to, got, err, local.server(), cableMachine.of(network))
				}
			}
		}
		for _, to := range at(3) {
			if err := c.silent(c.other, network, to); !errors.Is(err, lab.ErrNothing) {
				t.Errorf("%s to %s, without an endpoint here: %v, want no answer", network, to, err)
			}
		}
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
