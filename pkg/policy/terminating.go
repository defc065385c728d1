package policy

import (
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
)

// Terminating returns the endpoints of TCP of a Service that terminate on the node, in order.
func Terminating(svc *model.Service, list []*model.Slice, node *model.LocalNode) []netip.AddrPort {
	var found []netip.AddrPort
	for _, family := range model.Families {
		for _, port := range svc.Ports {
			if port.Protocol != model.TCP || !svc.HasFamily(family) {
				continue
			}
			eachPort(port, family, list, func(slice *model.Slice, target uint16) {
				for i := range slice.Endpoints {
					if e := &slice.Endpoints[i]; e.Terminating && onNode(e, node) {
						found = append(found, netip.AddrPortFrom(e.Addr, target))
					}
				}
			})
		}
	}
	slices.SortFunc(found, netip.AddrPort.Compare)
	return slices.Compact(found)
}
