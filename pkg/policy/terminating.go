package policy

import (
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
)

// MaxTerminating is how many endpoints of a Service [Terminating] returns at most. A node has some
// hundred pods; an EndpointSlice may say that it has any number, at each of hundreds of ports.
const MaxTerminating = 1024

// Terminating returns the endpoints of TCP of a Service that terminate on the node, in order; of more
// than [MaxTerminating] those of the first ports.
func Terminating(svc *model.Service, list []*model.Slice, node *model.LocalNode) []netip.AddrPort {
	leaving := leavingOf(list, node)
	if len(leaving) == 0 {
		return nil
	}
	var found []netip.AddrPort
	eachTCP(svc, list, func(targets []target) {
		for _, t := range targets {
			some := leaving[t.place]
			for _, addr := range some[:min(len(some), MaxTerminating-len(found))] {
				found = append(found, netip.AddrPortFrom(addr, t.port))
			}
		}
	})
	slices.SortFunc(found, netip.AddrPort.Compare)
	return slices.Compact(found)
}

// leavingOf returns the addresses that terminate on the node, by the place of their slice.
func leavingOf(list []*model.Slice, node *model.LocalNode) map[int32][]netip.Addr {
	var leaving map[int32][]netip.Addr
	for place, slice := range list {
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if !e.Terminating || !onNode(e, node) {
				continue
			}
			if leaving == nil {
				leaving = make(map[int32][]netip.Addr)
			}
			leaving[int32(place)] = append(leaving[int32(place)], e.Addr)
		}
	}
	return leaving
}

// eachTCP calls fn with the targets of each port of TCP of the Service.
func eachTCP(svc *model.Service, list []*model.Slice, fn func([]target)) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	for _, family := range model.Families {
		if !svc.HasFamily(family) {
			continue
		}
		joined := Join(svc, family, list)
		for i := range svc.Ports {
			if svc.Ports[i].Protocol == model.TCP {
				fn(joined.targets(s, i))
			}
		}
	}
}
