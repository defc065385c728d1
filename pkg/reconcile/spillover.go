package reconcile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// spillOvers are the Services with zone spill-over.
type spillOvers struct {
	asked []model.Name // those that ask for it, in order
	// shares are those of other zones, of Services that were compiled with them.
	shares map[model.Name]map[string]uint16
	set    bool // whom Options.SpillOvers tells has yet to be told
}

// used returns those that have it: of too many the first by name, on all nodes the same. The list
// lasts until the next change.
func (s *spillOvers) used() []model.Name { return s.asked[:min(len(s.asked), model.MaxSpillOvers)] }

// has reports whether a Service has it.
func (s *spillOvers) has(name model.Name) bool {
	_, found := slices.BinarySearchFunc(s.used(), name, model.Name.Compare)
	return found
}

// wantSpillOver notes whether a Service asks for zone spill-over. The caller has the lock.
func (r *Reconciler) wantSpillOver(name model.Name, asks bool) {
	s := &r.spillOvers
	at, asked := slices.BinarySearchFunc(s.asked, name, model.Name.Compare)
	if asked == asks {
		return
	}
	next := model.MaxSpillOvers // the one that another one's coming puts out, or going lets in
	if asks {
		s.asked = slices.Insert(s.asked, at, name)
	} else {
		s.asked = slices.Delete(s.asked, at, at+1)
		next--
	}
	if at >= model.MaxSpillOvers {
		return
	}
	s.set = true
	changed := []model.Name{name}
	if next < len(s.asked) {
		changed = append(changed, s.asked[next])
	}
	for _, name := range changed {
		if !s.has(name) {
			delete(s.shares, name)
		}
		r.touch(name)
	}
}

// asksForSpillOver reports whether the Service asks for zone spill-over and its algorithm has it.
func (r *Reconciler) asksForSpillOver(svc *model.Service) bool {
	return svc.SpillOver.Used && r.algorithm(svc) == model.Random
}

// spillOverFault returns why a Service does not have the zone spill-over that it asks for, or "".
func (r *Reconciler) spillOverFault(svc *model.Service) string {
	if !svc.SpillOver.Used {
		return ""
	}
	if !r.asksForSpillOver(svc) {
		return fmt.Sprintf("no effect with the algorithm %q", r.algorithm(svc))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.spillOvers.has(svc.Name) {
		return fmt.Sprintf("%d Services before this one by name have it, which is the most", model.MaxSpillOvers)
	}
	return ""
}

// spillOver returns the Service's zone spill-over and the shares of other zones: those that a former
// agent has left in the tables, until more is known.
func (r *Reconciler) spillOver(svc *model.Service, list []*model.Slice, node *model.LocalNode) (model.SpillOver, map[string]uint16) {
	if !svc.SpillOver.Used {
		return model.SpillOver{}, nil
	}
	r.mu.Lock()
	used := r.spillOvers.has(svc.Name)
	shares, known := r.spillOvers.shares[svc.Name]
	r.mu.Unlock()
	if !used {
		return model.SpillOver{}, nil
	}
	if !known {
		shares = r.restoreShares(svc, list, node)
		r.mu.Lock()
		r.spillOvers.shares[svc.Name] = shares
		r.mu.Unlock()
	}
	return svc.SpillOver, shares
}

// restoreShares returns the shares of other zones that the weights in the tables follow from.
func (r *Reconciler) restoreShares(svc *model.Service, list []*model.Slice, node *model.LocalNode) map[string]uint16 {
	var shares map[string]uint16
	somePorts(svc, list, func(joined *policy.Joined, number int, name tables.ServicePortName) (more bool) {
		shares = joined.SharesOf(number, node, func(addr netip.AddrPort) uint16 {
			weight, _ := r.tables.Weight(name, addr)
			return weight
		})
		return len(shares) == 0
	})
	return shares
}

// SetDemand takes how many active connections the clients of each zone have, of the Services with zone
// spill-over of which that is known. Of the others no connection leaves its zone.
func (r *Reconciler) SetDemand(demand map[model.Name]map[string]float64) {
	r.mu.Lock()
	names, node := slices.Clone(r.spillOvers.used()), r.localNode
	r.mu.Unlock()
	for _, name := range names {
		if svc, list := r.object(name); svc != nil {
			zones := policy.ZonesOf(svc, list, &node)
			r.setShares(name, func(now map[string]uint16) map[string]uint16 {
				return policy.Spill(zones, demand[name], node.Zone, svc.SpillOver.Above, now)
			})
		}
	}
	r.signal()
}

// setShares replaces the shares of other zones, of a Service that was compiled with some.
func (r *Reconciler) setShares(name model.Name, spill func(now map[string]uint16) map[string]uint16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, known := r.spillOvers.shares[name]
	if !known {
		return
	}
	shares := spill(before)
	if maps.Equal(before, shares) {
		return
	}
	klog.InfoS("Shares of new connections that spill over to other zones", "service", name, "before", before, "now", shares, "of", model.SpillParts)
	r.spillOvers.shares[name] = shares
	r.touch(name)
	r.reportWaiting()
}

// SpillingOver returns how many Services have new connections that go to other zones.
func (r *Reconciler) SpillingOver() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, shares := range r.spillOvers.shares {
		if len(shares) > 0 {
			n++
		}
	}
	return n
}

// tellSpillOvers tells which Services have zone spill-over, and of the nodes, when that has changed and
// all nodes are known.
func (r *Reconciler) tellSpillOvers() {
	if r.opts.SpillOvers == nil {
		return
	}
	r.mu.Lock()
	s := &r.spillOvers
	if !s.set || len(s.asked) > 0 && !r.nodes.listed {
		r.mu.Unlock()
		return
	}
	s.set = false
	used, node, nodes := slices.Clone(s.used()), r.localNode, r.nodes.list(r.localNode.Name)
	r.mu.Unlock()
	r.opts.SpillOvers(used, nodes, &node)
}
