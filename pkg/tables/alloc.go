package tables

import (
	"container/heap"
	"math/bits"
)

// ids hands out the numbers from 0 up, the lowest free one first, so that tables
// stay dense.
type ids struct {
	limit uint32
	next  uint32 // every number from here on is free
	free  minHeap
	inUse uint32
}

// get returns a free number, or false when limit are in use.
func (a *ids) get() (uint32, bool) {
	if len(a.free) > 0 {
		a.inUse++
		return heap.Pop(&a.free).(uint32), true
	}
	if a.next >= a.limit {
		return 0, false
	}
	a.next++
	a.inUse++
	return a.next - 1, true
}

func (a *ids) put(id uint32) {
	a.inUse--
	heap.Push(&a.free, id)
}

// restore marks the numbers for which used returns true, out of those below end,
// as handed out. To be called once, before get.
func (a *ids) restore(end uint32, used func(uint32) bool) {
	a.next = end
	for id := range end {
		if used(id) {
			a.inUse++
		} else {
			a.free = append(a.free, id)
		}
	}
	heap.Init(&a.free)
}

type minHeap []uint32

func (h minHeap) Len() int           { return len(h) }
func (h minHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h minHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *minHeap) Push(x any)        { *h = append(*h, x.(uint32)) }
func (h *minHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// run is a row of neighbouring slots.
type run struct {
	first uint32
	count uint32
}

// order is the power of two of the block that holds the run.
func (r run) order() int { return bits.Len32(r.count - 1) }

// maxRun is the greatest number of slots of a run: what a set word can count.
const maxRun = 1<<24 - 1

const maxOrder = 25 // of a free block: two of the greatest run's

// runs hands out rows of slots: a buddy allocator. A row takes a block of the
// next power of two, aligned to its size; so a row found in the tables after a
// restart tells which block it occupies.
type runs struct {
	limit uint32
	next  uint32               // every slot from here on is free
	free  [maxOrder + 1]blocks // free blocks below next, by order
	inUse uint32               // slots in blocks handed out
}

// blocks is a set of free blocks of one order that gives out the lowest.
type blocks struct {
	heap   minHeap
	member map[uint32]bool // blocks in heap that are still free
}

func (b *blocks) add(first uint32) {
	if b.member == nil {
		b.member = make(map[uint32]bool)
	}
	b.member[first] = true
	heap.Push(&b.heap, first)
	if len(b.heap) > 2*len(b.member)+64 {
		b.sweep()
	}
}

// sweep drops the heap entries of blocks that are no longer free.
func (b *blocks) sweep() {
	b.heap = b.heap[:0]
	for first := range b.member {
		b.heap = append(b.heap, first)
	}
	heap.Init(&b.heap)
}

// remove takes out a block; its heap entry is skipped later.
func (b *blocks) remove(first uint32) bool {
	if !b.member[first] {
		return false
	}
	delete(b.member, first)
	return true
}

func (b *blocks) pop() (uint32, bool) {
	for len(b.heap) > 0 {
		first := heap.Pop(&b.heap).(uint32)
		if b.remove(first) {
			return first, true
		}
	}
	return 0, false
}

// get returns a row of count slots, or false when there is no room for one.
func (a *runs) get(count uint32) (run, bool) {
	if count == 0 || count > maxRun {
		return run{}, false
	}
	r := run{count: count}
	order := r.order()
	for from := order; from <= maxOrder; from++ {
		first, ok := a.free[from].pop()
		if !ok {
			continue
		}
		for from > order {
			from--
			a.free[from].add(first + 1<<from)
		}
		r.first = first
		a.inUse += 1 << order
		return r, true
	}
	first := align(a.next, order)
	if uint64(first)+1<<order > uint64(a.limit) {
		return run{}, false
	}
	a.release(a.next, first)
	a.next = first + 1<<order
	r.first = first
	a.inUse += 1 << order
	return r, true
}

func align(n uint32, order int) uint32 {
	mask := uint32(1)<<order - 1
	return (n + mask) &^ mask
}

// put frees a row that get returned.
func (a *runs) put(r run) {
	a.inUse -= 1 << r.order()
	a.add(r.first, r.order())
}

// add makes a block free, joined with the neighbours that are.
func (a *runs) add(first uint32, order int) {
	for order < maxOrder && a.free[order].remove(first^1<<order) {
		first &^= 1 << order
		order++
	}
	if first+1<<order != a.next {
		a.free[order].add(first)
		return
	}
	a.next = first
	a.trim()
}

// trim joins the free blocks that end at next with what is free from there on.
func (a *runs) trim() {
	for order := 0; order <= maxOrder; order++ {
		if a.next >= 1<<order && a.free[order].remove(a.next-1<<order) {
			a.next -= 1 << order
			order = -1
		}
	}
}

// release adds the slots from first to end to the free blocks.
func (a *runs) release(first, end uint32) {
	for first < end {
		order := bits.TrailingZeros32(first | 1<<maxOrder)
		for uint64(first)+1<<order > uint64(end) {
			order--
		}
		a.add(first, order)
		first += 1 << order
	}
}

// restore marks the rows as handed out. They are in the order of their first
// slot. It returns the rows that cannot be: those that overlap an earlier one or
// do not start where get would place them.
func (a *runs) restore(rows []run) (bad []run) {
	for _, r := range rows {
		if r.first < a.next || r.first != align(r.first, r.order()) {
			bad = append(bad, r)
			continue
		}
		a.release(a.next, r.first)
		a.next = r.first + 1<<r.order()
		a.inUse += 1 << r.order()
	}
	return bad
}
