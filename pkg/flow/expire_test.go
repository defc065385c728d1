package flow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/tests/bpffs"
)

// key and entry have the layout of bl_flow_key and bl_flow_entry.
type key struct {
	Src, Dst         [16]byte
	SrcPort, DstPort [2]byte
	Proto            uint8
	_                [3]uint8
}

type entry struct {
	Addr            [16]byte
	Union           [16]byte // forward: backend id, used, sequence numbers; reply: client
	Port, OtherPort [2]byte
	Touched         uint16
	Device, Bits    uint8
}

const isReply = 1 << 3

// table is a flow table in the kernel, and what the programs would write there.
type table struct {
	t    *testing.T
	dir  string
	maps *bpfmap.Maps
	flow *ebpf.Map
	// What the programs keep of half-open flows.
	overflow, halfOpen *ebpf.Map
	counter            *ebpf.Map
}

// newTable makes maps whose pins are on a BPF file system that has no place in the
// tree, so it is gone with the test.
func newTable(t *testing.T, flows uint32) *table {
	t.Helper()
	dir := bpffs.New(t)
	sizes := bpfmap.DefaultSizes
	sizes.Affinity, sizes.UDPPeers, sizes.Clients, sizes.Flows = 1024, 1024, 1024, flows
	maps, err := bpfmap.Load(dir, sizes)
	check(t, err)
	t.Cleanup(func() { maps.Close() })
	check(t, maps.Pin(dir))
	pinned := func(name string) *ebpf.Map {
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), nil)
		check(t, err)
		t.Cleanup(func() { m.Close() })
		return m
	}
	return &table{t, dir, maps, pinned("bl_flow"), pinned("bl_overflow"), pinned("bl_half_open"), pinned("bl_counter")}
}

// resize puts a flow table of another size in the place of the present one, which is the former one then.
func (tab *table) resize(flows uint32) {
	tab.t.Helper()
	sizes := bpfmap.DefaultSizes
	sizes.Affinity, sizes.UDPPeers, sizes.Clients, sizes.Flows = 1024, 1024, 1024, flows
	maps, err := bpfmap.Load(tab.dir, sizes)
	check(tab.t, err)
	tab.t.Cleanup(func() { maps.Close() })
	tab.maps, tab.flow = maps, maps.BlFlow
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// addr returns one of 2^24 addresses.
func addr(n int) [16]byte {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}).As16()
}

// forward returns the forward entry of the nth flow, last used at second used.
func forward(n int, protocol model.Protocol, state flowmap.State, used uint32) (key, entry) {
	k := key{Src: addr(n), Dst: addr(1 << 20), SrcPort: [2]byte{1, 2}, DstPort: [2]byte{0, 80}, Proto: uint8(protocol)}
	e := entry{Addr: addr(1<<21 + n), Port: [2]byte{31, 144}, OtherPort: k.SrcPort, Touched: uint16(used), Bits: uint8(state)}
	binary.NativeEndian.PutUint32(e.Union[4:], used)
	return k, e
}

// reply returns the reply entry of the nth flow, last replied to at second touched.
func reply(n int, protocol model.Protocol, touched uint32) (key, entry) {
	k, e := forward(n, protocol, 0, 0)
	return key{Src: e.Addr, Dst: k.Src, SrcPort: e.Port, DstPort: e.OtherPort, Proto: k.Proto},
		entry{Addr: k.Dst, Union: k.Src, Port: k.DstPort, OtherPort: k.SrcPort, Touched: uint16(touched), Bits: isReply}
}

func (tab *table) put(k key, e entry) {
	tab.t.Helper()
	check(tab.t, tab.flow.Put(k, e))
}

func (tab *table) has(k key, _ entry) bool {
	tab.t.Helper()
	var e entry
	err := tab.flow.Lookup(k, &e)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false
	}
	check(tab.t, err)
	return true
}

// walk walks once at second now.
func (tab *table) walk(now uint32) Walk {
	tab.t.Helper()
	e := New(Options{Maps: tab.maps, Timeouts: DefaultTimeouts})
	e.clock = func() (time.Duration, error) { return time.Duration(now) * time.Second, nil }
	w, err := e.walk(context.Background())
	check(tab.t, err)
	if !w.Whole {
		tab.t.Error("the walk was not of the whole table")
	}
	w.Whole = false
	return w
}

// start is the second in which the tests begin: the short stamps wrap soon after.
const start = 3*65536 - 20

