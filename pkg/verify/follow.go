package verify

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/pause"
)

// The agent looks at the machine once a minute, and again soon after it has found something new: some
// settings are followed within a second, and a device may be about to go. A look that is much work, as
// over many rules of iptables, is followed by a pause lookShare times as long: it takes a thousandth of a CPU.
const (
	lookPeriod = time.Minute
	lookAgain  = 5 * time.Second
	lookShare  = 999
)

// Follow looks at the machine again and again until ctx ends, logs each finding when it appears and when
// it has gone, and tells how many there are of each kind.
func (c *MachineChecker) Follow(ctx context.Context, tell func(kind string, findings int)) {
	var f followed
	for {
		var found []Finding
		var err error
		took := pause.Work(func() { found, err = c.look() })
		open := f.see(found, err)
		for _, kind := range MachineKinds {
			tell(kind, f.count(kind))
		}
		klog.V(4).InfoS("Machine looked at", "findings", len(f.told), "took", took)
		next := max(lookPeriod, lookShare*took)
		if open {
			next = lookAgain
		}
		if !pause.For(ctx, next) {
			return
		}
	}
}

// followed are the findings of a machine over several looks.
type followed struct {
	seen   []Finding // by the last look
	told   []Finding // those that are logged
	failed bool      // the last look, which is logged
}

// see takes what a look has found. What two looks in a row have found is told, and what a whole look has
// not found any more is gone. It reports whether another look is to say that of something.
func (f *followed) see(found []Finding, err error) (open bool) {
	if err != nil && !f.failed {
		klog.ErrorS(err, "The machine could not be looked at in full, trying again", "in", lookPeriod)
	}
	f.failed = err != nil
	for i := range found {
		n := &found[i]
		switch {
		case slices.ContainsFunc(f.told, n.same):
		case slices.ContainsFunc(f.seen, n.same):
			n.explain(true)
			klog.InfoS("The machine is not set up as Beeline needs it", "kind", n.Kind, "what", n.What, "why", n.Why, "fix", n.Fix)
			f.told = append(f.told, *n)
		default:
			open = true
		}
	}
	f.told = slices.DeleteFunc(f.told, func(t Finding) bool {
		if err != nil || slices.ContainsFunc(found, t.same) {
			return false
		}
		klog.InfoS("The machine is set up as Beeline needs it again", "kind", t.Kind, "was", t.What)
		return true
	})
	f.seen = found
	return open
}

// count returns how many findings of a kind there are.
func (f *followed) count(kind string) (n int) {
	for i := range f.told {
		if f.told[i].Kind == kind {
			n++
		}
	}
	return n
}

// same reports whether a finding of the machine is the same one at another time.
func (f *Finding) same(other Finding) bool { return f.Kind == other.Kind && f.about == other.about }
