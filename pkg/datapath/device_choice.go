package datapath

import (
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"path"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/devicemap"
)

// The words that [Options.Devices] may be in place of patterns.
const (
	DevicesAuto = "auto"
	DevicesNone = "none"
)

// CheckDevices returns an error when patterns are no valid [Options.Devices].
func CheckDevices(patterns []string) error {
	for _, p := range patterns {
		if (p == DevicesAuto || p == DevicesNone) && len(patterns) > 1 {
			return fmt.Errorf("%q stands alone", p)
		}
		if _, err := path.Match(p, ""); err != nil || p == "" {
			return fmt.Errorf("%q is no pattern of device names: * ? and [a-z] stand for others", p)
		}
	}
	return nil
}

// network are the kernel's devices, addresses and routes.
type network struct {
	links []netlink.Link
	// addrs are the addresses to send from, by ifindex: global, none of them
	// secondary or deprecated, in the kernel's order.
	addrs map[int][]netip.Addr
	// deprecated are those that would be in addrs if they were not deprecated.
	deprecated map[int][]netip.Addr
	// networks are all addresses at which NodePorts may answer, with the length of their network's
	// prefix, by ifindex.
	networks map[int][]netip.Prefix
	// held are all addresses of the machine that are in use.
	held   map[netip.Addr]int // ifindex
	routes []netlink.Route    // of the main table
	// generic says that XDP serves devices where the kernel receives packets, not in
	// drivers.
	generic bool
}

// newNetwork returns the network of these devices, by index, addresses and routes.
func newNetwork(links map[int]netlink.Link, addrs []netlink.Addr, routes []netlink.Route) *network {
	n := &network{
		addrs: make(map[int][]netip.Addr), deprecated: make(map[int][]netip.Addr), networks: make(map[int][]netip.Prefix),
		held: make(map[netip.Addr]int), routes: routes,
	}
	for _, index := range slices.Sorted(maps.Keys(links)) {
		n.links = append(n.links, links[index])
	}
	for i := range addrs {
		n.addAddr(&addrs[i])
	}
	return n
}

// mac returns the Ethernet address of a device, which is zero when the device is gone.
func (n *network) mac(ifindex int) (mac devicemap.MAC) {
	if l := n.link(ifindex); l != nil {
		copy(mac[:], l.Attrs().HardwareAddr)
	}
	return mac
}

func (n *network) addAddr(a *netlink.Addr) {
	addr, ok := netip.AddrFromSlice(a.IP)
	if !ok || a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 {
		return
	}
	addr = addr.Unmap()
	n.held[addr] = a.LinkIndex
	if !addr.Is6() || !addr.IsLinkLocalUnicast() {
		ones, _ := a.Mask.Size()
		n.networks[a.LinkIndex] = append(n.networks[a.LinkIndex], netip.PrefixFrom(addr, ones))
	}
	if a.Scope != unix.RT_SCOPE_UNIVERSE || a.Flags&unix.IFA_F_SECONDARY != 0 {
		return
	}
	to := n.addrs
	if a.Flags&unix.IFA_F_DEPRECATED != 0 {
		to = n.deprecated
	}
	to[a.LinkIndex] = append(to[a.LinkIndex], addr)
}

// hop is a device that a route leads to, perhaps by a gateway.
type hop struct {
	ifindex int
	gateway bool
	addr    netip.Addr // of the gateway, if that is of the route's family
}

func newHop(ifindex int, gateway net.IP, via netlink.Destination) hop {
	addr, _ := netip.AddrFromSlice(gateway)
	return hop{ifindex, gateway != nil || via != nil, addr.Unmap()}
}

// leadsToOwnPods reports whether the hop leads to pods of this node. l is its device; nil: it is not known.
func (h hop) leadsToOwnPods(l netlink.Link) bool { return !h.gateway && l != nil && leadsToPods(l) }

func hops(r *netlink.Route) []hop {
	if len(r.MultiPath) == 0 {
		return []hop{newHop(r.LinkIndex, r.Gw, r.Via)}
	}
	list := make([]hop, 0, len(r.MultiPath))
	for _, p := range r.MultiPath {
		list = append(list, newHop(p.LinkIndex, p.Gw, p.Via))
	}
	return list
}

