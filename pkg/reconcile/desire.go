package reconcile

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// ahead is how many Services are compiled before the first of them is applied: what
// takes long is prepared for all of them together.
const ahead = 64

// wish is a Service as it was when it was compiled, nil when it is gone.
type wish struct {
	svc    *model.Service
	slices []*model.Slice
}

// desire returns the named Services and what they want to have: nothing when they are
// gone.
func (r *Reconciler) desire(names []model.Name, node *model.Node) ([]wish, []tables.Desired) {
	wishes := make([]wish, len(names))
	desired := make([]tables.Desired, len(names))
	for i, name := range names {
		svc, list := r.object(name)
		wishes[i], desired[i].Name = wish{svc, list}, name
		if svc != nil {
			desired[i] = tables.Compile(r.complement(svc), list, node)
		}
		r.noteFaults(name, r.faultsOf(&wishes[i]))
	}
	r.tables.Prepare(desired)
	return wishes, desired
}

// faultsOf returns the settings of the Service and its slices that are wrong.
func (r *Reconciler) faultsOf(w *wish) []model.Fault {
	if w.svc == nil {
		return nil
	}
	faults := slices.Clip(w.svc.Faults)
	if r.opts.ForwardingRefused != "" && w.svc.Forwarding.Tunnels() {
		faults = append(faults, model.Fault{
			Setting: model.AnnotationForwarding,
			Reason:  fmt.Sprintf("%q %s", w.svc.Forwarding, r.opts.ForwardingRefused),
		})
	}
	for _, s := range w.slices {
		faults = append(faults, s.Faults...)
	}
	return faults
}

// complement returns the Service with what it leaves to the configuration.
func (r *Reconciler) complement(svc *model.Service) *model.Service {
	algorithm, forwarding := cmp.Or(svc.Algorithm, r.opts.Algorithm, model.Random), r.forwarding(svc)
	if svc.Algorithm == algorithm && svc.Forwarding == forwarding {
		return svc
	}
	with := *svc
	with.Algorithm, with.Forwarding = algorithm, forwarding
	return &with
}

// forwarding returns how packets of the Service reach backends on other nodes.
func (r *Reconciler) forwarding(svc *model.Service) model.Forwarding {
	way := svc.Forwarding
	if r.opts.ForwardingRefused != "" && way.Tunnels() {
		way = model.DefaultForwarding
	}
	way = cmp.Or(way, r.opts.Forwarding)
	if r.opts.NoTunnel {
		return model.SNAT
	}
	return way
}

// noteFaults tells of the faults of a Service unless they are those of before.
func (r *Reconciler) noteFaults(name model.Name, faults []model.Fault) {
	if slices.Equal(r.faults[name], faults) {
		return
	}
	if len(faults) == 0 {
		delete(r.faults, name)
	} else {
		r.faults[name] = faults
	}
	if r.opts.Faults != nil {
		r.opts.Faults(name, faults)
	}
}
