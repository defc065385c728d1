package reconcile

import (
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
)

// trigger is the time of the change that a slice followed.
type trigger struct {
	family model.Family
	time   time.Time
}

// Queue returns what the sources have handed over.
func (r *Reconciler) Queue() source.Queue {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queue
}

// Oldest returns when the oldest change that is not in the kernel came in; zero when
// there is none.
//
// A Service whose address belongs to another one, or that a full table has no room
// for, does not count: its own are the only clients that miss it.
func (r *Reconciler) Oldest() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return earliest(r.queued, r.applying, r.stuck)
}

// reportWaiting tells when the oldest change came in that waits for a sync, or is in the one under
// way. The caller has the lock.
func (r *Reconciler) reportWaiting() {
	if r.opts.Waiting == nil {
		return
	}
	since := earliest(r.queued, r.applying)
	if since.IsZero() && (r.syncing || r.localNodeSet || r.nodes.due()) {
		since = time.Now()
		if !r.waiting.IsZero() {
			since = r.waiting
		}
	}
	if since != r.waiting {
		r.waiting = since
		r.opts.Waiting(since)
	}
}

// earliest returns the first in time; zero when all are zero.
func earliest(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}

// note counts the changes of an update. The caller has the lock.
func (r *Reconciler) note(u *source.Update) {
	services := len(u.PutServices) + len(u.DeleteServices)
	slices := len(u.PutSlices) + len(u.DeleteSlices)
	if services+slices > 0 {
		r.queue.Last = time.Now()
	}
	r.queue.Services += services
	r.queue.ServicesTotal += uint64(services)
	r.queue.Slices += slices
	r.queue.SlicesTotal += uint64(slices)
}

// maxSkew is how far the clock of another machine may be ahead of this one's.
const maxSkew = 10 * time.Second

// trigger remembers why a slice changed until the change is in the kernel. Changes
// from before this agent, and those that it finds at its start, took their time
// elsewhere; one that is yet to come, as an annotation may say, took none. The caller
// has the lock.
func (r *Reconciler) trigger(s *model.Slice) {
	if !r.synced || !s.Triggered.After(r.started) || s.Triggered.After(time.Now().Add(maxSkew)) {
		return
	}
	name := s.ServiceName()
	r.triggers[name] = append(r.triggers[name], trigger{s.Family, s.Triggered})
}

// takeTriggers returns, once, what triggered the changes of a Service's slices.
func (r *Reconciler) takeTriggers(name model.Name) []trigger {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.triggers[name]
	delete(r.triggers, name)
	return t
}

// stopReporting has nothing told any more: the source may go on for a while after [Reconciler.Run]
// has ended, when the maps are not there any more.
func (r *Reconciler) stopReporting() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opts.Waiting = nil
}