// destination returns where a unicast route leads.
func destination(r *netlink.Route) (netip.Prefix, bool) {
	if r.Type != unix.RTN_UNICAST {
		return netip.Prefix{}, false
	}
	if r.Dst == nil {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0), true
	}
	addr, ok := netip.AddrFromSlice(r.Dst.IP)
	ones, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(addr, ones), ok
}

// hopsTo are the hops of the routes to destinations that is holds for, each with its destination.
func (n *network) hopsTo(is func(netip.Prefix) bool) iter.Seq2[netip.Prefix, hop] {
	return func(yield func(netip.Prefix, hop) bool) {
		for i := range n.routes {
			dst, ok := destination(&n.routes[i])
			if !ok || !is(dst) {
				continue
			}
			for _, h := range hops(&n.routes[i]) {
				if !yield(dst, h) {
					return
				}
			}
		}
	}
}

// hopsToPods are those of routes to pods.
func (n *network) hopsToPods(ranges []netip.Prefix) iter.Seq2[netip.Prefix, hop] {
	return n.hopsTo(func(dst netip.Prefix) bool { return within(dst, ranges) })
}

// defaultDevices returns the devices of default routes.
func (n *network) defaultDevices() map[int]bool {
	devices := make(map[int]bool)
	for _, h := range n.hopsTo(func(dst netip.Prefix) bool { return dst.Bits() == 0 }) {
		devices[h.ifindex] = true
	}
	return devices
}

// within reports whether a prefix lies in one of the ranges.
func within(p netip.Prefix, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Bits() <= p.Bits() && r.Contains(p.Addr()) })
}

// podRoutes returns, by the device they lead to, a route to pods of other nodes.
// One that leads to a bridge or to a pod's device without a gateway is to a pod of
// this node.
func (n *network) podRoutes(ranges []netip.Prefix) map[int]netip.Prefix {
	links := make(map[int]netlink.Link, len(n.links))
	for _, l := range n.links {
		links[l.Attrs().Index] = l
	}
	devices := make(map[int]netip.Prefix)
	for dst, h := range n.hopsToPods(ranges) {
		if _, known := devices[h.ifindex]; !known && !h.leadsToOwnPods(links[h.ifindex]) {
			devices[h.ifindex] = dst
		}
	}
	return devices
}

// leadsToAllPods returns the devices to which a route to pods leads by an address of this machine:
// which node the pods are on is then known to who sends the packets on there. Cilium has such
// routes to the pods of all nodes.
func (n *network) leadsToAllPods(ranges []netip.Prefix) map[int]bool {
	devices := make(map[int]bool)
	for _, h := range n.hopsToPods(ranges) {
		if _, own := n.held[h.addr]; own {
			devices[h.ifindex] = true
		}
	}
	return devices
}

// leadsToPods reports whether pods of this node may be behind the device.
func leadsToPods(l netlink.Link) bool {
	switch l.Type() {
	case "bridge", "veth", "netkit":
		return true
	case "tuntap":
		return !noEthernet(l)
	}
	return false
}

// isOverlay reports whether the device carries packets between nodes inside of
// other packets.
func isOverlay(l netlink.Link) bool {
	switch l.Type() {
	case "vxlan", "geneve", "ipip", "sit", "ip6tnl", "gre", "ip6gre", "gretap", "ip6gretap", "wireguard":
		return true
	case "tuntap":
		return noEthernet(l)
	}
	return false
}

// noEthernet reports whether the device's packets start with the IP header.
func noEthernet(l netlink.Link) bool { return l.Attrs().EncapType != "ether" }

// headless are the types of devices whose packets start with the IP header: ARPHRD_NONE, those of tunnels, PPP,
// and two for which netlink has no name, ARPHRD_RAWIP and ARPHRD_IP6GRE.
var headless = []string{"none", "ipip", "tunnel6", "sit", "gre", "ppp", "unknown519", "unknown823"}

// knowsFrames reports whether the programs know what the device's packets start with.
func knowsFrames(l netlink.Link) bool {
	return !noEthernet(l) || slices.Contains(headless, l.Attrs().EncapType)
}

// chosen is a device that packets are served on.
type chosen struct {
	link   netlink.Link
	reason string
}

