package datapath

import (
	"net"
	"net/netip"
	"slices"
)

// sources are the addresses that packets may be sent from, which then come back to this node.
type sources struct {
	*network
	nodeAddrs []netip.Addr
	// keep says that an address in use stays while the machine has it.
	keep       bool
	gateways   map[int][]netip.Addr // by the device that they are behind
	elsewhere  []netip.Addr         // the node's, of any device
	ofDefaults []netip.Addr         // of devices with a default route
	ofLoopback []netip.Addr         // of a host that announces its own address, over devices without any
}

func newSources(n *network, nodeAddrs []netip.Addr, keep bool) *sources {
	s := &sources{network: n, nodeAddrs: nodeAddrs, keep: keep, gateways: make(map[int][]netip.Addr)}
	for _, h := range n.hopsTo(func(netip.Prefix) bool { return true }) {
		if h.addr.IsValid() && !slices.Contains(s.gateways[h.ifindex], h.addr) {
			s.gateways[h.ifindex] = append(s.gateways[h.ifindex], h.addr)
		}
	}
	for _, addr := range nodeAddrs {
		if _, held := n.held[addr]; held {
			s.elsewhere = append(s.elsewhere, addr)
		}
	}
	defaults := n.defaultDevices()
	for _, l := range n.links {
		if defaults[l.Attrs().Index] {
			s.ofDefaults = append(s.ofDefaults, n.addrs[l.Attrs().Index]...)
		}
		if l.Attrs().Flags&net.FlagLoopback != 0 {
			s.ofLoopback = append(s.ofLoopback, n.addrs[l.Attrs().Index]...)
		}
	}
	return s
}

// of returns the address of a family that packets which leave by a device are sent from: of the best class
// that has any the one in use, else the first. The zero value is none.
func (s *sources) of(ifindex int, is func(netip.Addr) bool, inUse netip.Addr) netip.Addr {
	if _, held := s.held[inUse]; held && s.keep {
		return inUse
	}
	for _, class := range s.classes(ifindex) {
		if i := slices.IndexFunc(class, is); i >= 0 {
			if slices.Contains(class, inUse) {
				return inUse
			}
			return class[i]
		}
	}
	return netip.Addr{}
}

// classes returns the addresses that packets which leave by a device may be sent from, the best first:
// node IPs of the device, by which other machines know this one; its addresses in the network of a next hop, as
// netfilter's masquerading takes them (inet_select_addr); its others; those of the node and of default routes;
// its deprecated ones, which RFC 6724 (5, rule 3) avoids while there are others; and those of the loopback device, where
// inet_select_addr looks next.
func (s *sources) classes(ifindex int) [][]netip.Addr {
	own := s.addrs[ifindex]
	var nodeIPs, beside []netip.Addr
	for _, addr := range s.nodeAddrs {
		if s.networkOf(ifindex, addr).IsValid() {
			nodeIPs = append(nodeIPs, addr)
		}
	}
	for _, addr := range own {
		if slices.ContainsFunc(s.gateways[ifindex], s.networkOf(ifindex, addr).Contains) {
			beside = append(beside, addr)
		}
	}
	return [][]netip.Addr{nodeIPs, beside, own, s.elsewhere, s.ofDefaults, s.deprecated[ifindex], s.ofLoopback}
}

// networkOf returns an address of a device with the length of its network's prefix; the zero value when the
// device does not have it.
func (s *sources) networkOf(ifindex int, addr netip.Addr) netip.Prefix {
	for _, p := range s.networks[ifindex] {
		if p.Addr() == addr {
			return p
		}
	}
	return netip.Prefix{}
}
