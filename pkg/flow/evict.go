package flow

import (
	"time"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// census are the entries that a walk has found in the flow table, not in the overflow table or a former one.
type census struct {
	before, after flowmap.Turnover // the walk
	entries       int              // seen
	flows         int              // of these, forward entries
	removed       int              // of these, removed by the walk
	halfOpen      int              // flows that the programs believed half-open beyond those seen
	size          int              // entries that there is room for
}

// evictions tells how many flows the kernel has evicted, which it does not report: what was
// added and neither removed nor is there has been. Entries that come and go while a walk
// goes on are seen or not, so a walk gives bounds. The first one's upper bound is where
// counting starts, and later ones' lower bounds are what is counted: so nothing is counted
// that has not been evicted, and what one walk misses a later one finds.
type evictions struct {
	begun bool
	start int64 // entries evicted before the first walk, at most
	// Since then: entries and flows that are known to be evicted, half-open flows that the
	// programs have lost, and what has been told.
	entries     int64
	halfLost    int64
	established int64
	halfOpen    int64
	total       statusmap.Evicted
	// recent are the totals after the walks of the last recently, the oldest first, and
	// after the one before.
	recent []sample
}

// recently is how long an eviction counts for the rate that people are shown.
const recently = time.Minute

// sample is the number of flows evicted up to a time.
type sample struct {
	at                    time.Time
	established, halfOpen uint64
}

// note returns the flows evicted since the last census.
func (e *evictions) note(c census) (established, halfOpen int) {
	gone := func(t flowmap.Turnover) int64 { return int64(t.Removed) + int64(t.RemovedByAgent) }
	if !e.begun {
		e.begun, e.start = true, int64(c.after.Added)-gone(c.before)-int64(c.entries)
		return 0, 0
	}
	e.halfLost += int64(c.halfOpen)
	sure := int64(c.before.Added) - gone(c.after) - int64(c.entries-c.removed) - e.start
	if c.entries < c.size/2 {
		// Nothing is evicted with so much room: two CPUs that stored one entry at a time
		// have counted it twice.
		e.start += max(0, sure-e.entries)
		return 0, 0
	}
	if sure <= e.entries {
		return 0, 0
	}
	e.entries = sure
	// What is evicted is of both directions as what is left.
	flows := sure * int64(c.flows) / int64(max(1, c.entries))
	before := *e
	e.established = max(e.established, flows-max(0, e.halfLost))
	e.halfOpen = max(e.halfOpen, flows-e.established)
	return int(e.established - before.established), int(e.halfOpen - before.halfOpen)
}

// tell writes the sums into the maps, for people.
func (e *evictions) tell(m *bpfmap.Maps, w *Walk) error {
	now := time.Now()
	if w.EvictedEstablished != 0 || w.EvictedHalfOpen != 0 {
		e.total.Established += uint64(w.EvictedEstablished)
		e.total.HalfOpen += uint64(w.EvictedHalfOpen)
		if w.EvictedEstablished > 0 {
			e.total.Last = now
		}
		statusmap.New(m).SetEvicted(e.total)
	}
	return statusmap.New(m).SetRecentlyEvicted(e.lately(now))
}

// lately returns what was evicted in the time of the walks of the last minute, now being the
// end of one.
func (e *evictions) lately(now time.Time) statusmap.RecentlyEvicted {
	e.recent = append(e.recent, sample{now, e.total.Established, e.total.HalfOpen})
	for len(e.recent) > 2 && now.Sub(e.recent[1].at) >= recently {
		e.recent = e.recent[1:]
	}
	first := e.recent[0]
	return statusmap.RecentlyEvicted{
		From: first.at, To: now,
		Established: e.total.Established - first.established, HalfOpen: e.total.HalfOpen - first.halfOpen,
	}
}
