package netns_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/tests/lab"
)

// TestCacheOnDummyDevice: a node's DNS cache has its own addresses and those of the name server's Service, which
// another proxy serves, on a device of type dummy. It is reached there by the node and its pods,
// while other Services lead to their endpoints.
func TestCacheOnDummyDevice(t *testing.T) {
	t.Parallel()
	h := lab.NewHost(t)
	const device = "nodelocaldns"
	err := h.Run(func() error {
		if err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: device}}); err != nil {
			return err
		}
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("the kernel has no dummy devices: they need the module dummy")
	}
	if err != nil {
		t.Fatal(err)
	}
	h.ServeBackends()
	var cache []netip.AddrPort
	for _, at := range []string{"169.254.20.10", "fd00:20::10", "10.96.0.10", "fd96::a"} {
		addr := netip.MustParseAddr(at)
		h.AddAddr(device, netip.PrefixFrom(addr, addr.BitLen()).String())
		cache = append(cache, netip.AddrPortFrom(addr, 53))
		h.ServeTCP(netip.AddrPortFrom(addr, 53))
		h.ServeUDP(netip.AddrPortFrom(addr, 53))
	}
	a := h.Serve(lab.AgentOptions{Devices: []string{lab.Uplink}})
	a.Update(source.Update{
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd96::/112")},
		ForeignIPs:   []netip.Addr{cache[2].Addr(), cache[3].Addr()},
	})
	applyDual(a)
	for _, from := range []*lab.Namespace{h.Namespace, h.Pod} {
		for _, to := range cache {
			for _, protocol := range []string{"tcp", "udp"} {
				network := protocol + map[bool]string{true: "4", false: "6"}[to.Addr().Is4()]
				if got := mustReach(t, from, network, to); got != to {
					t.Errorf("%s to the cache at %s reached %s", network, to, got)
				}
			}
		}
		want(t, from, "10.96.0.1", "fd96::1", 1, 2, 3)
	}
}
