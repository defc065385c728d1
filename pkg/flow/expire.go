// Package flow expires packet flows, as garbage collection does for conntrack.
//
// The programs note in the forward entry of each flow its state and the time of its last
// packet. The agent walks the table at a pace that leaves the CPU to others and removes
// both entries of a flow that was idle too long. While the agent is down nothing expires,
// and a full table evicts least recently used entries.
package flow

import (
	"cmp"
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/pause"
)

// defaultInterval passes between the end of a walk and the next: the precision of timeouts.
const defaultInterval = 10 * time.Second

// How many times as long as it worked a walk pauses: it takes a tenth of a CPU at most while the table is
// not half full. From there on it takes more, and begins again sooner, up to half of a CPU from three
// quarters on: where flows end faster than they are removed, the kernel evicts others.
const (
	leisure = 9.0
	haste   = 1.0
)

// pace is how a walk is made.
type pace struct {
	rest     float64 // pause for the time of work
	interval time.Duration
}

// paceOf returns the pace of walks in a table that was so full, with an interval while there is room.
func paceOf(full float64, interval time.Duration) pace {
	room := min(1, max(0, (0.75-full)/0.25))
	return pace{
		rest:     haste + room*(leisure-haste),
		interval: time.Duration((0.1 + 0.9*room) * float64(interval)),
	}
}

// orphanTimeout is how long a reply entry without a forward entry may be unused.
// Below it, the flow may just have begun, or its next reply makes the forward entry
// again. It must be far from the 65536 s at which the entry's stamp starts over.
const orphanTimeout = 120 * time.Second

// overflowOrphanTimeout is the same in the overflow table: the forward entry was evicted.
const overflowOrphanTimeout = 10 * time.Second

// Walk is the result of one walk over the table.
type Walk struct {
	Flows    int // in the tables before the walk
	Expired  int // flows of these that were removed
	Orphans  int // reply entries without a flow that were removed
	HalfOpen int // flows that are left in the flow table, or the former one, and not established
	// Masqueraded are flows that are left to endpoints on this node which see this node for
	// their client.
	Masqueraded int
	Overflow    int // flows that are left in the overflow table, none of them established
	// EvictedEstablished and EvictedHalfOpen are flows that the kernel has taken out of the
	// full table since the walk before: no more than their entries that certainly were.
	EvictedEstablished int
	EvictedHalfOpen    int
	// Whole says that the walk has seen the whole table.
	Whole bool
}

// Options configure an [Expirer].
type Options struct {
	Maps     *bpfmap.Maps
	Timeouts Timeouts
	// Interval passes between the end of a walk and the next while the table has room; 0 is 10 s.
	Interval time.Duration
	// Walked, unless nil, is called after each walk.
	Walked func(Walk)
	// Left, unless nil, is called before that for each flow that the walk has seen and left.
	Left func(*flowmap.Flow)
	// Expired, unless nil, is called for each flow that was idle too long and is removed.
	Expired func(*flowmap.Flow)
	// NoneMasqueraded, unless nil, is called after each walk of the whole table that has found no
	// masqueraded flow, with the time at which it began.
	NoneMasqueraded func(context.Context, time.Time)
}

// Expirer removes idle flows.
type Expirer struct {
	Options
	table     flowmap.Table
	clock     func() (time.Duration, error)
	pause     func(context.Context, time.Duration) bool
	evictions evictions
	pace      pace // of the next walk
}

// New returns an Expirer, which does nothing before Run.
func New(o Options) *Expirer {
	o.Interval = cmp.Or(o.Interval, defaultInterval)
	return &Expirer{Options: o, table: flowmap.New(o.Maps), clock: bpf.Clock, pause: pause.For, pace: paceOf(0, o.Interval)}
}

