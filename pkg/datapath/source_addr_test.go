package datapath

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// sourceNetwork is a machine with a network card of several addresses (2), one with a default route (3), one without
// an address (4), another of several (5), and loopback with an address of the node (1).
func sourceNetwork() *network {
	link := func(index int) *netlink.Device {
		return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}}
	}
	addr := func(index int, cidr string, flags int) netlink.Addr {
		ip, ipnet, err := net.ParseCIDR(cidr)
		if err != nil {
			panic(err)
		}
		return netlink.Addr{LinkIndex: index, IPNet: &net.IPNet{IP: ip, Mask: ipnet.Mask}, Flags: flags}
	}
	_, pods, _ := net.ParseCIDR("10.244.2.0/24")
	return newNetwork(map[int]netlink.Link{3: link(3)}, []netlink.Addr{
		addr(1, "203.0.113.7/32", 0),
		addr(2, "192.0.2.1/24", 0), addr(2, "192.0.2.2/24", 0), addr(2, "10.2.0.11/24", 0), addr(2, "10.2.0.12/24", unix.IFA_F_SECONDARY),
		addr(2, "2001:db8::1/64", 0), addr(2, "fd02::11/64", 0), addr(2, "2001:db8:1::1/64", unix.IFA_F_DEPRECATED),
		addr(3, "198.51.100.1/24", 0),
		addr(5, "192.0.2.3/24", unix.IFA_F_DEPRECATED), addr(5, "10.5.0.1/24", 0), addr(5, "10.6.0.1/24", 0), addr(5, "10.6.0.2/24", 0),
		addr(6, "192.0.2.4/24", unix.IFA_F_DEPRECATED),
	}, []netlink.Route{
		{Type: unix.RTN_UNICAST, LinkIndex: 3},
		{Type: unix.RTN_UNICAST, Dst: pods, LinkIndex: 5, Gw: net.IPv4(10, 6, 0, 9)},
	})
}

// TestSourceAddress: of the addresses that packets can be sent from, the best class that has any; in it the
// address in use.
func TestSourceAddress(t *testing.T) {
	t.Parallel()
	n := sourceNetwork()
	withoutDefault := sourceNetwork()
	withoutDefault.routes = nil
	announced := sourceNetwork() // routes lead over devices without an address, as with unnumbered BGP
	announced.links = append(announced.links, &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1, Flags: net.FlagLoopback}})
	announced.routes = nil
	for _, tc := range []struct {
		name      string
		network   *network
		ifindex   int
		inUse     string
		nodeAddrs string // "unknown" is none, so far
		want      string
	}{
		{"first of the device", n, 2, "", "203.0.113.7", "192.0.2.1"},
		{"in use", n, 2, "192.0.2.2", "", "192.0.2.2"},
		{"in use but gone", n, 2, "192.0.2.99", "", "192.0.2.1"},
		{"none of its own", n, 4, "", "203.0.113.7", "203.0.113.7"},
		{"node IP that nobody holds", n, 4, "", "192.0.2.99", "198.51.100.1"},
		{"no node IP: that of the default route", n, 4, "", "", "198.51.100.1"},
		{"node IP of the device", n, 2, "", "10.2.0.11", "10.2.0.11"},
		{"node IP of the device, secondary", n, 2, "", "10.2.0.12", "10.2.0.12"},
		{"node IP of the device, not the one in use", n, 2, "192.0.2.1", "10.2.0.11", "10.2.0.11"},
		{"in use, before the node is known", n, 2, "192.0.2.1", "unknown", "192.0.2.1"},
		{"gone before the node is known", n, 2, "192.0.2.99", "unknown", "192.0.2.1"},
		{"in the next hop's network", n, 5, "", "203.0.113.7", "10.6.0.1"},
		{"in the next hop's network, not the one in use", n, 5, "10.5.0.1", "", "10.6.0.1"},
		{"in use in the next hop's network", n, 5, "10.6.0.2", "", "10.6.0.2"},
		{"in use, next hop gone", withoutDefault, 5, "10.6.0.2", "", "10.6.0.2"},
		{"deprecated in use", withoutDefault, 5, "192.0.2.3", "", "10.5.0.1"},
		{"deprecated alone", withoutDefault, 6, "", "", "192.0.2.4"},
		{"deprecated, and one of another device", n, 6, "192.0.2.4", "203.0.113.7", "203.0.113.7"},
		{"loopback's, where the device has none", announced, 4, "", "", "203.0.113.7"},
		{"not loopback's, where the device has one", announced, 6, "", "", "192.0.2.4"},
		{"IPv6: first of the device", n, 2, "", "192.0.2.1", "2001:db8::1"},
		{"IPv6: node IP of the device", n, 2, "2001:db8::1", "fd02::11", "fd02::11"},
		{"IPv6: deprecated", n, 2, "2001:db8:1::1", "", "2001:db8::1"},
		{"IPv6: none", n, 5, "", "192.0.2.1", "invalid IP"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var nodeAddrs []netip.Addr
			if a, err := netip.ParseAddr(tc.nodeAddrs); err == nil {
				nodeAddrs = append(nodeAddrs, a)
			}
			inUse, _ := netip.ParseAddr(tc.inUse)
			is := netip.Addr.Is4
			if len(tc.name) > 4 && tc.name[:4] == "IPv6" {
				is = netip.Addr.Is6
			}
			if got := newSources(tc.network, nodeAddrs, tc.nodeAddrs == "unknown").of(tc.ifindex, is, inUse); got.String() != tc.want {
				t.Errorf("source is %s, want %s", got, tc.want)
			}
		})
	}
}
