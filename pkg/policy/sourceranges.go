package policy

import (
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/model"
)

// SourceRanges returns the sources that may use the Service's load-balancer IPs
// of a family. Unless restricted, every source may and prefixes is nil: no range
// of this family is given, or one of them is all of it (/0).
//
// The programs let in a client of the node with the load-balancer IP itself, too: some clouds
// give it to every node, whose own connections then come from there (as in kube-proxy).
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
	return prefixes, true
}
