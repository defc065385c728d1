package packets_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestRouteChange: when the way to a backend changes, new flows soon take the new one;
// without an agent a second later.
func TestRouteChange(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true)
	c.serveAll(t)
	a := startAgent(t, c.nodes[0], c.service(1, "far", "", []endpoint{remote}))
	ways := []struct {
		device   string
		via, own addrs
	}{
		{overlay, overlayAddrs(2), overlayAddrs(1)},
		{uplink, nodeAddrs(2), nodeAddrs(1)},
	}
	for i, within := range []time.Duration{time.Minute, 500 * time.Millisecond, 500 * time.Millisecond, 1100 * time.Millisecond, 1100 * time.Millisecond} {
		if i == 3 {
			a.Signal(unix.SIGKILL)
			if err := a.Wait(); err == nil {
				t.Fatal("the agent ended by itself")
			}
		}
		// The way from before is known until the very change.
		for _, network := range networks {
			if _, err := ask(c.client, network, nodePort(network, 1), "x"); err != nil {
				t.Errorf("%s: %v", network, err)
			}
		}
		way := ways[i%2]
		c.nodes[0].replaceRoutes(t, way.via, way.device)
		time.Sleep(within % time.Minute)
		for _, network := range networks {
			got, err := ask(c.client, network, nodePort(network, 1), "x")
			if err != nil || got.client.Addr() != way.own.of(network) {
				t.Errorf("change %d, %s by %s: it has seen %s, %v, want %s", i, network, way.device, got.client, err, way.own.of(network))
			}
		}
	}
}

// replaceRoutes makes the way to the pods of node 2 another one.
func (n *node) replaceRoutes(t *testing.T, via addrs, device string) {
	t.Helper()
	err := n.Run(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		for family, prefix := range podRangesOf(2) {
			route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: prefixNet(prefix), Gw: via[family].AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
			if err := netlink.RouteReplace(route); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("lead routes to %s: %v", device, err)
	}
}

func prefixNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
