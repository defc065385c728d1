package tables

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
)

// frontendRank is the order in which frontends are kept where a Service may not have all. Those of a
// rank are kept in the order of their keys.
type frontendRank int8

const (
	ofClusterIP frontendRank = iota // and the address itself
	ofNodePort
	ofLoadBalancer
	ofExternalIP
	ofAddress // load-balancer and external IPs by themselves
	ranks     // how many there are
)

// lastFrontend is the last one that a Service may have; nil: it may have all.
type lastFrontend struct {
	rank frontendRank // -1: it may have none
	key  FrontendKey
}

// keeps reports whether the Service may have a frontend.
func (l *lastFrontend) keeps(rank frontendRank, key FrontendKey) bool {
	return l == nil || rank < l.rank || rank == l.rank && key.Compare(l.key) <= 0
}

// keepsSome returns those of the addresses that may have a frontend.
func (l *lastFrontend) keepsSome(rank frontendRank, addrs []netip.Addr) []netip.Addr {
	switch {
	case l == nil || rank < l.rank:
		return addrs
	case rank > l.rank:
		return nil
	}
	return slices.DeleteFunc(addrs, func(a netip.Addr) bool { return a.Compare(l.key.Addr) > 0 })
}

// addresses are those of one family of a Service that have frontends.
type addresses struct {
	of   [ranks][]netip.Addr
	last *lastFrontend
}

func addressesOf(svc *model.Service, family model.Family, last *lastFrontend) addresses {
	a := addresses{last: last}
	for rank := range ranks {
		a.of[rank] = last.keepsSome(rank, ofFamily(family, rank.lists(svc, family)))
	}
	return a
}

// lists returns the addresses of a rank; some may be of another family.
func (r frontendRank) lists(svc *model.Service, family model.Family) [2][]netip.Addr {
	switch r {
	case ofClusterIP:
		return [2][]netip.Addr{svc.ClusterIPs}
	case ofNodePort:
		return [2][]netip.Addr{{unspecified(family)}}
	case ofLoadBalancer:
		return [2][]netip.Addr{svc.LoadBalancerIPs}
	case ofExternalIP:
		return [2][]netip.Addr{svc.ExternalIPs}
	}
	return [2][]netip.Addr{svc.ExternalIPs, svc.LoadBalancerIPs}
}

func ofFamily(family model.Family, lists [2][]netip.Addr) (addrs []netip.Addr) {
	for _, list := range lists {
		for _, a := range list {
			if model.FamilyOf(a) == family {
				addrs = append(addrs, a.Unmap())
			}
		}
	}
	return addrs
}

// alone are the addresses without a port. They tell the programs which addresses Services have: later
// fragments to them are waited for. A ClusterIP, which no host has, answers echo requests, and its ports
// that the Service does not declare are refused. Several Services may share the other addresses, and
// hosts may have them.
func (a *addresses) alone() []DesiredFrontend {
	var fs []DesiredFrontend
	add := func(rank frontendRank, addrs []netip.Addr, flags FrontendFlags) {
		for _, addr := range addrs {
			if key := (FrontendKey{Addr: addr}); a.last.keeps(rank, key) {
				fs = append(fs, DesiredFrontend{key, FrontendAddress, flags})
			}
		}
	}
	add(ofClusterIP, a.of[ofClusterIP], RefuseOthers)
	add(ofAddress, a.of[ofAddress], 0)
	return fs
}

// lastOf returns the last frontend of a Service that may have so many; nil when it has no more. An
// address that is listed several times counts as often.
func lastOf(svc *model.Service, ports *[len(model.Families)][]model.ServicePort, most int) *lastFrontend {
	last := &lastFrontend{rank: -1}
	for rank := range ranks {
		for i, family := range model.Families { // an IPv4 address is less than one of IPv6
			keys := rank.keys(ports[i])
			addrs := ofFamily(family, rank.lists(svc, family))
			slices.SortFunc(addrs, netip.Addr.Compare)
			for len(addrs) > 0 && len(keys) > 0 {
				times := sameAtFirst(addrs)
				all := times * len(keys)
				if most > 0 {
					*last = lastFrontend{rank, keys[(min(most, all)-1)/times]}
					last.key.Addr = addrs[0]
				}
				if most < all {
					return last
				}
				most, addrs = most-all, addrs[times:]
			}
		}
	}
	return nil
}

// sameAtFirst returns how many addresses of a sorted list are the first one.
func sameAtFirst(addrs []netip.Addr) int {
	n := 1
	for n < len(addrs) && addrs[n] == addrs[0] {
		n++
	}
	return n
}

// keys returns those of the frontends of an address, without it, in order.
func (r frontendRank) keys(ports []model.ServicePort) (keys []FrontendKey) {
	if (r == ofClusterIP || r == ofAddress) && len(ports) > 0 {
		keys = append(keys, FrontendKey{})
	}
	for _, p := range ports {
		switch {
		case r == ofNodePort && p.NodePort != 0:
			keys = append(keys, FrontendKey{Port: p.NodePort, Protocol: p.Protocol})
		case r != ofNodePort && r != ofAddress:
			keys = append(keys, FrontendKey{Port: p.Port, Protocol: p.Protocol})
		}
	}
	slices.SortFunc(keys, func(a, b FrontendKey) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	})
	return keys
}
