package packets_test

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/tier"
)

// newMacvlan makes a cluster whose pods have a macvlan of their node's card: no device of the node leads to them, and the node and its
// own pods do not reach each other.
func newMacvlan(t *testing.T, mode netlink.MacvlanMode) *cloudCluster {
	t.Helper()
	c := newCloudCluster(t, []string{"4", "6"}, parseAddrs("10.2.0.41", "fd02::41"),
		parseAddrs("10.2.0.31", "fd02::31"), parseAddrs("10.2.0.32", "fd02::32"))
	for i, s := range []site{c.host, c.farHost} {
		own := []string{s.at[0].String(), s.at[1].String()}
		for _, p := range append(c.pods, c.far) {
			if p.node == s.node {
				own = append(own, p.at[0].String(), p.at[1].String())
			}
		}
		if i == 0 {
			own = append(own, externalRanges[0], balancerRanges[0], externalRanges[1], balancerRanges[1])
		}
		c.plug(s.n, "eth0", own...)
		c.address(s.n, "eth0", s.at)
	}
	for _, p := range append(c.pods, c.far) {
		c.addMacvlan(p, mode)
		c.address(p.n, "eth0", p.at)
	}
	return c
}

// addMacvlan gives a pod a macvlan of its node's card, whose MAC address the cloud learns.
func (c *cloudCluster) addMacvlan(p site, mode netlink.MacvlanMode) {
	c.t.Helper()
	n := c.nodes[p.node-1].Namespace
	pid := p.n.Populate().PID()
	err := n.Run(func() error {
		card, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkAdd(&netlink.Macvlan{Mode: mode, LinkAttrs: netlink.LinkAttrs{
			Name: "macvlan", ParentIndex: card.Attrs().Index, Namespace: netlink.NsPid(pid),
		}})
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		c.t.Skip("the kernel has no macvlan devices: they need the module macvlan")
	}
	if err != nil {
		c.t.Fatal(err)
	}
	run(c.t, p.n, "ip", "link", "set", "macvlan", "name", "eth0", "up")
	port := c.portOf[n]
	for family, flag := range []string{"-4", "-6"} {
		run(c.t, c.fabric, "ip", flag, "neigh", "replace", p.at[family].String(), "lladdr", macOf(c.t, p.n, "eth0"), "dev", port, "nud", "permanent")
		run(c.t, c.fabric, "ip", flag, "route", "replace", p.at[family].String(), "dev", port)
	}
}

// TestMacvlan: sockets in pods that have a macvlan of the node's card reach Services with endpoints elsewhere, and by the same card
// clients outside do.
func TestMacvlan(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]netlink.MacvlanMode{"bridge": netlink.MACVLAN_MODE_BRIDGE, "private": netlink.MACVLAN_MODE_PRIVATE} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, name == "bridge")
			c := newMacvlan(t, mode)
			c.serve()
			c.wantDevices([2]string{"eth0", "default route"})
			for i, e := range c.endpoints() {
				if e.node == 1 {
					continue
				}
				for _, network := range c.networks {
					for _, from := range append(c.pods, c.host, c.outside, c.peer) {
						kinds := []string{"ClusterIP", "NodePort", "load balancer"}
						if from.node == 0 {
							kinds = c.asked(from, "Cluster")
						}
						for _, f := range kinds {
							got, err := askSoon(from.n, network, frontendOf(f, 2*i+1, network))
							if want := c.seen(from, e, network, "Cluster"); err != nil || got.name != e.name || got.client.Addr() != want {
								t.Errorf("%s from %s to the %s of %s: reached %q, which sees %s, error %v, want %s", network, from.name, f, e.name, got.name, got.client, err, want)
							}
						}
					}
				}
			}
			if n := c.foreign(); n > 0 {
				t.Errorf("%d packets left by a card with an address that is not the card's", n)
			}
		})
	}
}
