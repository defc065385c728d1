package reconcile

import (
	"net/netip"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Metrics takes measurements of syncs. Its methods are called by the loop.
type Metrics interface {
	// Synced takes when a sync ended, how long it took, how many Services failed and are to be
	// tried again, and whether something failed that is no Service's own fault.
	Synced(end time.Time, took time.Duration, pending int, stuck bool)
	// NoLocal takes, after every sync, how many Service ports of a family with the policy
	// Local for internal, or external, traffic have usable endpoints, but none on this node.
	NoLocal(family model.Family, internal, external int)
	// Programmed takes when the change of a slice was triggered, and when the sync ended
	// that brought it in.
	Programmed(family model.Family, triggered, end time.Time)
	// Tables takes, after every sync, how full the tables are, and the names of those that
	// had no room in it.
	Tables(usage []tables.Fill, full map[string]bool)
}

// result is the outcome of a sync for all its consumers.
type result struct {
	Sync
	full      map[string]bool // tables that had no room
	triggers  []trigger       // of the slices that changed
	checks    []policy.HealthCheck
	nodePorts []netip.Addr     // nil when unchanged
	podRanges []netip.Prefix   // nil when unchanged
	nodes     []tables.NodeUse // nil when unchanged
	udpLeft   bool
}

// tell hands the result of a sync to its consumers.
func (r *Reconciler) tell(s *result) {
	o := &r.opts
	if o.Metrics != nil {
		r.measure(s)
	}
	if o.HealthChecks != nil {
		o.HealthChecks(s.checks, s.nodePorts)
	}
	if o.PodRanges != nil && s.podRanges != nil {
		o.PodRanges(s.podRanges)
	}
	if o.Nodes != nil && s.nodes != nil {
		o.Nodes(s.nodes)
	}
	r.tellSpillOvers()
	if o.UDPLeft != nil && s.udpLeft {
		o.UDPLeft()
	}
	if o.Synced != nil {
		o.Synced(s.Sync)
	}
}

// measure hands the measurements of a sync to the metrics.
func (r *Reconciler) measure(s *result) {
	m, end := r.opts.Metrics, s.Start.Add(s.Duration)
	m.Synced(end, s.Duration, s.Pending, s.Stuck)
	for _, family := range model.Families {
		sum := r.noLocalSum[family]
		m.NoLocal(family, sum.internal, sum.external)
	}
	for _, t := range s.triggers {
		m.Programmed(t.family, t.time, end)
	}
	m.Tables(r.tables.Usage(), s.full)
}

// noLocals counts Service ports under the policy Local that have usable endpoints, but
// none on this node.
type noLocals struct{ internal, external int }

// place is where a Service is reported on.
type place struct {
	service model.Name
	family  model.Family
}

// report adds the outcome of a Service to a sync; svc is nil when it is not
// served any more.
func (r *Reconciler) report(s *result, name model.Name, svc *model.Service, slices []*model.Slice, desired *tables.Desired, node *model.LocalNode) {
	s.triggers = append(s.triggers, r.takeTriggers(name)...)
	for _, family := range model.Families {
		at := place{name, family}
		check := policy.HealthCheck{Service: name, Family: family}
		if svc != nil && svc.HealthCheckPort != 0 && svc.HasFamily(family) {
			check.Port = svc.HealthCheckPort
			check.Local = policy.LocalReady(svc, family, slices, node)
		}
		r.reportCheck(s, at, check)
		r.countNoLocal(at, noLocal(desired, family))
	}
}

// reportCheck adds a check when it has changed.
func (r *Reconciler) reportCheck(s *result, at place, check policy.HealthCheck) {
	if r.checks[at].Port == 0 && check.Port == 0 || r.checks[at] == check {
		return
	}
	s.checks = append(s.checks, check)
	r.checks[at] = check
	if check.Port == 0 {
		delete(r.checks, at)
	}
}

// noLocal counts the Service ports of one family that drop for want of a local endpoint.
func noLocal(desired *tables.Desired, family model.Family) (n noLocals) {
	for i := range desired.Ports {
		sp := &desired.Ports[i]
		if sp.Name.Family != family || sp.Sets.Local != policy.Drop {
			continue
		}
		if sp.Name.InternalLocal {
			n.internal++
		}
		if sp.Name.ExternalLocal {
			n.external++
		}
	}
	return n
}

// countNoLocal replaces what a Service adds to the sum of its family.
func (r *Reconciler) countNoLocal(at place, n noLocals) {
	before := r.noLocal[at]
	if n == before {
		return
	}
	sum := r.noLocalSum[at.family]
	sum.internal += n.internal - before.internal
	sum.external += n.external - before.external
	r.noLocalSum[at.family] = sum
	r.noLocal[at] = n
	if n == (noLocals{}) {
		delete(r.noLocal, at)
	}
}
