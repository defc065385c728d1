package policy

import (
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
)

// Serves reports whether an endpoint is one that serves a port of svc, be it terminating
// or none that this node would choose: what is connected to it may stay. list are all the
// slices of the Service.
func Serves(svc *model.Service, port model.PortName, endpoint netip.AddrPort, list []*model.Slice) bool {
	family := model.FamilyOf(endpoint.Addr())
	if !svc.HasFamily(family) || !slices.ContainsFunc(svc.Ports, func(p model.ServicePort) bool {
		return p.Name == port.Port && p.Protocol == port.Protocol
	}) {
		return false
	}
	target := model.SlicePort{Name: port.Port, Protocol: port.Protocol, Port: endpoint.Port()}
	for _, s := range list {
		if s.Family == family && inUse(s, endpoint.Addr()) && slices.Contains(s.Ports, target) {
			return true
		}
	}
	return false
}

// inUse reports whether a slice lists an address that answers.
func inUse(s *model.Slice, addr netip.Addr) bool {
	i, _ := slices.BinarySearchFunc(s.Endpoints, addr, func(ep model.Endpoint, addr netip.Addr) int { return ep.Addr.Compare(addr) })
	for ; i < len(s.Endpoints) && s.Endpoints[i].Addr == addr; i++ {
		if InUse(&s.Endpoints[i]) {
			return true
		}
	}
	return false
}

// InUse reports whether an endpoint answers: what goes to it stays. kube-proxy takes neither policies, hints nor
// termination into account for that, for UDP to be as TCP (CleanStaleEntries of v1.36).
func InUse(ep *model.Endpoint) bool { return ep.Ready || ep.Serving }
