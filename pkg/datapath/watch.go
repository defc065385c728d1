package datapath

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// watch keeps what the kernel has told of devices, addresses and routes, and notes what of
// it has changed since the last look. Devices are kept up to date by the changes
// themselves; addresses and routes are read anew after a change that matters.
type watch struct {
	mu    sync.Mutex
	known bool // all has been read once
	// reading is set while all devices are read.
	reading bool
	links   map[int]netlink.Link
	// chosen are the devices of which every change counts, also one that shows in
	// nothing that is kept: clients are behind them, or they are where XDP serves such.
	chosen map[int]bool
	addrs  []netlink.Addr
	// readingAddrs is set while addresses are read: addrs are about to be others.
	readingAddrs bool
	routes       []netlink.Route // those of relevant, but for routes to pods of this node
	// readingRoutes is the same of routes.
	readingRoutes bool
	// leadTo are devices, by index, to which relevant routes lead and which the kernel has not told of yet.
	leadTo map[int]bool

	relevant func(*netlink.Route) bool
	list     lists

	changed       map[int]bool // devices, by index, those that are gone among them
	addrsChanged  bool
	routesChanged bool
}

// lists read everything of a kind from the kernel.
type lists struct {
	links  func() ([]netlink.Link, error)
	addrs  func(netlink.Link) ([]netlink.Addr, error)
	routes func(func(*netlink.Route) bool) ([]netlink.Route, error)
}

func newWatch(relevant func(*netlink.Route) bool) *watch {
	return &watch{
		relevant: relevant, list: lists{rtnl.Links, rtnl.Addrs, rtnl.Routes},
		links: make(map[int]netlink.Link), leadTo: make(map[int]bool), changed: make(map[int]bool),
	}
}

// relevantRoute reports whether it may matter to the choice of devices where a route leads.
func (d *Datapath) relevantRoute(r *netlink.Route) bool {
	dst, ok := destination(r)
	return ok && (r.Table == unix.RT_TABLE_MAIN || r.Table == 0) && (dst.Bits() == 0 || within(dst, d.opts.ClusterCIDRs))
}

// handlers note changes. What does not matter is passed over, for pods come and go, and
// routing daemons change thousands of routes.
func (d *Datapath) handlers() rtnl.Handlers {
	if !d.servesPackets() {
		return rtnl.Handlers{}
	}
	return rtnl.Handlers{Link: d.watch.link, Addr: d.watch.addr, Route: d.watch.route}
}

