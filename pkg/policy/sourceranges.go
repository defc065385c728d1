package policy

import (
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/model"
)

// SourceRanges returns the sources that may use the Service's load-balancer IPs
// of a family. Unless restricted, every source may and prefixes is nil: no range
// of this family is given, or one of them is all of it (/0).
//
// The load-balancer IPs themselves are among the sources: some clouds give them to
// every node, whose own connections then come from there (as in kube-proxy).
func SourceRanges(svc *model.Service, family model.Family) (prefixes []netip.Prefix, restricted bool) {
	for _, p := range svc.SourceRanges {
		if model.FamilyOf(p.Addr()) != family {
			continue
		}
		if p.Bits() == 0 {
			return nil, false
		}
		prefixes = append(prefixes, p)
	}
	if len(prefixes) == 0 {
		return nil, false
	}
	given := make(map[netip.Prefix]struct{}, len(prefixes))
	for _, p := range prefixes {
		given[p] = struct{}{}
	}
	for _, addr := range svc.LoadBalancerIPs {
		own := netip.PrefixFrom(addr, addr.BitLen())
		if _, twice := given[own]; !twice && model.FamilyOf(addr) == family {
			given[own] = struct{}{}
			prefixes = append(prefixes, own)
		}
	}
	return prefixes, true
}