// Run walks the table again and again until ctx ends. Errors are logged, and the next
// walk tries again.
func (e *Expirer) Run(ctx context.Context) {
	for e.pause(ctx, e.pace.interval) {
		began := time.Now()
		w, err := e.walk(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			klog.ErrorS(err, "Idle flows could not be removed; trying again", "in", e.pace.interval)
		}
		if err := e.evictions.tell(e.Maps, &w); err != nil {
			klog.ErrorS(err, "Evicted flows could not be counted")
		}
		if e.Walked != nil {
			e.Walked(w)
		}
		if e.NoneMasqueraded != nil && err == nil && w.Masqueraded == 0 {
			e.NoneMasqueraded(ctx, began)
		}
	}
}

// walk goes over the table once, or until ctx ends.
func (e *Expirer) walk(ctx context.Context) (Walk, error) {
	var w Walk
	var errs []error
	before := e.table.HalfOpen()
	begun, err := e.clock()
	if err != nil {
		return w, err
	}
	turnover, err := e.table.Turnover()
	if err != nil {
		return w, err
	}
	overflow := 0                                                 // entries of the overflow table
	seen := census{before: turnover, size: 2 * e.Maps.MaxFlows()} // of the flow table
	counts := counts{e.table.StartSourceCount(), e.table.StartActiveCount()}
	lap, end := pause.Laps()
	defer end()
	for batch, err := range e.table.Batches(e.clock) {
		removed := w.Expired + w.Orphans
		if err == nil {
			err = e.expire(&batch, &w, counts)
		}
		if err != nil {
			errs = append(errs, err)
		}
		switch {
		case batch.Overflow:
			overflow += len(batch.Flows) + len(batch.Replies)
		case !batch.Former:
			seen.entries += len(batch.Flows) + len(batch.Replies)
			seen.flows += len(batch.Flows)
			seen.removed += w.Expired + w.Orphans - removed
		}
		if !e.pause(ctx, time.Duration(e.pace.rest*float64(lap()))) {
			return w, errors.Join(errs...)
		}
	}
	e.pace = paceOf(float64(seen.entries)/float64(seen.size), e.Interval)
	if len(errs) > 0 {
		return w, errors.Join(errs...)
	}
	w.Whole = true
	e.table.CountHalfOpen(before, w.HalfOpen)
	e.table.EndSourceCount(counts.sources)
	e.table.EndActiveCount(counts.active)
	if seen.after, err = e.table.Turnover(); err != nil {
		return w, err
	}
	seen.halfOpen = int(before.Count) - w.HalfOpen
	w.EvictedEstablished, w.EvictedHalfOpen = e.evictions.note(seen)
	if overflow == 0 {
		e.table.ForgetOverflow(before, begun)
	}
	return w, nil
}

// counts are what a walk counts for the programs.
type counts struct {
	sources *flowmap.SourceCount
	active  *flowmap.ActiveCount
}

// expire removes the expired flows of a part of the table, and counts the others. It stops at the
// first error: those after it would be the same.
func (e *Expirer) expire(batch *flowmap.Batch, w *Walk, counts counts) error {
	for i := range batch.Flows {
		f := &batch.Flows[i]
		removed := false
		if f.Idle >= e.Timeouts.of(f.Protocol, f.State) {
			var err error
			if removed, err = e.table.Expire(f); err != nil {
				return err
			}
		}
		if f.Moved {
			continue // it is in another batch as it is now
		}
		w.Flows++
		counts.active.Add(f, removed)
		if removed && e.Expired != nil {
			e.Expired(f)
		}
		if !removed && e.Left != nil {
			e.Left(f)
		}
		if !removed && f.Masqueraded() {
			w.Masqueraded++
		}
		switch {
		case removed:
			w.Expired++
		case f.Overflow:
			w.Overflow++
		case f.State.HalfOpen():
			w.HalfOpen++
		default:
			counts.sources.Add(f)
		}
	}
	timeout := orphanTimeout
	if batch.Overflow {
		timeout = overflowOrphanTimeout
	}
	for i := range batch.Replies {
		r := &batch.Replies[i]
		if r.Unused < timeout {
			continue
		}
		removed, err := e.table.ExpireReply(r)
		if err != nil {
			return err
		}
		if removed {
			w.Orphans++
		}
	}
	return nil
}
