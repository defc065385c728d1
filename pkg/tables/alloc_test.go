package tables

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/tests/tier"
)

func TestIDs(t *testing.T) {
	a := ids{limit: 100}
	r := rand.New(rand.NewPCG(1, 2))
	used := make(map[uint32]bool)
	for range 100_000 {
		if r.IntN(2) == 0 {
			id, ok := a.get()
			if ok != (len(used) < 100) {
				t.Fatalf("get returns %t with %d in use", ok, len(used))
			}
			if !ok {
				continue
			}
			for lower := range id {
				if !used[lower] {
					t.Fatalf("got %d while %d is free", id, lower)
				}
			}
			if used[id] {
				t.Fatalf("%d is given out twice", id)
			}
			used[id] = true
		} else if len(used) > 0 {
			id := anyOf(r, used)
			delete(used, id)
			a.put(id)
		}
		if int(a.inUse) != len(used) {
			t.Fatalf("%d in use, want %d", a.inUse, len(used))
		}
	}
	if len(a.free) > 100 {
		t.Errorf("%d free ids are remembered of 100", len(a.free))
	}
}

// anyOf returns a random key, the same for the same seed.
func anyOf[V any](r *rand.Rand, set map[uint32]V) uint32 {
	keys := slices.Sorted(maps.Keys(set))
	return keys[r.IntN(len(keys))]
}

func TestIDsRestore(t *testing.T) {
	a := ids{limit: 8}
	a.restore(6, func(id uint32) bool { return id == 2 || id == 5 })
	var got []uint32
	for id, ok := a.get(); ok; id, ok = a.get() {
		got = append(got, id)
	}
	if want := []uint32{0, 1, 3, 4, 6, 7}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if a.inUse != 8 {
		t.Errorf("%d in use, want 8", a.inUse)
	}
}

// slotMap says which slots belong to a row.
type slotMap struct {
	t     *testing.T
	rows  map[uint32]run
	used  map[uint32]bool
	rings map[uint32]bool // rows that are not plain
}

func (m *slotMap) add(r run, plain bool) {
	m.t.Helper()
	block := uint32(1) << r.order()
	if r.first%block != 0 {
		m.t.Fatalf("row %v is not aligned to %d", r, block)
	}
	for slot := r.first; slot < r.first+block; slot++ {
		if m.used[slot] {
			m.t.Fatalf("row %v overlaps another at %d", r, slot)
		}
		m.used[slot] = true
	}
	m.rows[r.first] = r
	if !plain {
		m.rings[r.first] = true
	}
}

func (m *slotMap) remove(r run) {
	delete(m.rows, r.first)
	delete(m.rings, r.first)
	for slot := r.first; slot < r.first+1<<r.order(); slot++ {
		delete(m.used, slot)
	}
}

// sorted returns the rows by their first slot.
func (m *slotMap) sorted() []run {
	var rows []run
	for _, first := range slices.Sorted(maps.Keys(m.rows)) {
		rows = append(rows, m.rows[first])
	}
	return rows
}

// ringPages returns the pages in which rings have slots.
func (m *slotMap) ringPages(page int) map[uint32]bool {
	pages := make(map[uint32]bool)
	for first := range m.rings {
		for slot := first; slot < first+1<<m.rows[first].order(); slot++ {
			pages[slot>>page] = true
		}
	}
	return pages
}

// TestRuns: rows overlap nowhere; plain ones find all room that there is, the others what is in
// bound pages at most; and a restart changes nothing.
func TestRuns(t *testing.T) {
	tier.OneGoroutine(t)
	seeds := uint64(8)
	if tier.All(t) {
		seeds = 40
	}
	for s := range seeds {
		r := rand.New(rand.NewPCG(s, 3))
		a := newRuns(5000 << (s % 4)) // no power of two
		a.bound = 3000
		m := &slotMap{t, make(map[uint32]run), make(map[uint32]bool), make(map[uint32]bool)}
		for range 2000 {
			if r.IntN(5) < 3 {
				count, plain := 1+r.Uint32N(1<<r.IntN(10)), r.IntN(3) > 0
				row, ok := a.get(count, plain)
				if !ok {
					m.checkFull(&a, count, plain)
					continue
				}
				if row.count != count || row.first+count > a.limit {
					t.Fatalf("asked for %d slots of %d, got %v", count, a.limit, row)
				}
				m.add(row, plain)
			} else if len(m.rows) > 0 {
				row := m.rows[anyOf(r, m.rows)]
				m.remove(row)
				a.put(row)
			}
			if int(a.inUse) != len(m.used) {
				t.Fatalf("%d slots in use, want %d", a.inUse, len(m.used))
			}
			if pages := m.ringPages(a.page); len(pages)<<a.page > 3000 || len(pages) != len(a.ring) {
				t.Fatalf("rings in %d pages of %d slots, counted are %d", len(pages), 1<<a.page, len(a.ring))
			}
		}
		m.checkRestored(&a)
		for _, row := range m.sorted() {
			a.put(row)
		}
		checkEmpty(t, &a)
	}
}

// checkFull verifies that there is no aligned free block for count slots, outside of pages of
// others for a row that is not plain.
func (m *slotMap) checkFull(a *runs, count uint32, plain bool) {
	m.t.Helper()
	block := uint32(1) << run{count: count}.order()
	pages := m.ringPages(a.page)
	newPages := max(block, 1<<a.page) + uint32(len(pages))<<a.page
	for first := uint32(0); first+block <= a.limit; first += block {
		free := plain || pages[first>>a.page] || newPages <= a.bound && m.empty(a, first, block)
		for slot := first; slot < first+block && free; slot++ {
			free = !m.used[slot]
		}
		if free {
			m.t.Fatalf("no row of %d slots, plain %t, but %d to %d are free", count, plain, first, first+block-1)
		}
	}
}

