package web

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/pause"
)

// rest is how many times as long as a reading the pause after it is at least: reading large tables
// takes no more than a fifth of one CPU.
const rest = 4

// reader reads the maps when somebody asks and a reading is due, and keeps what charts need.
type reader struct {
	options Options
	budget  budget

	mu   sync.Mutex
	due  time.Time // when the next reading is
	last *inspect.Sample
	err  error // of the latest reading

	top      *inspect.Top
	history  history
	refusals refusals
	traffic  traffic

	events    eventLog
	toRefused follower
	seen      newCount
	toNew     follower
}

func newReader(o Options) *reader {
	r := &reader{options: o}
	r.toRefused = follower{listen: o.Listen, options: heardRefusals, hearer: &r.events}
	r.toNew = follower{listen: o.Listen, options: inspect.NewConnectionEvents, hearer: &r.seen}
	return r
}

// close ends listening for good.
func (r *reader) close() {
	r.toRefused.close()
	r.toNew.close()
}

// answer answers a question about the latest reading, which is made now when it is due, in JSON. Who asks
// meanwhile waits for it.
func (r *reader) answer(q question) (body []byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refresh(); r.err != nil {
		return nil, r.err
	}
	r.budget.spend(pause.Work(func() { body, err = json.Marshal(r.view(q)) }))
	return body, err
}

// refresh makes a reading if one is due; r.mu is held.
func (r *reader) refresh() {
	begin := time.Now()
	if begin.Before(r.due) {
		return
	}
	r.read()
	r.due = begin.Add(max(r.options.Interval, (1+rest)*time.Since(begin)))
	r.follow()
}

// follow listens until two intervals after the next reading is due. Where there is nothing to read it
// ends listening: maps that come back may be others.
func (r *reader) follow() {
	if r.err != nil {
		r.toRefused.pause()
		r.toNew.pause()
		return
	}
	until := r.due.Add(2 * r.options.Interval)
	r.toRefused.follow(until) // first: where one place is free, it is for refusals
	r.toNew.follow(until)
}

// read makes a reading.
func (r *reader) read() {
	var sample *inspect.Sample
	if sample, r.err = r.options.Read(); r.err != nil {
		return
	}
	top := sample.Since(r.last)
	top.AddNew(&r.seen.NewConnections)
	r.add(top)
	r.last = sample
}

// add makes a reading the latest one.
func (r *reader) add(top *inspect.Top) {
	r.top = top
	r.history.add(top)
	r.refusals.add(top)
	r.traffic = trafficOf(top)
}
