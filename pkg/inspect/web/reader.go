package web

import (
	"context"
	"sync"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/pause"
)

// rest is how many times as long as a reading the pause after it is at least: reading large tables
// takes no more than a fifth of one CPU.
const rest = 4

// Answers take answering of the time from one reading to the next at most, each of them leastWork, for
// what the HTTP server does: who asks in a loop takes no more of the agent's CPU time.
const (
	answering = 1. / 10
	leastWork = time.Millisecond
)

// reader reads the maps when somebody asks and a reading is due, and keeps what charts need.
type reader struct {
	options Options

	mu   sync.Mutex
	due  time.Time     // when the next reading is
	left time.Duration // CPU time for answers until then
	last *inspect.Sample
	err  error // of the latest reading

	top      *inspect.Top
	history  history
	refusals refusals
	events   eventLog
	traffic  traffic
}

// answer answers a question about the latest reading, which is made now when it is due. Who asks
// meanwhile waits for it, and who asks when the time for answers is used up, for the next one.
func (r *reader) answer(ctx context.Context, q question) (*answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.refresh(); r.left <= 0; r.refresh() {
		wait := time.Until(r.due)
		r.mu.Unlock()
		goesOn := pause.For(ctx, wait)
		r.mu.Lock()
		if !goesOn {
			return nil, ctx.Err()
		}
	}
	r.left -= leastWork
	if r.err != nil {
		return nil, r.err
	}
	var a *answer
	r.left -= pause.Work(func() { a = r.view(q) })
	return a, nil
}

// charge takes what was done for an answer from the time for answers.
func (r *reader) charge(work time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left -= work
}

// refresh makes a reading if one is due; r.mu is held.
func (r *reader) refresh() {
	begin := time.Now()
	if begin.Before(r.due) {
		return
	}
	r.read()
	period := max(r.options.Interval, (1+rest)*time.Since(begin), leastWork)
	r.due = begin.Add(period)
	r.left = max(time.Duration(answering*float64(period)), leastWork)
	r.follow()
}

// follow listens until two intervals after the next reading is due. Where there is nothing to read it
// ends listening: maps that come back may be others.
func (r *reader) follow() {
	if r.err != nil {
		r.events.pause()
		return
	}
	r.events.follow(r.due.Add(2 * r.options.Interval))
}

// read makes a reading.
func (r *reader) read() {
	var sample *inspect.Sample
	if sample, r.err = r.options.Read(); r.err != nil {
		return
	}
	r.add(sample.Since(r.last))
	r.last = sample
}

// add makes a reading the latest one.
func (r *reader) add(top *inspect.Top) {
	r.top = top
	r.history.add(top)
	r.refusals.add(top)
	r.traffic = trafficOf(top)
}
