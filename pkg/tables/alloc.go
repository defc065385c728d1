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
//
// The slots are in pages. A page with a row of rings or weights in it is theirs, and there are
// bound slots in such pages at most: so however they come and go, there are whole pages for
// the rows that have one slot for each endpoint, the plain ones. Whose a page is follows from
// the rows alone, so that it is the same after a restart.
type runs struct {
	limit uint32
	page  int                     // power of two of the slots of a page
	next  uint32                  // every page from here on is free
	free  [maxOrder + 1]blocks    // free pages below next, by order
	parts [2][maxOrder + 1]blocks // free blocks of pages in use; the second of those with rings
	inUse uint32                  // slots in blocks handed out

	bound uint32
	rings map[uint32]struct{} // the first slots of rows that are not plain
	ring  map[uint32]uint32   // by page, how many slots of it such rows take; none: no entry
}

// pagesOrder is the power of two of how many pages there are, twice as many at most.
const pagesOrder = 8

func newRuns(size uint32) runs {
	page := max(0, bits.Len32(size)-1-pagesOrder)
	return runs{
		limit: size >> page << page,
		page:  page,
		bound: size,
		rings: make(map[uint32]struct{}),
		ring:  make(map[uint32]uint32),
	}
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
func (a *runs) get(count uint32, plain bool) (run, bool) {
	if count == 0 || count > maxRun {
		return run{}, false
	}
	r := run{count: count}
	first, ok := a.find(r.order(), plain)
	if !ok {
		return run{}, false
	}
	r.first = first
	a.inUse += 1 << r.order()
	if !plain {
		a.countRing(r)
	}
	return r, true
}

// find takes a free block.
func (a *runs) find(order int, plain bool) (first uint32, ok bool) {
	own, others := &a.parts[0], &a.parts[1]
	if !plain {
		own, others = others, nil
	}
	if first, ok := take(own[:a.page], order); ok {
		return first, true
	}
	from := max(order, a.page)
	if plain || uint64(len(a.ring))<<a.page+1<<from <= uint64(a.bound) {
		if first, ok := a.findPages(from); ok {
			split(own[:], first, from, order)
			return first, true
		}
	}
	if others == nil {
		return 0, false
	}
	return take(others[:a.page], order)
}

// findPages takes a free block of pages.
func (a *runs) findPages(order int) (first uint32, ok bool) {
	if first, ok := take(a.free[:], order); ok {
		return first, true
	}
	first = align(a.next, order)
	if uint64(first)+1<<order > uint64(a.limit) {
		return 0, false
	}
	a.release(a.next, first)
	a.next = first + 1<<order
	return first, true
}

// take takes a block out of the free ones, by order, and splits the smallest that it fits into.
func take(free []blocks, order int) (first uint32, ok bool) {
	for from := order; from < len(free); from++ {
		if first, ok := free[from].pop(); ok {
			split(free, first, from, order)
			return first, true
		}
	}
	return 0, false
}

// split makes all of a block free but its beginning.
func split(free []blocks, first uint32, from, order int) {
	for from > order {
		from--
		free[from].add(first + 1<<from)
	}
}

func align(n uint32, order int) uint32 {
	mask := uint32(1)<<order - 1
	return (n + mask) &^ mask
}

// pagesOf returns the pages of a row's block, and how many slots it has in each.
func (a *runs) pagesOf(r run) (first, end, slots uint32) {
	first = r.first >> a.page
	return first, first + 1<<max(0, r.order()-a.page), 1 << min(r.order(), a.page)
}

// countRing notes that a row is of a ring or weights.
func (a *runs) countRing(r run) {
	a.rings[r.first] = struct{}{}
	first, end, slots := a.pagesOf(r)
	for page := first; page < end; page++ {
		a.ring[page] += slots
	}
}

// put frees a row that get returned.
func (a *runs) put(r run) {
	a.inUse -= 1 << r.order()
	if _, ok := a.rings[r.first]; !ok {
		a.add(r.first, r.order())
		return
	}
	delete(a.rings, r.first)
	first, end, slots := a.pagesOf(r)
	for page := first; page < end; page++ {
		if a.ring[page] -= slots; a.ring[page] == 0 {
			delete(a.ring, page)
			a.leave(page)
		}
	}
	a.add(r.first, r.order())
}

// leave moves what is free in a page from those with rings to the others.
func (a *runs) leave(page uint32) {
	for order := range a.page {
		from, to := &a.parts[1][order], &a.parts[0][order]
		for first := page << a.page; first < (page+1)<<a.page && len(from.member) > 0; first += 1 << order {
			if from.remove(first) {
				to.add(first)
			}
		}
	}
}

// add makes a block free, joined with the neighbours that are.
func (a *runs) add(first uint32, order int) {
	if order < a.page {
		parts := &a.parts[0]
		if a.ring[first>>a.page] > 0 {
			parts = &a.parts[1]
		}
		if first, order = join(parts[:a.page], first, order); order < a.page {
			parts[order].add(first)
			return
		}
	}
	first, order = join(a.free[:maxOrder], first, order)
	if first+1<<order != a.next {
		a.free[order].add(first)
		return
	}
	a.next = first
	a.trim()
}

// join takes a block's neighbours out of the free ones, by order, and returns the whole.
func join(free []blocks, first uint32, order int) (uint32, int) {
	for order < len(free) && free[order].remove(first^1<<order) {
		first &^= 1 << order
		order++
	}
	return first, order
}

// trim joins the free pages that end at next with what is free from there on.
func (a *runs) trim() {
	for order := a.page; order <= maxOrder; order++ {
		if a.next >= 1<<order && a.free[order].remove(a.next-1<<order) {
			a.next -= 1 << order
			order = a.page - 1
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
func (a *runs) restore(rows []run, plain func(i int) bool) (bad []run) {
	good := make([]run, 0, len(rows))
	end := uint32(0)
	for i, r := range rows {
		if r.first < end || r.first != align(r.first, r.order()) || uint64(r.first)+1<<r.order() > uint64(a.limit) {
			bad = append(bad, r)
			continue
		}
		good = append(good, r)
		end = r.first + 1<<r.order()
		a.inUse += 1 << r.order()
		if !plain(i) {
			a.countRing(r)
		}
	}
	a.next = align(end, a.page)
	end = 0
	for _, r := range good {
		a.release(end, r.first)
		end = r.first + 1<<r.order()
	}
	a.release(end, a.next)
	return bad
}
