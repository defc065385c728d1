package reconcile

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// ahead is how many Services are compiled before the first of them is applied: what
// takes long is prepared for all of them together.
const ahead = 64

// objects are a Service, nil when it is gone, and its slices as they were when it was compiled.
type objects struct {
	svc    *model.Service
	slices []*model.Slice
}

// desire returns the objects of the named Services and the desired state that follows from
// them: nothing for Services that are gone.
func (r *Reconciler) desire(names []model.Name, node *model.LocalNode) ([]objects, []tables.Desired) {
	from := make([]objects, len(names))
	desired := make([]tables.Desired, len(names))
	for i, name := range names {
		svc, list := r.object(name)
		from[i], desired[i].Name = objects{svc, list}, name
		r.noteTerminating(name, svc, list, node)
		faults := r.faultsOf(&from[i])
		if svc != nil {
			desired[i] = r.tables.Compile(r.complement(svc, list, node), list, node)
			faults = append(faults, r.tables.Bound(&desired[i])...)
		}
		r.noteFaults(name, faults)
	}
	r.tables.Prepare(desired)
	return from, desired
}

// share shares out the tables anew, with what the Services of this sync ask for, and
// adds to it those whose shares have changed.
func (r *Reconciler) share(w *work) {
	for name := range w.names {
		svc, list := r.object(name)
		if svc == nil {
			r.tables.Want(name, nil, tables.Demand{})
			delete(r.starts, name)
			delete(r.outliers.services, name)
			continue
		}
		svc = r.complement(svc, list, &w.localNode)
		desired := tables.Desired{Name: name}
		if asksForMore(svc, list) {
			desired = r.tables.CompileAsk(svc, list, &w.localNode)
		}
		r.tables.Want(name, &desired, tables.DemandOf(svc, list))
	}
	changed, less := r.tables.Share()
	for name := range w.names {
		delete(changed, name)
	}
	maps.Copy(w.names, changed)
	w.first, w.last = less, changed
}

// inOrder returns Services by age, for of those that want one address the first gets it, and those first
// that leave room to others, those last that only get more of it.
func (r *Reconciler) inOrder(w *work, names map[model.Name]struct{}) []model.Name {
	later := func(name model.Name) int {
		if _, first := w.first[name]; first {
			return 0
		}
		if _, last := w.last[name]; last {
			return 2
		}
		return 1
	}
	order := slices.SortedFunc(r.ages(names), func(a, b model.Age) int {
		return cmp.Or(cmp.Compare(later(a.Name), later(b.Name)), a.Compare(b))
	})
	list := make([]model.Name, len(order))
	for i := range order {
		list[i] = order[i].Name
	}
	return list
}

// ages returns how old Services are; those that are gone are of no age.
func (r *Reconciler) ages(names map[model.Name]struct{}) iter.Seq[model.Age] {
	return func(yield func(model.Age) bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for name := range names {
			age := model.Age{Name: name}
			if svc := r.services[name]; svc != nil {
				age.Created = svc.Created
			}
			if !yield(age) {
				return
			}
		}
	}
}

// asksForMore reports whether a Service may ask for more slots than one for each endpoint.
func asksForMore(svc *model.Service, list []*model.Slice) bool {
	return svc.Algorithm.Hashes() || svc.Algorithm.Weighs() &&
		(len(svc.ZoneWeights) > 0 || len(svc.Starting) > 0 || len(svc.ZoneShares) > 0 || slices.ContainsFunc(list, func(s *model.Slice) bool { return s.Weight != nil }))
}

// faultsOf returns the settings of the Service and its slices that are wrong.
func (r *Reconciler) faultsOf(o *objects) []model.Fault {
	if o.svc == nil {
		return nil
	}
	faults := slices.Clip(o.svc.Faults)
	if r.opts.ForwardingRefused != "" && o.svc.Forwarding.Tunnels() {
		faults = append(faults, model.Fault{
			Setting: model.AnnotationForwarding,
			Reason:  fmt.Sprintf("%q %s", o.svc.Forwarding, r.opts.ForwardingRefused),
		})
	}
	if r.opts.LocalityRefused != "" && o.svc.Algorithm.Localizes() {
		faults = append(faults, model.Fault{
			Setting: model.AnnotationAlgorithm,
			Reason:  fmt.Sprintf("%q %s", o.svc.Algorithm, r.opts.LocalityRefused),
		})
	}
	if o.svc.SlowStart > 0 && r.slowStart(o.svc) == 0 {
		faults = append(faults, model.Fault{
			Setting: model.AnnotationSlowStart,
			Reason:  fmt.Sprintf("no effect with the algorithm %q", r.algorithm(o.svc)),
		})
	}
	if reason := r.spillOverFault(o.svc); reason != "" {
		faults = append(faults, model.Fault{Setting: model.AnnotationSpillOver, Reason: reason})
	}
	for _, s := range o.slices {
		faults = append(faults, s.Faults...)
	}
	return faults
}

