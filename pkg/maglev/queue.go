package maglev

import (
	"math"
	"slices"
)

// queue is a heap of backends that are seldom due: each is the round of its next slot, above its index.
type queue []uint64

func entry(round, backend uint32) uint64 { return uint64(round)<<32 | uint64(backend) }

// first returns the entry that is due first, or a later one than all when there is none.
func (q queue) first() uint64 {
	if len(q) == 0 {
		return math.MaxUint64
	}
	return q[0]
}

// order makes a heap of what has been appended.
func (q queue) order() { slices.Sort(q) }

// replace puts another entry in the place of the first one.
func (q queue) replace(e uint64) {
	i := 0
	for {
		child := 2*i + 1
		if child >= len(q) {
			break
		}
		if child+1 < len(q) && q[child+1] < q[child] {
			child++
		}
		if e <= q[child] {
			break
		}
		q[i] = q[child]
		i = child
	}
	q[i] = e
}

// takeRare gives their slots to the backends of the queue that are due before an entry, and returns the
// entry that is due next.
func (f *filling) takeRare(before uint64) uint64 {
	first := f.queue.first()
	for ; first < before && f.left > 0; first = f.queue.first() {
		round, backend := uint32(first>>32), uint32(first)
		t := &f.turns[backend]
		f.ring[t.take(f.taken, uint32(len(f.ring)))] = t.backend
		f.left--
		f.queue.replace(f.due(round, backend))
	}
	return first
}

// due returns the entry of a backend's next slot after a round, when the price of that slot is paid.
func (f *filling) due(round, backend uint32) uint64 {
	t := &f.turns[backend]
	rounds := (f.price - t.credit + t.weight - 1) / t.weight
	t.credit += rounds*t.weight - f.price
	return entry(round+rounds, backend)
}
