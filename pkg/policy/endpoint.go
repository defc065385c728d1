package policy

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"

	"github.com/beeline-lb/beeline/pkg/model"
)

// endpoint is a backend that may come into a set.
type endpoint struct {
	Backend
	from *model.Endpoint
}

// rank is what endpoints are ordered by: address and port, then the place in which
// they were listed. Numbers compare several times faster than netip's types.
type rank struct {
	high, low uint64 // of the address
	port      uint16
	place     int32
}

// scratch is the memory of one call of [Select], used again by the next: a call
// for a large Service would else leave as much for the garbage collector.
type scratch struct {
	listed, ordered []endpoint
	ranks           []rank
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// join appends the endpoints of every slice port that belongs to the Service port,
// in the order of the slices.
func join(eps []endpoint, port model.ServicePort, family model.Family, list []*model.Slice, node *model.Node) []endpoint {
	eachPort(port, family, list, func(s *model.Slice, target uint16) {
		weight := uint16(1)
		if s.Weight != nil {
			weight = uint16(*s.Weight)
		}
		for i := range s.Endpoints {
			ep := &s.Endpoints[i]
			eps = append(eps, endpoint{
				Backend: Backend{
					AddrPort:    netip.AddrPortFrom(ep.Addr, target),
					Ready:       ep.Ready,
					Serving:     ep.Serving,
					Terminating: ep.Terminating,
					NodeName:    ep.NodeName,
					OnNode:      node.Name != "" && ep.NodeName == node.Name,
					Weight:      weight,
				},
				from: ep,
			})
		}
	})
	return eps
}

// weigh multiplies the weights by those of the endpoints' zones.
func weigh(eps []endpoint, zones map[string]uint8) {
	if len(zones) == 0 {
		return
	}
	for i := range eps {
		if weight, ok := zones[eps[i].from.Zone]; ok {
			eps[i].Weight *= uint16(weight)
		}
	}
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

// unique returns the listed endpoints by address and port, one of each: the last
// one that is not terminating, or the first when all are. A pod may stand in two
// slices while a controller moves it; its newer entry counts, unless that only says
// that an earlier pod of the same address goes away.
func (s *scratch) unique() []endpoint {
	s.ranks = s.ranks[:0]
	for i := range s.listed {
		addr := s.listed[i].AddrPort.Addr().As16()
		s.ranks = append(s.ranks, rank{
			high:  binary.BigEndian.Uint64(addr[:8]),
			low:   binary.BigEndian.Uint64(addr[8:]),
			port:  s.listed[i].AddrPort.Port(),
			place: int32(i),
		})
	}
	slices.SortFunc(s.ranks, rank.compare)
	s.ordered = s.ordered[:0]
	for _, r := range s.ranks {
		e := &s.listed[r.place]
		last := len(s.ordered) - 1
		switch {
		case last < 0 || s.ordered[last].AddrPort != e.AddrPort:
			s.ordered = append(s.ordered, *e)
		case !e.Terminating:
			s.ordered[last] = *e
		}
	}
	return s.ordered
}

func (r rank) compare(o rank) int {
	switch {
	case r.high != o.high:
		return cmp.Compare(r.high, o.high)
	case r.low != o.low:
		return cmp.Compare(r.low, o.low)
	case r.port != o.port:
		return cmp.Compare(r.port, o.port)
	}
	return cmp.Compare(r.place, o.place)
}
