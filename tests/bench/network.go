package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The addresses of the endpoints, and of what is no Service.
var (
	endpoints4 = netip.MustParsePrefix("10.128.0.0/9")
	endpoints6 = netip.MustParsePrefix("fd00:10:128::/48")
	outside4   = netip.MustParsePrefix("192.0.2.0/24")
	outside6   = netip.MustParsePrefix("2001:db8::/48")
)

// The addresses of the device that [addUplink] makes.
var (
	uplinkAddr4 = netip.MustParseAddr("198.51.100.1")
	uplinkAddr6 = netip.MustParseAddr("2001:db8:ffff::1")
)

func setUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("device %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up device %s: %w", name, err)
	}
	return nil
}

// addUplink makes a device with routes to the endpoints and to what is no
// Service. Service addresses have no route. Nobody answers behind it.
func addUplink() error {
	uplink := netlink.NewVeth(netlink.LinkAttrs{Name: "uplink"})
	uplink.PeerName = "nobody"
	if err := netlink.LinkAdd(uplink); err != nil {
		return fmt.Errorf("add device %s: %w", uplink.Name, err)
	}
	if err := setUp(uplink.PeerName); err != nil {
		return err
	}
	for _, own := range []netip.Prefix{netip.PrefixFrom(uplinkAddr4, 24), netip.PrefixFrom(uplinkAddr6, 64)} {
		if err := address(uplink.Name, own); err != nil {
			return err
		}
	}
	for _, p := range []netip.Prefix{endpoints4, endpoints6, outside4, outside6} {
		if err := routeBy(uplink.Name, p); err != nil {
			return err
		}
	}
	return nil
}

// viaGateway leads the routes of [addUplink] over a gateway whose MAC address is
// known, one of each family.
func viaGateway() error {
	uplink, err := netlink.LinkByName("uplink")
	if err != nil {
		return err
	}
	for _, p := range []netip.Prefix{endpoints4, endpoints6, outside4, outside6} {
		gateway := uplinkAddr4.Next()
		if p.Addr().Is6() {
			gateway = uplinkAddr6.Next()
		}
		neighbour := netlink.Neigh{
			LinkIndex: uplink.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: gateway.AsSlice(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		}
		route := netlink.Route{LinkIndex: uplink.Attrs().Index, Gw: gateway.AsSlice()}
		if err := errors.Join(netlink.NeighSet(&neighbour), replaceRoute(p, route)); err != nil {
			return err
		}
	}
	return nil
}

// forward makes this network namespace a router.
func forward() error {
	return errors.Join(
		sysctl("ipv4/ip_forward", "1"),
		sysctl("ipv6/conf/all/forwarding", "1"))
}

// addLocalEndpoints makes every address of the endpoints this machine's own. A
// socket that connects to one has the same address at its own end.
func addLocalEndpoints() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("device lo: %w", err)
	}
	for _, p := range []netip.Prefix{endpoints4, endpoints6} {
		err := addRoute(p, netlink.Route{
			LinkIndex: lo.Attrs().Index,
			Table:     unix.RT_TABLE_LOCAL,
			Type:      unix.RTN_LOCAL,
			Scope:     unix.RT_SCOPE_HOST,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func addRoute(to netip.Prefix, route netlink.Route) error {
	route.Dst = &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}
	if err := netlink.RouteAdd(&route); err != nil {
		return fmt.Errorf("add route %s: %w", to, err)
	}
	return nil
}

// routeBy leads to a prefix by a device, without a gateway.
func routeBy(device string, to netip.Prefix) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	return addRoute(to, netlink.Route{LinkIndex: link.Attrs().Index})
}

// replaceRoute puts a route in the place of all to that prefix.
func replaceRoute(to netip.Prefix, route netlink.Route) error {
	dst := &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}
	if err := netlink.RouteDel(&netlink.Route{Dst: dst, LinkIndex: route.LinkIndex}); err != nil {
		return fmt.Errorf("remove route %s: %w", to, err)
	}
	return addRoute(to, route)
}
