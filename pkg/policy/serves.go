package policy

import (
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/model"
)

// Serves reports whether an endpoint is one that serves a port of svc, be it terminating
// or none that this node would choose: what is connected to it may stay. slices are all the
// slices of the Service.
func Serves(svc *model.Service, port model.PortName, endpoint netip.AddrPort, slices []*model.Slice) bool {
	serves := false
	family := model.FamilyOf(endpoint.Addr())
	if !svc.HasFamily(family) {
		return false
	}
	for _, p := range svc.Ports {
		if p.Name != port.Port || p.Protocol != port.Protocol {
			continue
		}
		eachPort(p, family, slices, func(s *model.Slice, target uint16) {
			for i := range s.Endpoints {
				ep := &s.Endpoints[i]
				serves = serves || target == endpoint.Port() && ep.Addr == endpoint.Addr() && InUse(ep)
			}
		})
	}
	return serves
}

// InUse reports whether an endpoint answers.
func InUse(ep *model.Endpoint) bool { return ep.Ready || ep.Serving }