// choice is what devices are chosen by, beside the network itself.
type choice struct {
	patterns  []string // [Options.Devices]
	nodeAddrs []netip.Addr
	podRanges []netip.Prefix
	ownPods   []netip.Prefix // the ranges of this node's pods, as far as they are known beside podRanges
	nodePorts []netip.Prefix // CIDRs of nodePortAddresses
	// forPods reports whether what is configured says that pods are behind a device; nil is none.
	forPods func(name string) bool
}

// choose returns the devices that face clients or other nodes, by ifindex, those apart whose frames
// the programs do not know. Loopback never does.
func (n *network) choose(c *choice) (served, unknown []chosen) {
	reason := func(l netlink.Link) string { return matching(c.patterns, l.Attrs().Name) }
	if slices.Equal(c.patterns, []string{DevicesAuto}) {
		reason = n.automatic(c)
	}
	var list []chosen
	for _, l := range n.links {
		if l.Attrs().Flags&net.FlagLoopback != 0 {
			continue
		}
		if r := reason(l); r != "" {
			list = append(list, chosen{l, r})
		}
	}
	slices.SortFunc(list, func(a, b chosen) int { return a.link.Attrs().Index - b.link.Attrs().Index })
	for _, c := range n.withoutPorts(list) {
		if knowsFrames(c.link) {
			served = append(served, c)
		} else {
			unknown = append(unknown, c)
		}
	}
	return served, unknown
}

// withoutPorts leaves out the ports of bonds that are chosen themselves: packets are
// seen again there.
func (n *network) withoutPorts(list []chosen) []chosen {
	bonds := make(map[int]bool)
	for _, c := range list {
		bonds[c.link.Attrs().Index] = c.link.Type() == "bond" || c.link.Type() == "team"
	}
	return slices.DeleteFunc(list, func(c chosen) bool { return bonds[c.link.Attrs().MasterIndex] })
}

// matching returns why a device is chosen by its name, "" when it is not.
func matching(patterns []string, name string) string {
	for _, p := range patterns {
		if ok, err := path.Match(p, name); ok && err == nil {
			return fmt.Sprintf("matches %s of devices", p)
		}
	}
	return ""
}

// pods returns the devices of pods: those whose names match, except the ones that
// face clients.
func (n *network) pods(patterns []string, devices []devicemap.Device) []netlink.Link {
	var list []netlink.Link
	for _, l := range n.links {
		faces := slices.ContainsFunc(devices, func(d devicemap.Device) bool { return d.Ifindex == l.Attrs().Index })
		if !faces && l.Attrs().Flags&net.FlagLoopback == 0 && matching(patterns, l.Attrs().Name) != "" {
			list = append(list, l)
		}
	}
	return list
}

// masqueraded returns the devices that backends may be behind which see this node for
// their client, except those that have other programs. Of a bridge and its ports, the
// bridge gets what is sent to the node.
func (n *network) masqueraded(devices []devicemap.Device, pods []netlink.Link) []netlink.Link {
	ports := n.ports()
	return slices.DeleteFunc(slices.Clone(n.links), func(l netlink.Link) bool {
		ifindex := l.Attrs().Index
		return !leadsToPods(l) || ports[ifindex] ||
			slices.ContainsFunc(devices, func(d devicemap.Device) bool { return d.Ifindex == ifindex }) ||
			slices.ContainsFunc(pods, func(p netlink.Link) bool { return p.Attrs().Index == ifindex })
	})
}

// automatic returns a function that says why a device is chosen, "" when it is not.
func (n *network) automatic(c *choice) func(netlink.Link) string {
	defaults, podRoutes := n.defaultDevices(), n.podRoutes(c.podRanges)
	nodeDevices := make(map[int]netip.Addr)
	for _, addr := range c.nodeAddrs {
		if ifindex, ok := n.held[addr]; ok {
			nodeDevices[ifindex] = addr
		}
	}
	ports, bridges := n.ports(), n.bridgesWithUplink()
	return func(l netlink.Link) string {
		ifindex := l.Attrs().Index
		if defaults[ifindex] {
			return "default route"
		}
		if addr, ok := nodeDevices[ifindex]; ok {
			return devicemap.ReasonNodeIP + addr.String()
		}
		if isOverlay(l) && isUp(l) && !ports[ifindex] {
			return fmt.Sprintf("%s (%s)", devicemap.ReasonOverlay, l.Type())
		}
		if route, ok := podRoutes[ifindex]; ok {
			return fmt.Sprintf("route to pods in %s", route)
		}
		if cidr, ok := n.named(l, c); ok && !ports[ifindex] {
			return fmt.Sprintf("in %s of nodePortAddresses", cidr)
		}
		if addr, ok := n.addressed(l, c); ok && !ports[ifindex] && n.meetsOthers(l, c, bridges) {
			return devicemap.ReasonAddress + addr.String()
		}
		return ""
	}
}

