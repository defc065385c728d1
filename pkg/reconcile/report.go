package reconcile

import (
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// NoLocal counts Service ports under the policy Local that have usable endpoints, but
// none on this node.
type NoLocal struct{ Internal, External int }

// place is where a Service is reported on.
type place struct {
	service model.Name
	family  model.Family
}

// report adds to a sync what has become of a Service; svc is nil when it is not
// served any more.
func (r *Reconciler) report(s *Sync, name model.Name, svc *model.Service, slices []*model.Slice, desired *tables.Desired, node *model.LocalNode) {
	s.Triggers = append(s.Triggers, r.takeTriggers(name)...)
	for _, family := range model.Families {
		at := place{name, family}
		check := policy.HealthCheck{Service: name, Family: family}
		if svc != nil && svc.HealthCheckPort != 0 && svc.HasFamily(family) {
			check.Port = svc.HealthCheckPort
			check.Local = policy.LocalReady(family, slices, node)
		}
		r.reportCheck(s, at, check)
		r.countNoLocal(at, noLocal(desired, family))
	}
}

// reportCheck adds a check when it differs from what was told last.
func (r *Reconciler) reportCheck(s *Sync, at place, check policy.HealthCheck) {
	if r.checks[at].Port == 0 && check.Port == 0 || r.checks[at] == check {
		return
	}
	s.Checks = append(s.Checks, check)
	r.checks[at] = check
	if check.Port == 0 {
		delete(r.checks, at)
	}
}

// noLocal counts the Service ports of one family that drop for want of a local endpoint.
func noLocal(desired *tables.Desired, family model.Family) (n NoLocal) {
	for i := range desired.Ports {
		sp := &desired.Ports[i]
		if sp.Name.Family != family || sp.Sets.Local != policy.Drop {
			continue
		}
		if sp.Name.InternalLocal {
			n.Internal++
		}
		if sp.Name.ExternalLocal {
			n.External++
		}
	}
	return n
}

// countNoLocal replaces what a Service adds to the sum of its family.
func (r *Reconciler) countNoLocal(at place, n NoLocal) {
	before := r.noLocal[at]
	if n == before {
		return
	}
	sum := r.noLocalSum[at.family]
	sum.Internal += n.Internal - before.Internal
	sum.External += n.External - before.External
	r.noLocalSum[at.family] = sum
	r.noLocal[at] = n
	if n == (NoLocal{}) {
		delete(r.noLocal, at)
	}
}
