package packets_test

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// TestDrainKeepsSourcePorts: while Beeline drains, netfilter masquerades the other proxy's connections
// from a range of source ports of which open connections through Beeline have all but one. It gives
// out that one.
func TestDrainKeepsSourcePorts(t *testing.T) {
	t.Parallel()
	lab.Need(t, "nft")
	const elsewhere, low, high, free = 29000, 25000, 25007, 25003
	c, a := serveCluster(t, func(c *cluster) []string { return c.service(1, "far", "", []endpoint{remote}) })
	node := c.nodes[0]
	open := make(map[*lab.Socket]string)
	for _, network := range networks {
		for port := uint16(low); port <= high; port++ {
			if port == free {
				continue
			}
			s, hello := connectFrom(t, c.client, network, port, nodePort(network, 1))
			if want := netip.AddrPortFrom(nodeAddrs(1).of(network), port); hello.client != want {
				t.Fatalf("%s: the endpoint sees %s, want %s", network, hello.client, want)
			}
			open[s] = network
		}
	}
	translate(t, node.Namespace, elsewhere, c.addrsOf(remote), nodeAddrs(1), low, high)
	a.Signal(unix.SIGTERM)
	if err := a.Wait(); err != nil {
		t.Fatal(err)
	}
	startDrain(t, node)

	for _, network := range networks {
		self := nodeAddrs(1).of(network)
		_, hello := connect(t, c.client, network, netip.AddrPortFrom(self, elsewhere))
		if want := netip.AddrPortFrom(self, free); hello.client != want {
			t.Errorf("%s: the endpoint sees %s, want %s", network, hello.client, want)
		}
	}
	for s, network := range open {
		if err := goesOn(s, network); err != nil {
			t.Errorf("%s: %v", network, err)
		}
	}
}

// TestDrainAwaitsBothFamilies: kube-proxy that has made its rules for IPv4 gets no connection of
// Services with both IP families until it has made those for IPv6, too.
func TestDrainAwaitsBothFamilies(t *testing.T) {
	t.Parallel()
	lab.Need(t, "nft")
	c, a := serveCluster(t, func(c *cluster) []string { return c.service(1, "far", "", []endpoint{remote}) })
	node := c.nodes[0]
	kubeProxy := func(family string) {
		t.Helper()
		if _, err := node.Output("nft", "add", "table", family, "kube-proxy"); err != nil {
			t.Fatal(failure(err))
		}
	}
	kubeProxy("ip")
	a.Signal(unix.SIGTERM)
	if err := a.Wait(); err != nil {
		t.Fatal(err)
	}
	drain := startDrainUntil(t, node, "Waiting for kube-proxy")
	open := make(map[*lab.Socket]string)
	for _, network := range networks[:2] {
		s, hello := connect(t, c.client, network, nodePort(network, 1))
		if hello.name != remote.server() {
			t.Errorf("%s: answered by %s", network, hello.name)
		}
		open[s] = network
	}
	kubeProxy("ip6")
	lab.Eventually(t, "the drain waits for connections", func() bool {
		return drain.Ended() || strings.Contains(drain.Output(), "waiting for 2 connections")
	})
	for s, network := range open {
		if err := goesOn(s, network); err != nil {
			t.Errorf("%s: %v", network, err)
		}
		if err := c.client.Socket(network).Connect(nodePort(network, 1)); err == nil {
			t.Errorf("%s: a new connection is Beeline's", network)
		}
	}
}
