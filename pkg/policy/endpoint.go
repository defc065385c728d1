package policy

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
)

// endpoint is a backend that may come into a set.
type endpoint struct {
	Backend
	order int // among all endpoints of the Service port, as they were listed
	from  *model.Endpoint
}

// join returns the endpoints of every slice port that belongs to the Service
// port, in the order of the slices.
func join(port model.ServicePort, family model.Family, list []*model.Slice, node *model.Node) []endpoint {
	n := 0
	eachPort(port, family, list, func(s *model.Slice, _ uint16) { n += len(s.Endpoints) })
	eps := make([]endpoint, 0, n)
	eachPort(port, family, list, func(s *model.Slice, target uint16) {
		for i := range s.Endpoints {
			ep := &s.Endpoints[i]
			eps = append(eps, endpoint{
				Backend: Backend{
					AddrPort:    netip.AddrPortFrom(ep.Addr, target),
					Ready:       ep.Ready,
					Serving:     ep.Serving,
					Terminating: ep.Terminating,
					OnNode:      node.Name != "" && ep.NodeName == node.Name,
				},
				order: len(eps),
				from:  ep,
			})
		}
	})
	return eps
}

// eachPort calls f for every slice port that belongs to the Service port.
func eachPort(port model.ServicePort, family model.Family, list []*model.Slice, f func(s *model.Slice, target uint16)) {
	for _, s := range list {
		if s.Family != family {
			continue
		}
		for _, p := range s.Ports {
			if p.Name == port.Name && p.Protocol == port.Protocol {
				f(s, p.Port)
			}
		}
	}
}

// unique sorts eps by address and port and leaves one of each: the last one that
// is not terminating, or the first when all are. A pod may stand in two slices
// while a controller moves it; its newer entry counts, unless that only says
// that an earlier pod of the same address goes away.
//
// It works in place.
func unique(eps []endpoint) []endpoint {
	slices.SortFunc(eps, func(a, b endpoint) int {
		if c := a.AddrPort.Compare(b.AddrPort); c != 0 {
			return c
		}
		return cmp.Compare(a.order, b.order)
	})
	kept := eps[:0]
	for _, e := range eps {
		last := len(kept) - 1
		switch {
		case last < 0 || kept[last].AddrPort != e.AddrPort:
			kept = append(kept, e)
		case !e.Terminating:
			kept[last] = e
		}
	}
	return kept
}
