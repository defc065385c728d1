package inspect

import (
	"net/netip"

	"github.com/vishvananda/netlink"
)

// route is what the kernel answers of the way to an address; ifindex 0 is none.
type route struct {
	ifindex int
	device  string
	gateway netip.Addr
	source  netip.Addr
}

// route asks the kernel, in the client's network namespace.
func (c *client) route(to netip.Addr, o netlink.RouteGetOptions) (r route) {
	_ = c.run(func() error {
		routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &o)
		if err != nil || len(routes) == 0 {
			return nil
		}
		l, err := netlink.LinkByIndex(routes[0].LinkIndex)
		if err != nil {
			return nil
		}
		r.ifindex, r.device = l.Attrs().Index, l.Attrs().Name
		r.gateway, _ = netip.AddrFromSlice(routes[0].Gw)
		r.source, _ = netip.AddrFromSlice(routes[0].Src)
		r.gateway, r.source = r.gateway.Unmap(), r.source.Unmap()
		return nil
	})
	return r
}

// ownRoute returns the route of the client's own packets to an address.
func (c *client) ownRoute(to netip.Addr) route {
	o := netlink.RouteGetOptions{}
	if from := c.from.Addr(); from.IsValid() && !from.IsUnspecified() {
		o.SrcAddr = from.AsSlice()
	}
	return c.route(to, o)
}

// comesIn is how the kernel is asked for the route of a packet of the client that comes in by its device, or by the
// bridge that this is a port of.
func (c *client) comesIn() netlink.RouteGetOptions {
	o := netlink.RouteGetOptions{IifIndex: c.ifindex, SrcAddr: c.from.Addr().AsSlice()}
	if l, err := netlink.LinkByIndex(c.ifindex); err == nil && l.Attrs().MasterIndex != 0 {
		if master, err := netlink.LinkByIndex(l.Attrs().MasterIndex); err == nil && master.Type() == "bridge" {
			o.IifIndex = master.Attrs().Index
		}
	}
	return o
}

// stackRoute returns the route by which the host's stack forwards a packet with a mark to a backend. Where it would
// forward none, as while forwarding is off, it is that of a packet of this node.
func (c *client) stackRoute(to netip.Addr, mark uint32) route {
	o := c.comesIn()
	o.Mark = mark
	if r := c.route(to, o); r.ifindex != 0 {
		return r
	}
	return c.route(to, netlink.RouteGetOptions{Mark: mark})
}

// sentRoute returns the route of a packet that the programs send by a device from a source, which is not valid where it
// is not known: that by which they have found the device, or else the kernel's by that device, see bl_next_hop_of.
// One that leads by another device is none.
func (c *client) sentRoute(to, source netip.Addr, ifindex int) route {
	if c.kind != clientNode {
		if r := c.route(to, c.comesIn()); r.ifindex == ifindex {
			return r
		}
	}
	o := netlink.RouteGetOptions{OifIndex: ifindex}
	if source.IsValid() {
		o.SrcAddr = source.AsSlice()
	}
	if r := c.route(to, o); r.ifindex == ifindex {
		return r
	}
	return route{}
}