// TestExpiry keeps each flow until its time-out, and no longer.
func TestExpiry(t *testing.T) {
	tab := newTable(t, 4096)
	for i, c := range []struct {
		protocol model.Protocol
		state    flowmap.State
		timeout  uint32 // s
	}{
		{model.TCP, flowmap.StateNew, 120},
		{model.TCP, flowmap.StateSynReceived, 60},
		{model.TCP, flowmap.StateEstablished, 432000},
		{model.TCP, flowmap.StateClientClosing, 120},
		{model.TCP, flowmap.StateBackendClosing, 120},
		{model.TCP, flowmap.StateClosed, 10},
		{model.TCP, flowmap.StateAborted, 10},
		{model.UDP, flowmap.StateNew, 30},
		{model.UDP, flowmap.StateSynReceived, 30},
		{model.UDP, flowmap.StateEstablished, 120},
		{model.SCTP, flowmap.StateNew, 30},
		{model.SCTP, flowmap.StateSynReceived, 30},
		{model.SCTP, flowmap.StateEstablished, 210},
	} {
		name := fmt.Sprint(c.protocol, " ", c.state)
		tab.put(forward(i, c.protocol, c.state, start))
		tab.put(reply(i, c.protocol, start))
		for _, now := range []uint32{start, start + c.timeout - 1} {
			want := Walk{Flows: 1}
			if c.state.HalfOpen() {
				want.HalfOpen = 1
			}
			if w := tab.walk(now); w != want {
				t.Errorf("%s: after %d s: %+v, want %+v", name, now-start, w, want)
			}
			if !tab.has(forward(i, c.protocol, 0, 0)) || !tab.has(reply(i, c.protocol, 0)) {
				t.Errorf("%s is not whole after %d s", name, now-start)
			}
		}
		if w := tab.walk(start + c.timeout); w != (Walk{Flows: 1, Expired: 1}) {
			t.Errorf("%s: after %d s: %+v", name, c.timeout, w)
		}
		if tab.has(forward(i, c.protocol, 0, 0)) || tab.has(reply(i, c.protocol, 0)) {
			t.Errorf("%s is there after %d s", name, c.timeout)
		}
	}
}

// TestOrphan removes a reply entry whose forward entry is gone, over the wrap of its
// stamp, and none that may come to life.
func TestOrphan(t *testing.T) {
	tab := newTable(t, 4096)
	tab.put(reply(1, model.TCP, start))
	for _, c := range []struct {
		now  uint32
		want Walk
	}{
		{start - 1, Walk{}}, // a reply came since the clock was read
		{start + 119, Walk{}},
		{start + 120, Walk{Orphans: 1}},
		{start + 130, Walk{}},
	} {
		if w := tab.walk(c.now); w != c.want {
			t.Errorf("%d s after the last reply: %+v, want %+v", int(c.now)-start, w, c.want)
		}
	}
	if tab.has(reply(1, model.TCP, 0)) {
		t.Error("the entry is still there")
	}
}

// TestOneWay keeps the reply entry of a flow in which only the client sends.
func TestOneWay(t *testing.T) {
	tab := newTable(t, 4096)
	tab.put(forward(1, model.TCP, flowmap.StateEstablished, start+5000))
	tab.put(reply(1, model.TCP, start))
	if w := tab.walk(start + 5001); w != (Walk{Flows: 1}) || !tab.has(reply(1, model.TCP, 0)) {
		t.Errorf("%+v", w)
	}
}

// halfOpen has the layout of bl_half_open_entry.
type halfOpen struct {
	Count    int64
	_        [56]byte
	Overflow uint32
	_        [60]byte
}

