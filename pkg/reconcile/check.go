package reconcile

import (
	"time"

	"github.com/beeline-lb/beeline/pkg/tables"
)

// A check of the tables works for checkSlice at a time, so that it holds up no change for longer,
// and then pauses checkShare times as long, but checkPause at most, for others may have had the CPU:
// it takes a fiftieth of a CPU, however large the tables are.
const (
	checkSlice = 2 * time.Millisecond
	checkShare = 49
	checkPause = time.Second
)

// Checked is the outcome of one check.
type Checked struct {
	// Found are the entries that were not as they had been written, or should be.
	Found []tables.Difference
	// Worked is how long the loop was held up by it, Took how long it has taken.
	Worked, Took time.Duration
	// Err tells what could not be compared or mended.
	Err error
}

// check is the check under way. It is of the loop only.
type check struct {
	have  tables.Stored // nil: the store cannot be checked
	now   *tables.Check // nil between two checks
	began time.Time
	sum   Checked

	timer *time.Timer
	due   <-chan time.Time
}

// startChecks has the store checked from time to time, until stop is called.
func (r *Reconciler) startChecks() (stop func()) {
	have, ok := r.store.(tables.Stored)
	if !ok || r.opts.CheckPeriod == 0 {
		return func() {}
	}
	timer := time.NewTimer(r.opts.CheckPeriod)
	r.check = check{have: have, timer: timer, due: timer.C}
	return func() {
		timer.Stop()
		if r.check.now != nil {
			_, _, _ = r.check.now.Stop() // what is not ended tells nothing
		}
	}
}

// checkSome goes on with the check, or begins the next one.
func (r *Reconciler) checkSome() {
	c := &r.check
	if !r.complete || !r.pruned {
		c.timer.Reset(r.opts.CheckPeriod)
		return
	}
	start := time.Now()
	if c.now == nil {
		c.now, c.began, c.sum = r.tables.NewCheck(c.have), start, Checked{}
	}
	more := true
	for more && time.Since(start) < checkSlice {
		more = c.now.Step()
	}
	worked := time.Since(start)
	c.sum.Worked += worked
	if more {
		c.timer.Reset(min(checkShare*worked, checkPause))
		return
	}
	r.endCheck()
}

// endCheck takes what a check has found.
func (r *Reconciler) endCheck() {
	c := &r.check
	found, again, err := c.now.Stop()
	c.now = nil
	c.sum.Found, c.sum.Err, c.sum.Took = found, err, time.Since(c.began)
	if len(again) > 0 {
		r.mu.Lock()
		for name := range again {
			r.touch(name)
		}
		r.reportWaiting()
		r.mu.Unlock()
		r.signal()
	}
	if r.opts.Checked != nil {
		r.opts.Checked(c.sum)
	}
	c.timer.Reset(max(r.opts.CheckPeriod-c.sum.Took, checkShare*checkSlice))
}
