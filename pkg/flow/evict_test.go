package flow

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/model"
)

// entryAdded is BL_REASON_FLOW_ENTRY_ADDED.
const entryAdded = uint32(22)

// setAdded lets the programs have added so many entries.
func (tab *table) setAdded(n uint64) {
	tab.t.Helper()
	var perCPU []uint64
	check(tab.t, tab.counter.Lookup(entryAdded, &perCPU))
	perCPU[0] = n
	check(tab.t, tab.counter.Put(entryAdded, perCPU))
}

// TestEvictions: of connections that a full table has lost, which the kernel does not
// report, nearly all are counted and none that were not lost, but for what the kernel has
// evicted of one direction more than of the other; established ones apart from half-open ones.
func TestEvictions(t *testing.T) {
	tab := newTable(t, 16384)
	e := New(Options{Maps: tab.maps, Timeouts: DefaultTimeouts})
	e.clock = func() (time.Duration, error) { return start * time.Second, nil }
	next, added := 0, uint64(0)
	grow := func(flows int, state flowmap.State) {
		for range flows {
			tab.put(forward(next, model.TCP, state, start))
			tab.put(reply(next, model.TCP, start))
			next++
		}
		added += uint64(2 * flows)
		tab.setAdded(added)
		if state.HalfOpen() {
			entry := make([]byte, 128)
			check(t, tab.halfOpen.Lookup(uint32(0), &entry))
			binary.NativeEndian.PutUint64(entry, binary.NativeEndian.Uint64(entry)+uint64(flows))
			check(t, tab.halfOpen.Put(uint32(0), entry))
		}
	}
	var established, halfOpen int
	walk := func() (lost int) {
		w, err := e.walk(context.Background())
		check(t, err)
		established += w.EvictedEstablished
		halfOpen += w.EvictedHalfOpen
		return next - w.Flows
	}
	grow(1000, flowmap.StateNew)
	walk()
	grow(4000, flowmap.StateEstablished)
	if walk(); established+halfOpen != 0 {
		t.Errorf("%d established and %d half-open flows are evicted from a table with room", established, halfOpen)
	}
	grow(7000, flowmap.StateEstablished)
	walk()
	grow(5000, flowmap.StateEstablished)
	lost := walk()
	t.Logf("%d flows are lost, counted %d established and %d half-open ones", lost, established, halfOpen)
	if counted := established + halfOpen; lost < 8000 || counted < lost*9/10 || counted > lost+lost/100 {
		t.Errorf("%d of %d lost flows are counted", counted, lost)
	}
	if halfOpen < 900 || halfOpen > 1000 {
		t.Errorf("%d half-open flows are evicted, of 1000", halfOpen)
	}
	before := established
	if walk(); established != before {
		t.Errorf("%d flows are evicted though none began", established-before)
	}
}

// TestEvictionsBesideOtherTables: flows that expire in the overflow table or the former flow table are none that
// the kernel has evicted from the flow table.
func TestEvictionsBesideOtherTables(t *testing.T) {
	tab := newTable(t, 8192)
	for i := range 500 {
		tab.put(forward(i, model.TCP, flowmap.StateClosed, start+1000))
		tab.put(reply(i, model.TCP, start+1000))
	}
	tab.resize(16384)
	check(t, tab.halfOpen.Put(uint32(0), halfOpen{Overflow: start}))
	const flows = 5000
	for i := range flows {
		tab.put(forward(10000+i, model.TCP, flowmap.StateEstablished, start+1000))
		tab.put(reply(10000+i, model.TCP, start+1000))
		if i < 500 {
			k, e := forward(5000+i, model.TCP, flowmap.StateNew, start+1000)
			check(t, tab.maps.BlOverflow.Put(k, e))
		}
	}
	tab.setAdded(2 * flows)
	now := uint32(start + 1000)
	e := New(Options{Maps: tab.maps, Timeouts: DefaultTimeouts})
	e.clock = func() (time.Duration, error) { return time.Duration(now) * time.Second, nil }
	for _, want := range []Walk{{Flows: flows + 1000, Overflow: 500}, {Flows: flows + 1000, Expired: 500, Overflow: 500}, {Flows: flows + 500, Expired: 500}} {
		w, err := e.walk(context.Background())
		check(t, err)
		want.Whole = true
		if w != want {
			t.Errorf("%d s later: %+v, want %+v", now-start-1000, w, want)
		}
		now += 60
	}
}

// TestEvictionRate: the rate is that of the walks of the last minute, however long they take.
func TestEvictionRate(t *testing.T) {
	begin := time.Unix(1000, 0)
	e := &evictions{}
	for _, c := range []struct {
		at, from          int // seconds
		evicted, recently uint64
	}{
		{0, 0, 0, 0}, {10, 0, 5, 5}, {20, 0, 5, 10}, {60, 0, 1, 11}, {70, 10, 0, 6}, {79, 10, 0, 6}, {80, 20, 0, 1}, {500, 80, 7, 7},
	} {
		e.total.Established += c.evicted
		got := e.lately(begin.Add(time.Duration(c.at) * time.Second))
		if got.Established != c.recently || got.From != begin.Add(time.Duration(c.from)*time.Second) {
			t.Errorf("at %d s %d are evicted since %v, want %d since %d s", c.at, got.Established, got.From.Sub(begin), c.recently, c.from)
		}
	}
}