// TestHalfOpen corrects what the programs think, and lets packets pass by the overflow
// table once that is empty and at rest.
func TestHalfOpen(t *testing.T) {
	tab := newTable(t, 4096)
	wrong := halfOpen{Count: 70, Overflow: start}
	check(t, tab.halfOpen.Put(uint32(0), wrong))
	add := func(m *ebpf.Map, n int, state flowmap.State) {
		k, e := forward(n, model.TCP, state, start)
		check(t, m.Put(k, e))
	}
	add(tab.flow, 1, flowmap.StateNew)
	add(tab.flow, 2, flowmap.StateSynReceived)
	add(tab.flow, 3, flowmap.StateAborted)
	add(tab.flow, 4, flowmap.StateEstablished)
	add(tab.overflow, 5, flowmap.StateNew)
	k, e := reply(6, model.TCP, start)
	check(t, tab.overflow.Put(k, e))
	for _, c := range []struct {
		after uint32
		walk  Walk
		want  halfOpen
	}{
		{8, Walk{Flows: 5, HalfOpen: 3, Overflow: 1}, halfOpen{3, [56]byte{}, start, [60]byte{}}},
		{60, Walk{Flows: 5, HalfOpen: 1, Overflow: 1, Expired: 2, Orphans: 1}, halfOpen{1, [56]byte{}, start, [60]byte{}}},
		{119, Walk{Flows: 3, HalfOpen: 1, Overflow: 1}, halfOpen{1, [56]byte{}, start, [60]byte{}}},
		{120, Walk{Flows: 3, Expired: 2}, halfOpen{0, [56]byte{}, start, [60]byte{}}},
		{121, Walk{Flows: 1}, halfOpen{}},
	} {
		if w := tab.walk(start + c.after); w != c.walk {
			t.Errorf("after %d s: %+v, want %+v", c.after, w, c.walk)
		}
		var got halfOpen
		check(t, tab.halfOpen.Lookup(uint32(0), &got))
		if got != c.want {
			t.Errorf("after %d s the programs know %+v, want %+v", c.after, got, c.want)
		}
	}
	check(t, tab.halfOpen.Put(uint32(0), halfOpen{Overflow: start + 500}))
	tab.walk(start + 503)
	if known := flowmap.New(tab.maps).HalfOpen(); known.Overflow != start+500 {
		t.Error("a table that was just added to is passed by")
	}
}

// TestHalfOpenInTwoTables: the programs count half-open flows of the former table, too, to which those of a device
// may still add; one that is in both counts as the present one has it.
func TestHalfOpenInTwoTables(t *testing.T) {
	tab := newTable(t, 4096)
	tab.put(forward(1, model.TCP, flowmap.StateNew, start)) // is in the former one alone
	tab.put(forward(2, model.TCP, flowmap.StateNew, start))
	tab.put(forward(3, model.TCP, flowmap.StateNew, start)) // has been established since
	tab.resize(8192)
	tab.put(forward(2, model.TCP, flowmap.StateSynReceived, start))
	tab.put(forward(3, model.TCP, flowmap.StateEstablished, start))
	tab.put(forward(4, model.TCP, flowmap.StateNew, start))
	check(t, tab.halfOpen.Put(uint32(0), halfOpen{Count: 70}))
	if w, want := tab.walk(start+8), (Walk{Flows: 4, HalfOpen: 3}); w != want {
		t.Errorf("%+v, want %+v", w, want)
	}
	if known := flowmap.New(tab.maps).HalfOpen(); known.Count != 3 {
		t.Errorf("the programs know %d half-open flows, want 3", known.Count)
	}
}

// TestFlowInTwoTables: a flow that the programs have taken from the former table is told once, by its state and
// time in the present one, when it is left and when it expires.
func TestFlowInTwoTables(t *testing.T) {
	tab := newTable(t, 4096)
	former := tab.flow
	tab.put(forward(1, model.TCP, flowmap.StateEstablished, start)) // has closed since
	tab.put(reply(1, model.TCP, start))
	tab.put(forward(2, model.UDP, flowmap.StateEstablished, start)) // goes on
	tab.put(reply(2, model.UDP, start))
	tab.put(forward(3, model.UDP, flowmap.StateEstablished, start)) // is in the former one alone
	tab.resize(8192)
	tab.put(forward(1, model.TCP, flowmap.StateClosed, start+100))
	tab.put(reply(1, model.TCP, start+100))
	tab.put(forward(2, model.UDP, flowmap.StateEstablished, start+100))
	tab.put(reply(2, model.UDP, start+100))
	var now uint32
	var left, expired int
	e := New(Options{
		Maps: tab.maps, Timeouts: DefaultTimeouts,
		Left: func(*flowmap.Flow) { left++ }, Expired: func(*flowmap.Flow) { expired++ },
	})
	e.clock = func() (time.Duration, error) { return time.Duration(now) * time.Second, nil }
	for _, c := range []struct {
		after   uint32
		want    Walk
		replies int // entries that are left in both tables
	}{
		{105, Walk{Flows: 3}, 4}, {115, Walk{Flows: 3, Expired: 1}, 2}, {130, Walk{Flows: 2, Expired: 1}, 2},
		{219, Walk{Flows: 1}, 2}, {220, Walk{Flows: 1, Expired: 1}, 0}, {500000, Walk{}, 0},
	} {
		now, left, expired = start+c.after, 0, 0
		w, err := e.walk(context.Background())
		check(t, err)
		w.Whole, w.Orphans = false, 0
		if w != c.want || expired != w.Expired || left != w.Flows-w.Expired {
			t.Errorf("after %d s: %+v, want %+v; told of %d that are left and %d that have expired", c.after, w, c.want, left, expired)
		}
		replies := 0
		for batch, err := range e.table.Batches(e.clock) {
			check(t, err)
			replies += len(batch.Replies)
		}
		if replies != c.replies {
			t.Errorf("after %d s %d reply entries are left, want %d", c.after, replies, c.replies)
		}
	}
	if err := former.Lookup(firstKey(forward(1, model.TCP, 0, 0)), new(entry)); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("the former table has a flow of no use: %v", err)
	}
}

