package policy

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/beeline-lb/beeline/pkg/model"
)

// endpoint is one that may come into a set.
type endpoint struct {
	from                                *model.Endpoint
	port                                uint16
	weight                              uint16
	ready, serving, terminating, onNode bool
	inCluster, inLocal                  bool // sets that it is in
	ejected                             bool
	spare                               bool // of a zone to which nothing spills over
}

// draining says that the endpoint is terminating but still serves: it is
// used when there is no Ready one.
func (e *endpoint) draining() bool { return e.serving && e.terminating }

// inSet says that the endpoint is in a set.
func (e *endpoint) inSet() bool { return e.inCluster || e.inLocal }

func (e *endpoint) backend() Backend {
	return Backend{
		AddrPort:    netip.AddrPortFrom(e.from.Addr, e.port),
		NodeName:    e.from.NodeName,
		Weight:      e.weight,
		Ready:       e.ready,
		Serving:     e.serving,
		Terminating: e.terminating,
		OnNode:      e.onNode,
		InCluster:   e.inCluster,
		InLocal:     e.inLocal,
	}
}

// scratch is the memory of one call of [Select], used again by the next: a call
// for a large Service would else leave as much for the garbage collector.
type scratch struct {
	listed, ordered []endpoint
	ranks           ranks
	targets         []target
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// endpoints returns the first endpoints, so many at most, that the slices of a Service port's targets
// list, weighed, in the order of their AddrPort. They last until the scratch is used again.
func (s *scratch) endpoints(svc *model.Service, targets []target, node *model.LocalNode, limit int) []endpoint {
	s.join(targets, node, limit)
	weigh(s.listed, svc.ZoneWeights)
	eps := s.unique()
	if svc.SlowStart > 0 {
		start(eps, svc.Starting)
	}
	return eps
}

// join lists the first endpoints, so many at most, of every slice port that belongs to a Service
// port, in the order of the slices.
func (s *scratch) join(targets []target, node *model.LocalNode, limit int) {
	s.listed, s.ranks = s.listed[:0], s.ranks[:0]
	for _, t := range targets {
		weight := uint16(1)
		if t.slice.Weight != nil {
			weight = uint16(*t.slice.Weight)
		}
		some := t.slice.Endpoints
		some = some[:min(len(some), limit-len(s.listed))]
		for i := range some {
			ep := &some[i]
			s.ranks.add(ep.Addr, t.port, len(s.listed))
			s.listed = append(s.listed, endpoint{
				from:        ep,
				port:        t.port,
				weight:      weight,
				ready:       ep.Ready,
				serving:     ep.Serving,
				terminating: ep.Terminating,
				onNode:      onNode(ep, node),
			})
		}
	}
}

// weigh multiplies the weights by those of the endpoints' zones.
func weigh(eps []endpoint, zones map[string]uint8) {
	if len(zones) == 0 {
		return
	}
	for i := range eps {
		if weight, ok := zones[eps[i].from.Zone]; ok {
			eps[i].weight *= uint16(weight)
		}
	}
}

// onNode reports whether an endpoint is known to be on the node.
func onNode(e *model.Endpoint, node *model.LocalNode) bool {
	return node.Name != "" && e.NodeName == node.Name
}

// start gives endpoints that are starting their shares of their weights. All weights are
// [model.StartScale] times as large for that.
func start(eps []endpoint, shares map[netip.Addr]uint16) {
	var largest uint16
	for i := range eps {
		largest = max(largest, eps[i].weight)
	}
	scale := model.StartScale(largest)
	for i := range eps {
		share, starting := shares[eps[i].from.Addr]
		if !starting {
			share = model.FullShare
		}
		eps[i].weight = model.StartWeight(eps[i].weight, share, scale)
	}
}

// eject gives the ejected endpoints the weight 0, unless a set that the Service uses would have no
// other of a weight: then all that fail are as good as each other, and those of the set keep theirs.
func eject(eps []endpoint, svc *model.Service) {
	if len(svc.Ejected) == 0 {
		return
	}
	for i := range eps {
		e := &eps[i]
		e.ejected = svc.Ejected[netip.AddrPortFrom(e.from.Addr, e.port)]
	}
	sets := []func(*endpoint) bool{func(e *endpoint) bool { return e.inCluster }}
	if svc.InternalLocal || svc.ExternalLocal {
		sets = append(sets, func(e *endpoint) bool { return e.inLocal })
	}
	for _, in := range sets {
		if slices.ContainsFunc(eps, func(e endpoint) bool { return in(&e) && e.weight > 0 && !e.ejected }) {
			continue
		}
		for i := range eps {
			if in(&eps[i]) {
				eps[i].ejected = false
			}
		}
	}
	for i := range eps {
		if eps[i].ejected {
			eps[i].weight = 0
		}
	}
}

// unique returns the listed endpoints by address and port, one of each: the last
// one that is not terminating, or the first when all are. A pod may stand in two
// slices while a controller moves it; its newer entry counts, unless that only says
// that an earlier pod of the same address goes away.
func (s *scratch) unique() []endpoint {
	s.ordered = s.ordered[:0]
	var last rank
	s.ranks.sort()
	for _, r := range s.ranks {
		e := &s.listed[r.place]
		switch {
		case len(s.ordered) == 0 || last.before(&r):
			s.ordered = append(s.ordered, *e)
		case !e.terminating:
			s.ordered[len(s.ordered)-1] = *e
		}
		last = r
	}
	return s.ordered
}
