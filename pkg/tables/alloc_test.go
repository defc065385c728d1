package tables

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
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
	t    *testing.T
	rows map[uint32]run
	used map[uint32]bool
}

func (m *slotMap) add(r run) {
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
}

func (m *slotMap) remove(r run) {
	delete(m.rows, r.first)
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

func TestRuns(t *testing.T) {
	for s := range uint64(20) {
		r := rand.New(rand.NewPCG(s, 3))
		a := runs{limit: 5000} // no power of two
		m := &slotMap{t, make(map[uint32]run), make(map[uint32]bool)}
		for range 2000 {
			if r.IntN(5) < 3 {
				count := 1 + r.Uint32N(1<<r.IntN(10))
				row, ok := a.get(count)
				if !ok {
					m.checkFull(a.limit, count)
					continue
				}
				if row.count != count || row.first+count > a.limit {
					t.Fatalf("asked for %d slots of %d, got %v", count, a.limit, row)
				}
				m.add(row)
			} else if len(m.rows) > 0 {
				row := m.rows[anyOf(r, m.rows)]
				m.remove(row)
				a.put(row)
			}
			if int(a.inUse) != len(m.used) {
				t.Fatalf("%d slots in use, want %d", a.inUse, len(m.used))
			}
		}
		checkRestored(t, &a, m.sorted())
		for _, row := range m.sorted() {
			a.put(row)
		}
		checkEmpty(t, &a)
	}
}

// checkFull verifies that there is no aligned free block for count slots.
func (m *slotMap) checkFull(limit, count uint32) {
	m.t.Helper()
	block := uint32(1) << run{count: count}.order()
	for first := uint32(0); first+block <= limit; first += block {
		free := true
		for slot := first; slot < first+block && free; slot++ {
			free = !m.used[slot]
		}
		if free {
			m.t.Fatalf("no row of %d slots, but %d to %d are free", count, first, first+block-1)
		}
	}
}

// checkRestored verifies that an allocator that is told the rows gives out what
// the one that gave them would.
func checkRestored(t *testing.T, a *runs, rows []run) {
	t.Helper()
	b := runs{limit: a.limit}
	if bad := b.restore(rows); len(bad) > 0 {
		t.Fatalf("rows %v cannot be restored", bad)
	}
	if a.inUse != b.inUse || a.next != b.next {
		t.Fatalf("%d slots in use below %d after restore, want %d below %d", b.inUse, b.next, a.inUse, a.next)
	}
	if got, want := freeBlocks(&b), freeBlocks(a); !reflect.DeepEqual(got, want) {
		t.Fatalf("free after restore:\n%v, want\n%v", got, want)
	}
}

// freeBlocks returns the first slot of every free block, by order.
func freeBlocks(a *runs) (blocks [maxOrder + 1][]uint32) {
	for order := range a.free {
		blocks[order] = slices.Sorted(maps.Keys(a.free[order].member))
	}
	return blocks
}

// checkEmpty verifies that all has come together again.
func checkEmpty(t *testing.T, a *runs) {
	t.Helper()
	if a.inUse != 0 || a.next != 0 {
		t.Fatalf("%d slots in use below %d, want none", a.inUse, a.next)
	}
	if got, want := freeBlocks(a), freeBlocks(new(runs)); !reflect.DeepEqual(got, want) {
		t.Fatalf("single free blocks are left: %v", got)
	}
}

func TestRunsBounds(t *testing.T) {
	a := runs{limit: 1 << 26}
	for _, count := range []uint32{0, 1 << 24, 1<<32 - 1} {
		if r, ok := a.get(count); ok {
			t.Errorf("a row of %d slots is given out: %v", count, r)
		}
	}
	if r, ok := a.get(1<<24 - 1); !ok || r.count != 1<<24-1 {
		t.Errorf("row of the greatest size: %v, %t", r, ok)
	}
}

func TestRunsRestoreBad(t *testing.T) {
	var a runs
	rows := []run{{0, 4}, {2, 2}, {5, 3}, {8, 5}, {12, 1}, {16, 1}}
	// Overlaps {0, 4}; not aligned to four; in the block of {8, 5}.
	want := []run{{2, 2}, {5, 3}, {12, 1}}
	if bad := a.restore(rows); !slices.Equal(bad, want) {
		t.Errorf("bad rows %v, want %v", bad, want)
	}
}

// TestRunsMemory gives out and takes back millions of rows: blocks that are no
// longer free are forgotten.
func TestRunsMemory(t *testing.T) {
	const limit = 1 << 16
	r := rand.New(rand.NewPCG(4, 4))
	a := runs{limit: limit}
	var rows []run
	for range 30 {
		for row, ok := a.get(1); ok; row, ok = a.get(1 + r.Uint32N(2)) {
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
	for order := range a.free {
		free, remembered := len(a.free[order].member), len(a.free[order].heap)
		if remembered > 4*free+1000 {
			t.Fatalf("%d blocks of order %d are remembered, %d are free", remembered, order, free)
		}
	}
}