// complement returns the Service with the configuration's defaults filled in, and with those of its
// endpoints that are starting or ejected, and what spills over to other zones.
func (r *Reconciler) complement(svc *model.Service, list []*model.Slice, node *model.LocalNode) *model.Service {
	algorithm, forwarding, slowStart := r.algorithm(svc), r.forwarding(svc), r.slowStart(svc)
	if slowStart == 0 {
		delete(r.starts, svc.Name)
	}
	outliers := r.outliersOf(svc)
	ejected, onTrial := r.watchOutliers(svc, outliers)
	spillOver, shares := r.spillOver(svc, list, node)
	if spillOver.Used {
		algorithm = model.CountedRandom
	}
	if svc.Algorithm == algorithm && svc.Forwarding == forwarding && svc.SlowStart == 0 && svc.Outliers == nil && !outliers.Used() && !svc.SpillOver.Used {
		return svc
	}
	with, own := *svc, outliers // on the heap, which most Services do without
	with.Outliers, with.Ejected, with.OnTrial = &own, ejected, onTrial
	with.Algorithm, with.Forwarding, with.SlowStart = algorithm, forwarding, slowStart
	with.SpillOver, with.ZoneShares = spillOver, shares
	if slowStart > 0 {
		with.Starting = r.starting(&with, list, node)
	}
	return &with
}

// portName returns the name that one family of a port of the Service has in the tables.
func portName(svc *model.Service, port model.ServicePort, family model.Family) tables.ServicePortName {
	return tables.ServicePortName{Port: model.PortName{Service: svc.Name, Port: port.Name, Protocol: port.Protocol}, Family: family}
}

// algorithm returns how the backends of the Service's connections are chosen.
func (r *Reconciler) algorithm(svc *model.Service) model.Algorithm {
	algorithm := svc.Algorithm
	if r.opts.LocalityRefused != "" && algorithm.Localizes() {
		algorithm = model.DefaultAlgorithm
	}
	return cmp.Or(algorithm, r.opts.Algorithm, model.Random)
}

// slowStart returns how long an endpoint of the Service takes to come to its share.
func (r *Reconciler) slowStart(svc *model.Service) time.Duration {
	if !r.algorithm(svc).StartsSlowly() {
		return 0
	}
	return svc.SlowStart
}

// forwarding returns how packets of the Service reach backends on other nodes.
func (r *Reconciler) forwarding(svc *model.Service) model.Forwarding {
	mode := svc.Forwarding
	if r.opts.ForwardingRefused != "" && mode.Tunnels() {
		mode = model.DefaultForwarding
	}
	mode = cmp.Or(mode, r.opts.Forwarding)
	if r.opts.NoTunnel {
		return model.SNAT
	}
	return mode
}

// limited returns 1 when a Service with these faults gets less than it asks for.
func limited(faults []model.Fault) int {
	if slices.ContainsFunc(faults, func(f model.Fault) bool { return f.Partly }) {
		return 1
	}
	return 0
}

// noteTerminating tells which endpoints of a Service terminate on this node.
func (r *Reconciler) noteTerminating(name model.Name, svc *model.Service, list []*model.Slice, node *model.LocalNode) {
	if r.opts.Terminating == nil {
		return
	}
	var found []netip.AddrPort
	if svc != nil {
		found = policy.Terminating(svc, list, node)
	}
	r.opts.Terminating(name, found)
}

// noteFaults reports the faults of a Service when they have changed.
func (r *Reconciler) noteFaults(name model.Name, faults []model.Fault) {
	if slices.Equal(r.faults[name], faults) {
		return
	}
	added := addedFaults(r.faults[name], faults)
	r.limited += limited(faults) - limited(r.faults[name])
	if len(faults) == 0 {
		delete(r.faults, name)
	} else {
		r.faults[name] = faults
	}
	if r.opts.Faults != nil {
		r.opts.Faults(name, faults, added)
	}
}

// addedFaults returns the faults that were not there before, each once.
func addedFaults(before, now []model.Fault) (added []model.Fault) {
	known := make(map[model.Fault]bool, len(before))
	for _, f := range before {
		known[f] = true
	}
	for _, f := range now {
		if !known[f] {
			known[f] = true
			added = append(added, f)
		}
	}
	return added
}
