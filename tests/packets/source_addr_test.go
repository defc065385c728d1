package packets_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// strangeAddrs are addresses that a node's uplink has beside its own, in networks that nobody has a route to.
var strangeAddrs = parseAddrs("10.99.0.5", "fd99::5")

// addStrange gives the node's uplink addresses that come before its own: the kernel lists those of IPv4 from the
// oldest on, those of IPv6 from the newest.
func (c *cluster) addStrange(n *node) {
	own := nodeAddrs(n.index)[0].String()
	n.DeleteAddr(uplink, own+"/24")
	addAddrs(n.Namespace, uplink, strangeAddrs)
	n.AddAddr(uplink, own+"/24")
	// Those of IPv4 are gone with the address.
	n.AddDefaultRoute("10.2.0.1")
	for _, other := range c.nodes {
		if other != n {
			n.AddRoute(podRangesOf(other.index)[0], nodeAddrs(other.index)[0], uplink)
		}
	}
}

// TestAddressesOfUplink: of several addresses of a node's uplink, backends on another node see one that they
// can answer.
func TestAddressesOfUplink(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	c.addStrange(c.nodes[0])
	c.serve(t, c.service(1, "web", "", []endpoint{remote}))
	for _, network := range networks {
		to := nodePort(network, 1)
		if err := c.check(reach{network: network, to: to, may: []endpoint{remote}}); err != nil {
			t.Errorf("%s to %s: %v", network, to, err)
		}
	}
}

// TestBetterSource: an agent that finds that its predecessor has sent from an address of the uplink that is
// not the node's takes the node's for new connections. Those that there are go on from the other.
func TestBetterSource(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	n := c.nodes[0]
	c.addStrange(n)
	for family, r := range []string{"10.99.0.0/24", "fd99::/64"} {
		c.router.AddRoute(netip.MustParsePrefix(r), nodeAddrs(1)[family], "nodes")
	}
	c.serveAll(t)
	a := newAgent(t, n, c.service(1, "web", "", []endpoint{remote}))
	own := slices.Index(a.flags, "--node-ip") + 1
	nodeIPs := a.flags[own]
	a.flags[own] = strangeAddrs[0].String() + "," + strangeAddrs[1].String()
	a.start()
	flows := make(map[string]*lab.Socket)
	for _, network := range networks {
		s, hello := connect(t, c.client, network, nodePort(network, 1))
		if hello.client.Addr() != strangeAddrs.of(network) {
			t.Fatalf("%s: the endpoint sees %s, want %s", network, hello.client, strangeAddrs.of(network))
		}
		flows[network] = s
	}
	a.Signal(unix.SIGTERM)
	if err := a.Wait(); err != nil {
		t.Fatal(err)
	}
	a.flags[own] = nodeIPs
	a.start()
	for network, s := range flows {
		if strings.HasPrefix(network, "tcp") {
			if err := echo(s, "more"); err != nil {
				t.Errorf("%s, a connection that there was: %v", network, err)
			}
		} else if hello, err := talkUDP(s, "more"); err != nil || hello.client.Addr() != strangeAddrs.of(network) {
			t.Errorf("%s: the endpoint sees %s, %v, of a flow that began with %s", network, hello.client, err, strangeAddrs.of(network))
		}
		to := nodePort(network, 1)
		if err := c.check(reach{network: network, to: to, may: []endpoint{remote}}); err != nil {
			t.Errorf("%s to %s: %v", network, to, err)
		}
	}
}