func (w *watch) link(u *netlink.LinkUpdate) bool {
	if u.Family == unix.AF_BRIDGE {
		return false // of a bridge's port as such, which goes on to be a device
	}
	// Wireless extensions send the name alone with what has happened (IFLA_WIRELESS), as after each
	// scan. A message that describes the device has its MTU; one with MTU 0 carries no IP.
	if u.Header.Type == unix.RTM_NEWLINK && u.Attrs().MTU == 0 {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	index := int(u.Index)
	ledTo := w.leadTo[index]
	delete(w.leadTo, index)
	if u.Header.Type == unix.RTM_DELLINK {
		if w.links[index] == nil && !w.reading {
			return false
		}
		delete(w.links, index)
	} else {
		former := w.links[index]
		w.links[index] = u.Link
		ledTo = ledTo || former != nil && leadsToPods(former)
		w.routesChanged = w.routesChanged || ledTo && !leadsToPods(u.Link)
		if former != nil && sameLink(former, u.Link) && !w.chosen[index] {
			return false
		}
	}
	w.changed[index] = true
	// The kernel does not tell of the routes that go with a device.
	for i := range w.routes {
		for _, h := range hops(&w.routes[i]) {
			w.routesChanged = w.routesChanged || h.ifindex == index
		}
	}
	return true
}

// sameLink reports whether two states of a device differ in nothing that is looked at.
func sameLink(a, b netlink.Link) bool {
	x, y := a.Attrs(), b.Attrs()
	return x.Name == y.Name && a.Type() == b.Type() && x.EncapType == y.EncapType &&
		x.MasterIndex == y.MasterIndex && x.ParentIndex == y.ParentIndex && x.NetNsID == y.NetNsID &&
		(x.Flags^y.Flags)&net.FlagUp == 0 && x.MTU == y.MTU && x.HardwareAddr.String() == y.HardwareAddr.String()
}

func (w *watch) addr(u *netlink.AddrUpdate) bool {
	if u.LinkAddress.IP.To4() == nil && u.LinkAddress.IP.IsLinkLocalUnicast() {
		return false // every device has one
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if u.NewAddr && !w.addrsChanged && !w.readingAddrs && slices.ContainsFunc(w.addrs, func(a netlink.Addr) bool { return sameAddr(&a, u) }) {
		return false // its lifetime is another, as after each router advertisement
	}
	// Nor does the kernel tell of the routes that go with an address.
	w.addrsChanged, w.routesChanged = true, true
	return true
}

// sameAddr reports whether an address that is set differs in nothing that is looked at.
func sameAddr(a *netlink.Addr, u *netlink.AddrUpdate) bool {
	return a.LinkIndex == u.LinkIndex && a.Flags == u.Flags && a.Scope == u.Scope && a.IPNet.String() == u.LinkAddress.String()
}

func (w *watch) route(u *netlink.RouteUpdate) bool {
	if u.Type != unix.RTM_NEWROUTE && u.Type != unix.RTM_DELROUTE {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.relevant(&u.Route) {
		w.noteRoute(u)
	}
	// Any route may lead to a backend, see [devicemap.Table.ForgetRoutes].
	return true
}

// noteRoute notes the change of a relevant route.
func (w *watch) noteRoute(u *netlink.RouteUpdate) {
	dst, _ := destination(&u.Route)
	for _, h := range hops(&u.Route) {
		switch {
		case !w.leadsOn(dst, h):
		case u.Type == unix.RTM_DELROUTE && !w.mayHave(dst):
		case dst.Bits() > 0 && !h.gateway && w.links[h.ifindex] == nil:
			w.leadTo[h.ifindex] = true // or it has gone, and its routes with it
		default:
			w.routesChanged = true
			return
		}
	}
	// The kernel does not tell of the route that another one replaces.
	if u.NlFlags&unix.NLM_F_REPLACE != 0 {
		w.routesChanged = w.routesChanged || w.mayHave(dst)
	}
}

// mayHave reports whether a route to a destination is kept, or may be read at this time.
func (w *watch) mayHave(dst netip.Prefix) bool {
	return w.readingRoutes || w.routesChanged || slices.ContainsFunc(w.routes, func(r netlink.Route) bool {
		former, ok := destination(&r)
		return ok && former == dst
	})
}

// leadsOn reports whether a hop is one of a default route or does not lead to pods of this node.
func (w *watch) leadsOn(dst netip.Prefix, h hop) bool {
	return dst.Bits() == 0 || !h.leadsToOwnPods(w.links[h.ifindex])
}

// keeps reports whether a route is one of those that are kept.
func (w *watch) keeps(r *netlink.Route) bool {
	if !w.relevant(r) {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	dst, _ := destination(r)
	return slices.ContainsFunc(hops(r), func(h hop) bool { return w.leadsOn(dst, h) })
}

// changes are the differences from the last look.
type changes struct {
	all   bool
	links map[int]bool
}

// look returns the network as it is, and what has changed since the last look. On an error,
// the next look finds the same changes.
func (w *watch) look(all bool) (*network, changes, error) {
	w.mu.Lock()
	all = all || !w.known
	c := changes{all, w.changed}
	addrs, routes := all || w.addrsChanged, all || w.routesChanged
	w.changed, w.addrsChanged, w.routesChanged = make(map[int]bool), false, false
	w.readingAddrs, w.readingRoutes = addrs, routes
	if routes {
		clear(w.leadTo)
	}
	w.mu.Unlock()

	var errs []error
	if all {
		errs = append(errs, w.readLinks())
	}
	if addrs {
		list, err := w.list.addrs(nil)
		w.set(err, func() { w.addrs = list }, &w.addrsChanged)
		errs = append(errs, err)
	}
	if routes {
		list, err := w.list.routes(w.keeps)
		w.set(err, func() { w.routes = list }, &w.routesChanged)
		errs = append(errs, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.readingAddrs, w.readingRoutes = false, false
	if err := errors.Join(errs...); err != nil {
		w.known = w.known && !all
		for index := range c.links {
			w.changed[index] = true
		}
		return nil, changes{}, err
	}
	w.known = true
	return newNetwork(w.links, w.addrs, w.routes), c, nil
}

// set takes what has been read, or notes that it has to be read again.
func (w *watch) set(err error, take func(), again *bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		*again = true
		return
	}
	take()
}

// readLinks reads all devices. The kernel reports a change that comes meanwhile after
// it, and may already be in the list.
func (w *watch) readLinks() error {
	w.mu.Lock()
	w.reading = true
	w.mu.Unlock()
	list, err := w.list.links()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reading = false
	if err != nil {
		return err
	}
	links := make(map[int]netlink.Link, len(list))
	for _, l := range list {
		if index := l.Attrs().Index; !w.changed[index] {
			links[index] = l
		}
	}
	for index := range w.changed {
		if l := w.links[index]; l != nil {
			links[index] = l
		}
	}
	w.links = links
	return nil
}

// touch notes that a device has changed of which the kernel tells nothing.
func (w *watch) touch(ifindex int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed[ifindex] = true
}

// choose says of which devices every change counts.
func (w *watch) choose(chosen map[int]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.chosen = chosen
}