// named returns the CIDR of nodePortAddresses that a device has an address in. One of
// everything (/0) names no device. One wider than the device's network does not either when
// pods may be behind the device, and addresses of pods never do.
func (n *network) named(l netlink.Link, c *choice) (netip.Prefix, bool) {
	for _, own := range n.notOfPods(l, c) {
		for _, cidr := range c.nodePorts {
			if cidr.Bits() > 0 && cidr.Contains(own.Addr()) && (cidr.Bits() >= own.Bits() || !leadsToPods(l)) {
				return cidr, true
			}
		}
	}
	return netip.Prefix{}, false
}

// notOfPods returns the addresses of a device that are in no range of pods.
func (n *network) notOfPods(l netlink.Link, c *choice) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(n.networks[l.Attrs().Index]), func(own netip.Prefix) bool {
		addr := netip.PrefixFrom(own.Addr(), own.Addr().BitLen())
		return within(addr, c.podRanges) || within(addr, c.ownPods)
	})
}

// addressed returns an address of a device to which other machines can send: the first that is
// neither link-local nor one of pods.
func (n *network) addressed(l netlink.Link, c *choice) (netip.Addr, bool) {
	for _, own := range n.notOfPods(l, c) {
		if own.Addr().IsGlobalUnicast() {
			return own.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// meetsOthers reports whether packets of other machines may come in at a device that is known by
// its address alone. One of a VRF has routes of its own, which do not lead to endpoints. One whose frames
// are not known, as of InfiniBand, is passed over without a fault.
func (n *network) meetsOthers(l netlink.Link, c *choice, bridges map[int]bool) bool {
	if !isUp(l) || !knowsFrames(l) || c.forPods != nil && c.forPods(l.Attrs().Name) {
		return false
	}
	if master := n.link(l.Attrs().MasterIndex); master != nil && master.Type() == "vrf" {
		return false
	}
	return isUplink(l) || bridges[l.Attrs().Index]
}

// isUplink reports whether a device of this type leads out of the machine. One that may lead to
// pods is none, for endpoints there would be taken for those of another node and see this one for
// their client; an internal port of Open vSwitch may be the gateway of pods.
func isUplink(l netlink.Link) bool {
	switch l.Type() {
	case "dummy", "vrf", "openvswitch":
		return false
	}
	return !leadsToPods(l) && !isOverlay(l)
}

// bridgesWithUplink returns the bridges of which a port leads out of the machine.
func (n *network) bridgesWithUplink() map[int]bool {
	uplinks := make(map[int]bool) // of a device with ports
	for _, l := range n.links {
		if isUplink(l) {
			uplinks[l.Attrs().MasterIndex] = true
		}
	}
	bridges := make(map[int]bool)
	for _, l := range n.links {
		bridges[l.Attrs().Index] = l.Type() == "bridge" && uplinks[l.Attrs().Index]
	}
	return bridges
}

func isUp(l netlink.Link) bool { return l.Attrs().Flags&net.FlagUp != 0 }

// ports returns the devices that hand their packets to a bridge or a bond, where
// they are seen again.
func (n *network) ports() map[int]bool {
	types := make(map[int]string)
	for _, l := range n.links {
		types[l.Attrs().Index] = l.Type()
	}
	ports := make(map[int]bool)
	for _, l := range n.links {
		switch types[l.Attrs().MasterIndex] {
		case "bridge", "bond", "team", "openvswitch":
			ports[l.Attrs().Index] = true
		}
	}
	return ports
}
