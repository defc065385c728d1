package packets_test

import (
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
)

// newXDPCluster makes a cluster whose devices can serve by XDP: checksums are made by
// the senders, as on a wire, and the router takes what XDP sends.
func newXDPCluster(t *testing.T, withOverlay bool) *cluster {
	t.Helper()
	c := newCluster(t, withOverlay)
	for _, n := range c.namespaces() {
		n.SetChecksumOffload(false)
	}
	for _, n := range c.nodes {
		c.router.PassXDP(n.name())
	}
	return c
}

// sentByXDP returns how many packets XDP has sent on at a node.
func sentByXDP(t *testing.T, n *node) uint64 {
	t.Helper()
	return withMaps(t, n, func(maps *bpfmap.Maps) uint64 {
		reasons, err := maps.Reasons()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range reasons {
			if r.Name == "xdp_sent" {
				return r.Count
			}
		}
		t.Fatal("no counter of packets that XDP sent")
		return 0
	})
}

func withMaps[T any](t *testing.T, n *node, read func(*bpfmap.Maps) T) T {
	t.Helper()
	maps, err := bpfmap.Open(datapath.Dir(n.BPFFS))
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	return read(maps)
}

// TestXDPReach is the table again, with XDP in the device's driver and in the
// kernel's receive path. The endpoints on the other node are reached by XDP, except
// through a tunnel.
func TestXDPReach(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"native"} {
		for _, way := range []string{"routes", "overlay"} {
			t.Run(mode+" over "+way, func(t *testing.T) {
				t.Parallel()
				c := newXDPCluster(t, way == "overlay")
				c.serveAll(t)
				manifests, rows := c.table()
				for _, n := range c.nodes {
					startAgent(t, n, manifests, "--xdp", mode)
				}
				c.watchChecksums(t)
				c.checkAll(t, rows)
				remote := 0
				for _, r := range rows {
					if len(r.may) == 1 && r.may[0].node == 2 && (way == "routes" || r.may[0].place == "host") {
						remote++
					}
				}
				// A request and a reply at the least.
				if sent := sentByXDP(t, c.nodes[0]); sent < 2*uint64(remote) {
					t.Errorf("XDP has sent %d packets for %d requests to the other node", sent, remote)
				}
			})
		}
	}
}

// TestXDPTransfer: a lot goes through a node port to the other node and back, and
// nearly all of it by XDP.
func TestXDPTransfer(t *testing.T) {
	t.Parallel()
	c := newXDPCluster(t, false)
	c.serveAll(t)
	for _, n := range c.nodes {
		startAgent(t, n, c.service(1, "web", "", []endpoint{remote}), "--xdp", "native")
	}
	for _, network := range networks[:2] {
		t.Run(strings.Join([]string{"native", network}, " "), func(t *testing.T) {
			before := sentByXDP(t, c.nodes[0])
			transfer(t, c.client, network, nodePort(network, 1))
			if sent, least := sentByXDP(t, c.nodes[0])-before, uint64(2*transferSize/1500); sent < least {
				t.Errorf("XDP has sent %d packets, want %d at least", sent, least)
			}
		})
	}
}