// empty reports whether nothing is in the pages of a block.
func (m *slotMap) empty(a *runs, first, block uint32) bool {
	for slot := first >> a.page << a.page; slot < align(first+block, a.page); slot++ {
		if m.used[slot] {
			return false
		}
	}
	return true
}

// checkRestored verifies that an allocator that is told the rows gives out what
// the one that gave them would.
func (m *slotMap) checkRestored(a *runs) {
	m.t.Helper()
	b := newRuns(a.limit)
	rows := m.sorted()
	if bad := b.restore(rows, func(i int) bool { return !m.rings[rows[i].first] }); len(bad) > 0 {
		m.t.Fatalf("rows %v cannot be restored", bad)
	}
	if a.inUse != b.inUse || a.next != b.next || !maps.Equal(a.ring, b.ring) || !maps.Equal(a.rings, b.rings) {
		m.t.Fatalf("%d slots in use below %d after restore, rings in %v, want %d below %d, in %v", b.inUse, b.next, b.ring, a.inUse, a.next, a.ring)
	}
	if got, want := freeBlocks(&b), freeBlocks(a); !reflect.DeepEqual(got, want) {
		m.t.Fatalf("free after restore:\n%v, want\n%v", got, want)
	}
}

// freeBlocks returns the first slot of every free block, by order: of pages, and in plain and
// other pages.
func freeBlocks(a *runs) (first [3][maxOrder + 1][]uint32) {
	for i, free := range [][maxOrder + 1]blocks{a.free, a.parts[0], a.parts[1]} {
		for order := range free {
			first[i][order] = slices.Sorted(maps.Keys(free[order].member))
		}
	}
	return first
}

// checkEmpty verifies that all has come together again.
func checkEmpty(t *testing.T, a *runs) {
	t.Helper()
	if a.inUse != 0 || a.next != 0 || len(a.ring) != 0 || len(a.rings) != 0 {
		t.Fatalf("%d slots in use below %d, want none", a.inUse, a.next)
	}
	if got, want := freeBlocks(a), freeBlocks(new(runs)); !reflect.DeepEqual(got, want) {
		t.Fatalf("single free blocks are left: %v", got)
	}
}

func TestRunsBounds(t *testing.T) {
	a := newRuns(1 << 26)
	for _, count := range []uint32{0, 1 << 24, 1<<32 - 1} {
		if r, ok := a.get(count, true); ok {
			t.Errorf("a row of %d slots is given out: %v", count, r)
		}
	}
	if r, ok := a.get(1<<24-1, false); !ok || r.count != 1<<24-1 {
		t.Errorf("row of the greatest size: %v, %t", r, ok)
	}
}

// TestRingsLeaveNoHoles: whatever rings leave behind as they come and go, sets of one slot for
// each endpoint find the room that is reserved for them in one piece.
func TestRingsLeaveNoHoles(t *testing.T) {
	const size, reserved = 1 << 16, 1 << 14
	a := newRuns(size)
	a.bound = size - reserved
	var rows []run
	for row, ok := a.get(251, false); ok; row, ok = a.get(251, false) {
		rows = append(rows, row)
	}
	if len(rows) != (size-reserved)/256 {
		t.Fatalf("%d rings", len(rows))
	}
	for i := 0; i < len(rows); i += 2 {
		a.put(rows[i])
	}
	for range reserved / 512 {
		if _, ok := a.get(300, true); !ok {
			t.Fatalf("no room for 300 slots, %d of %d are in use", a.inUse, size)
		}
	}
	for i := range len(rows) / 2 {
		if _, ok := a.get(251, false); !ok {
			t.Fatalf("no room for ring %d where there was one", i)
		}
	}
}

func TestRunsRestoreBad(t *testing.T) {
	a := newRuns(32)
	rows := []run{{0, 4}, {2, 2}, {5, 3}, {8, 5}, {12, 1}, {16, 1}, {32, 1}}
	// Overlaps {0, 4}; not aligned to four; in the block of {8, 5}; beyond the end.
	want := []run{{2, 2}, {5, 3}, {12, 1}, {32, 1}}
	if bad := a.restore(rows, func(int) bool { return true }); !slices.Equal(bad, want) {
		t.Errorf("bad rows %v, want %v", bad, want)
	}
}

// TestRunsMemory gives out and takes back millions of rows: blocks that are no
// longer free are forgotten.
func TestRunsMemory(t *testing.T) {
	tier.OneGoroutine(t)
	const limit = 1 << 16
	r := rand.New(rand.NewPCG(4, 4))
	a := newRuns(limit)
	var rows []run
	for range 30 {
		for row, ok := a.get(1, true); ok; row, ok = a.get(1+r.Uint32N(2), true) {
			rows = append(rows, row)
		}
		r.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		for i, row := range rows {
			a.put(row)
			if i%64 == 0 {
				checkHeaps(t, &a)
			}
		}
		checkEmpty(t, &a)
		rows = rows[:0]
	}
}

// checkHeaps verifies that heaps remember little more than what is free.
func checkHeaps(t *testing.T, a *runs) {
	t.Helper()
	for _, lists := range [][maxOrder + 1]blocks{a.free, a.parts[0], a.parts[1]} {
		for order := range lists {
			free, remembered := len(lists[order].member), len(lists[order].heap)
			if remembered > 4*free+1000 {
				t.Fatalf("%d blocks of order %d are remembered, %d are free", remembered, order, free)
			}
		}
	}
}
