package reconcile

import (
	"net/netip"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// starts are the endpoints of a Service with slow start. Times are since the reconciler was made.
// Endpoints come to their next step together, however many there are: each is a sync.
type starts struct {
	ready map[netip.Addr]bool          // at the last look
	since map[netip.Addr]time.Duration // the step in which those became ready that are starting
}

// starting returns the shares of the endpoints that are starting, and has the Service applied
// again when the next one gets more.
func (r *Reconciler) starting(svc *model.Service, list []*model.Slice, node *model.LocalNode) map[netip.Addr]uint16 {
	now, step := time.Since(r.started), svc.SlowStart/model.FullShare
	begun := now.Truncate(step) // when the step did that is under way
	s := r.starts[svc.Name]
	if s == nil {
		s = r.restoreStarts(svc, list, node, begun)
		r.starts[svc.Name] = s
	}
	s.look(list, begun)
	shares := s.shares(step, now)
	if len(shares) > 0 {
		r.retries.queue.AddAfter(task{part: partStart, service: svc.Name}, begun+step-now)
	}
	return shares
}

// look notes which endpoints have become ready since the last look.
func (s *starts) look(list []*model.Slice, begun time.Duration) {
	ready := make(map[netip.Addr]bool)
	for _, slice := range list {
		for i := range slice.Endpoints {
			if e := &slice.Endpoints[i]; e.Ready {
				ready[e.Addr] = true
			}
		}
	}
	for addr := range ready {
		if !s.ready[addr] {
			s.since[addr] = begun
		}
	}
	for addr := range s.since {
		if !ready[addr] {
			delete(s.since, addr)
		}
	}
	s.ready = ready
}

// shares returns those of the endpoints that are starting.
func (s *starts) shares(step, now time.Duration) map[netip.Addr]uint16 {
	shares := make(map[netip.Addr]uint16)
	for addr, since := range s.since {
		steps := (now - since) / step
		if steps >= model.FullShare-1 {
			delete(s.since, addr)
			continue
		}
		shares[addr] = 1 + uint16(steps)
	}
	return shares
}

// restoreStarts returns what the weights in the tables tell of the endpoints, which a former agent,
// or this one, has written. One that the tables do not have has become ready since.
func (r *Reconciler) restoreStarts(svc *model.Service, list []*model.Slice, node *model.LocalNode, begun time.Duration) *starts {
	s := &starts{ready: make(map[netip.Addr]bool), since: make(map[netip.Addr]time.Duration)}
	step := svc.SlowStart / model.FullShare
	full := *svc
	full.SlowStart = 0
	somePorts(&full, list, func(joined *policy.Joined, number int, name tables.ServicePortName) (more bool) {
		candidates := joined.Candidates(number, node)
		var largest uint16
		for i := range candidates {
			largest = max(largest, candidates[i].Weight)
		}
		for i := range candidates {
			c := &candidates[i]
			weight, known := r.tables.Weight(name, c.AddrPort)
			if !known || !c.Ready {
				continue
			}
			addr := c.AddrPort.Addr()
			s.ready[addr] = true
			steps := model.StartShare(c.Weight, weight, model.StartScale(largest)) - 1
			s.since[addr] = begun - time.Duration(steps)*step
		}
		return true
	})
	return s
}

// somePorts calls fn for each port of the Service, both families, while it wants more. Ports beyond
// policy.MostLooked endpoints are left out: they tell what those before have told.
func somePorts(svc *model.Service, list []*model.Slice, fn func(joined *policy.Joined, number int, name tables.ServicePortName) (more bool)) {
	for _, family := range model.Families {
		joined, looked := policy.Join(svc, family, list), 0
		for i, port := range svc.Ports {
			if looked += joined.Listed(i); i > 0 && looked > policy.MostLooked {
				break
			}
			if !fn(&joined, i, portName(svc, port, family)) {
				return
			}
		}
	}
}
