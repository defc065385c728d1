package reconcile

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// The pause before what failed is tried again doubles from retryMin to retryMax, for each
// task by itself: a Service that waits for an address of another one holds up no other.
const (
	retryMin = 100 * time.Millisecond
	retryMax = 30 * time.Second
)

// clashPause is the pause of a Service that lacks only addresses which other Services have. It is applied when
// it is to have one ([tables.Tables.Apply]), so a try changes nothing but who the error says has it now.
const clashPause = 30 * time.Minute

// part is a part of the tables that is written, and may fail, by itself.
type part uint8

const (
	partService   part = iota // the entries of one Service
	partLocalNode             // node addresses and Service ranges
	partNodes                 // the nodes of the cluster
	partLeftovers             // what is to be removed of former Services
	partRetired               // the wait until what was taken out of the tables can be reused
	partStart                 // the next step of endpoints that are starting, which is no failure
)

// task is a unit of work that is retried by itself.
type task struct {
	part    part
	service model.Name // of partService and partStart
}

// failure is the state of a task that has failed.
type failure struct {
	text string
	// since is when the change came in; zero when it is a matter of one Service alone.
	since time.Time
	first time.Time // when it failed first
	tries int
}

// Failure is the status of a Service that is not applied in full.
type Failure struct {
	Error string
	Since time.Time // when it failed first
	Next  time.Time // when it is tried again
	Tries int
}

// retries is the queue of tasks that wait, and those whose pause is over.
type retries struct {
	limiter workqueue.TypedRateLimiter[task]
	queue   workqueue.TypedDelayingInterface[task]
	due     map[task]struct{} // guarded by the reconciler's mutex
}

// startRetries starts the queue, which runs until stop is called.
func (r *Reconciler) startRetries() (stop func()) {
	r.retries.limiter = workqueue.NewTypedItemExponentialFailureRateLimiter[task](retryMin, retryMax)
	r.retries.queue = workqueue.NewTypedDelayingQueue[task]()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			t, ended := r.retries.queue.Get()
			if ended {
				return
			}
			r.mu.Lock()
			r.retries.due[t] = struct{}{}
			r.mu.Unlock()
			r.retries.queue.Done(t)
			r.signal()
		}
	}()
	return func() {
		r.retries.queue.ShutDown()
		<-done
	}
}

// takeDue adds to a sync the tasks whose pause is over. The caller has the lock.
func (r *Reconciler) takeDue() {
	for t := range r.retries.due {
		if _, failed := r.failed[t]; !failed && t.part != partStart {
			continue
		}
		switch t.part {
		case partService, partStart:
			r.dirty[t.service] = struct{}{}
		case partLocalNode:
			r.localNodeSet = true
		case partNodes:
			r.nodes.set = true
		case partRetired:
			r.retiredDue = true
		}
	}
	clear(r.retries.due)
}

// outcome records the outcome of a task, and has it retried when it failed. queued is when the
// change came in; zero is now. It reports whether the outcome differs from the last one.
func (r *Reconciler) outcome(t task, err error, queued time.Time) (changed bool) {
	before, was := r.failed[t]
	if err == nil {
		delete(r.failed, t)
		r.retries.limiter.Forget(t)
		if was {
			r.reportFailed(t, nil)
		}
		return was
	}
	now := failure{text: brief(err).Error(), first: before.first, tries: before.tries + 1}
	if !was {
		now.first = time.Now()
	}
	if !ownFault(err) {
		now.since = cmp.Or(earliest(before.since, queued), time.Now())
	}
	r.failed[t] = now
	pause := clashPause
	if !wrapsOnly(err, isClash) {
		pause = r.retries.limiter.When(t)
	}
	r.retries.queue.AddAfter(t, pause)
	r.reportFailed(t, &Failure{Error: now.text, Since: now.first, Next: time.Now().Add(pause), Tries: now.tries})
	return now.text != before.text
}

// reportFailed reports that a Service has failed; nil: that it has been applied.
func (r *Reconciler) reportFailed(t task, f *Failure) {
	if t.part == partService && r.opts.Failed != nil {
		r.opts.Failed(t.service, f)
	}
}

// pending returns how many Services are not served in full.
func (r *Reconciler) pending() (n int) {
	for t := range r.failed {
		if t.part == partService {
			n++
		}
	}
	return n
}

// setStuck notes since when something waits that should be in the kernel.
func (r *Reconciler) setStuck() {
	var stuck time.Time
	for _, f := range r.failed {
		stuck = earliest(stuck, f.since)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.applying, r.stuck, r.syncing = time.Time{}, stuck, false
	r.reportWaiting()
}

// ownFault reports whether all of err concerns nobody but its Service: an address
// that another Service has, a table without room.
func ownFault(err error) bool {
	return wrapsOnly(err, func(err error) bool { return isClash(err) || isFull(err) })
}

// isClash reports whether err is an address that another Service has.
func isClash(err error) bool { _, clash := err.(*tables.ClashError); return clash }

// isFull reports whether err is a table without room.
func isFull(err error) bool { _, full := err.(*tables.FullError); return full }

// wrapsOnly reports whether err is such, or wraps or joins only errors that are.
func wrapsOnly(err error, such func(error) bool) bool {
	if such(err) {
		return true
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return wrapsOnly(e.Unwrap(), such)
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !wrapsOnly(err, such) })
	}
	return false
}
