package packets_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// jiffy is as long as it lasts at most, with CONFIG_HZ=100.
const jiffy = 10 * time.Millisecond

// TestRouteChange: when the route to a backend changes, new flows take the new one from the next
// jiffy on, with and without an agent; none is lost.
func TestRouteChange(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true)
	c.serveAll(t)
	a := startAgent(t, c.nodes[0], c.service(1, "far", "", []endpoint{remote}))
	routes := []struct {
		device   string
		via, own addrs
	}{
		{overlay, overlayAddrs(2), overlayAddrs(1)},
		{uplink, nodeAddrs(2), nodeAddrs(1)},
	}
	for i := range 5 {
		if i == 3 {
			a.Signal(unix.SIGKILL)
			if err := a.Wait(); err == nil {
				t.Fatal("the agent ended by itself")
			}
		}
		// The route from before is known until the very change.
		for _, network := range networks {
			if _, err := ask(c.client, network, nodePort(network, 1), "x"); err != nil {
				t.Errorf("%s: %v", network, err)
			}
		}
		route := routes[i%2]
		c.nodes[0].replaceRoutes(t, route.via, route.device)
		time.Sleep(2 * jiffy)
		for _, network := range networks {
			got, err := ask(c.client, network, nodePort(network, 1), "x")
			if err != nil {
				t.Errorf("change %d, %s: %v", i, network, err)
			} else if want := route.own.of(network); got.client.Addr() != want {
				t.Errorf("change %d, %s: the endpoint has seen %s, want %s", i, network, got.client, want)
			}
		}
	}
}

// replaceRoutes replaces the routes to the pods of node 2.
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

// otherUplink is a further uplink of node 1.
const otherUplink = "uplink2"

func otherUplinkAddrs() addrs { return parseAddrs("10.3.0.11", "fd03::11") }

// addUplink connects node 1 to another network of the router, by which no route of the
// node leads to the clients.
func (c *cluster) addUplink(xdp bool) {
	node := c.nodes[0]
	c.router.AddDevice("wayin", node.Namespace, otherUplink)
	addAddrs(c.router, "wayin", parseAddrs("10.3.0.1", "fd03::1"))
	addAddrs(node.Namespace, otherUplink, otherUplinkAddrs())
	// Replies come to the router by another device than requests.
	c.router.SetSysctl("ipv4/conf/all/rp_filter", "2")
	if xdp {
		c.router.SetChecksumOffload(false)
		node.SetChecksumOffload(false)
		c.router.PassXDP("wayin")
	}
}

// TestRepliesFollowTheRoutes: a client reaches an endpoint on another node by an address of a
// x, to whose network it does not belong; replies leave by the default route. When
// that changes, open connections follow.
func TestRepliesFollowTheRoutes(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"off", "native"} {
		t.Run("XDP "+mode, func(t *testing.T) {
			t.Parallel()
			c := newClusterFor(t, mode)
			c.addUplink(mode != "off")
			c.serveAll(t)
			startAgent(t, c.nodes[0], c.service(1, "far", "", []endpoint{remote}),
				"--devices", uplink+","+otherUplink, "--xdp", mode)
			open := make(map[string]*lab.Socket)
			for _, network := range networks {
				to := netip.AddrPortFrom(otherUplinkAddrs().of(network), nodePort(network, 1).Port())
				s, hello := connect(t, c.client, network, to)
				if hello.client.Addr() != nodeAddrs(1).of(network) {
					t.Errorf("%s: the endpoint has seen %s", network, hello.client)
				}
				open[network] = s
			}
			if sent := sentByXDP(t, c.nodes[0]); (sent > 0) != (mode == "native") {
				t.Errorf("XDP has sent %d packets", sent)
			}
			c.nodes[0].leadDefaultTo(t, parseAddrs("10.3.0.1", "fd03::1"), otherUplink)
			for _, network := range networks {
				lab.Eventually(t, network+" goes on by the other uplink", func() bool {
					before := c.nodes[0].sentBy(t, otherUplink)
					err := goesOn(open[network], network)
					if errors.Is(err, lab.ErrNothing) && strings.HasPrefix(network, "udp") {
						return false // within a second, a reply leaves by the former route, which is gone
					}
					if err != nil {
						t.Fatalf("%s: %v", network, err)
					}
					return c.nodes[0].sentBy(t, otherUplink) > before
				})
			}
		})
	}
}

// leadDefaultTo makes the default routes others.
func (n *node) leadDefaultTo(t *testing.T, via addrs, device string) {
	t.Helper()
	err := n.Run(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		for family, gateway := range via {
			all := netip.PrefixFrom([]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}[family], 0)
			// IPv6 would keep the former one beside, by another device.
			former, err := netlink.RouteListFiltered([]int{unix.AF_INET, unix.AF_INET6}[family], &netlink.Route{Dst: prefixNet(all)}, netlink.RT_FILTER_DST)
			if err != nil {
				return err
			}
			for _, route := range former {
				if err := netlink.RouteDel(&route); err != nil {
					return err
				}
			}
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: prefixNet(all), Gw: gateway.AsSlice()}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("lead the default routes to %s: %v", device, err)
	}
}

// sentBy returns how many packets the node has sent by a device.
func (n *node) sentBy(t *testing.T, device string) (packets uint64) {
	t.Helper()
	err := n.Run(func() error {
		link, err := netlink.LinkByName(device)
		if err == nil {
			packets = link.Attrs().Statistics.TxPackets
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return packets
}