func firstKey(k key, _ entry) key { return k }

// TestManyFlows expires half of 100,000 flows and nothing of the others.
func TestManyFlows(t *testing.T) {
	const flows = 100_000
	tab := newTable(t, 1<<19) // with room, for an LRU map evicts before it is full
	keys, entries := make([]key, 0, 2*flows), make([]entry, 0, 2*flows)
	add := func(k key, e entry) { keys, entries = append(keys, k), append(entries, e) }
	for i := range flows {
		add(forward(i, model.TCP, flowmap.StateEstablished, uint32(start+i%2*1000)))
		add(reply(i, model.TCP, start))
	}
	_, err := tab.flow.BatchUpdate(keys, entries, nil)
	check(t, err)

	var w Walk
	took := pause.Work(func() { w = tab.walk(start + 432000) })
	t.Logf("a walk over %d entries that removes half takes %v of a CPU", len(keys), took)
	if w != (Walk{Flows: flows, Expired: flows / 2}) {
		t.Errorf("first walk: %+v", w)
	}
	took = pause.Work(func() { w = tab.walk(start + 432000) })
	t.Logf("one over those that are left takes %v", took)
	if w != (Walk{Flows: flows / 2}) {
		t.Errorf("second walk: %+v", w)
	}
	for i := range 100 {
		want := i%2 == 1
		if tab.has(forward(i, model.TCP, 0, 0)) != want || tab.has(reply(i, model.TCP, 0)) != want {
			t.Errorf("flow %d: not both entries are %t", i, want)
		}
	}
}

// TestPace: walks leave a CPU to others, and take more of it where flows end faster than they are
// removed and the kernel would evict others. What others take of a busy machine does not slow them.
func TestPace(t *testing.T) {
	const size = 1 << 13 // entries
	tab := newTable(t, size)
	e := New(Options{Maps: tab.maps, Timeouts: DefaultTimeouts, Interval: 10 * time.Second})
	e.clock = func() (time.Duration, error) { return start * time.Second, nil }
	var paused time.Duration
	e.pause = func(_ context.Context, d time.Duration) bool {
		paused += d
		time.Sleep(time.Millisecond) // others run
		return true
	}
	flows := 0
	for _, c := range []struct {
		full     float64 // how much of the table is taken
		rest     float64
		interval time.Duration
	}{{0.25, 9, 10 * time.Second}, {0.5, 9, 10 * time.Second}, {0.625, 5, 5500 * time.Millisecond}, {0.75, 1, time.Second}, {0.8, 1, time.Second}} {
		for ; float64(flows) < c.full*size; flows++ {
			tab.put(forward(flows, model.TCP, flowmap.StateClosed, start))
		}
		for range 2 { // the second one at the pace that follows from the first
			paused = 0
			worked := pause.Work(func() {
				_, err := e.walk(t.Context())
				check(t, err)
			})
			if most := time.Duration(9 * float64(worked)); paused > most || paused == 0 {
				t.Errorf("%.3f full: a walk of %v pauses for %v", c.full, worked, paused)
			}
		}
		if math.Abs(e.pace.rest-c.rest) > 0.01 || (e.pace.interval-c.interval).Abs() > 10*time.Millisecond {
			t.Errorf("%.3f full: the pace is %+v, want %v and %v", c.full, e.pace, c.rest, c.interval)
		}
	}
}

// TestRunEnds stops in the middle of a walk or between two.
func TestRunEnds(t *testing.T) {
	tab := newTable(t, 4096)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	e := New(Options{Maps: tab.maps, Timeouts: DefaultTimeouts, Walked: func(w Walk) { t.Errorf("walked: %+v", w) }})
	e.Run(ctx)
	tab.put(forward(1, model.UDP, flowmap.StateNew, start))
	if _, err := e.walk(ctx); err != nil {
		t.Error(err)
	}
}
