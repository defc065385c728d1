// Package maglev fills lookup rings for consistent hashing: a ring has a slot for
// every value of a hash and names in it the backend that serves that value.
//
// It is the algorithm of "Maglev: A Fast and Reliable Software Network Load
// Balancer" (NSDI 2016), section 3.4: each backend has an order of preference over
// all slots, and the backends take turns at taking the next free slot of theirs. A
// ring depends on the addresses, ports and weights of its backends only, so every
// node has the same one, and so has an agent that was restarted.
package maglev

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// Sizes are the ring sizes to choose from: primes, as the orders of preference
// need them, each just below a power of two, the unit in which slots are allocated.
var Sizes = []uint32{
	251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071, 262139, 524287,
	1048573, 2097143,
}

// automatic are the sizes that [Size] chooses, each up to so many backends: the
// spread is then within 2 % of even, and when a backend goes, at most 1 % of the
// slots of the others get another one. They are few and far apart, for a Service
// that grows or shrinks past one of the numbers gets a new ring, in which most flows
// have another backend.
var automatic = []struct {
	size     uint32
	backends int
}{
	{16381, 40},
	{65521, 1000},
	{1048573, 20000},
	{2097143, math.MaxInt},
}

// Size returns the ring size for so many backends.
func Size(backends int) uint32 {
	i := 0
	for backends > automatic[i].backends {
		i++
	}
	return automatic[i].size
}

// CheckSize returns an error that lists the sizes unless size is one of them.
func CheckSize(size uint32) error {
	if slices.Contains(Sizes, size) {
		return nil
	}
	return fmt.Errorf("%d is none of the ring sizes %v", size, Sizes)
}

// Fit returns the first of the sizes from size on that has a slot for each backend,
// else the greatest.
func Fit(size uint32, backends int) uint32 {
	for _, s := range Sizes {
		if s >= size && int(s) >= backends {
			return s
		}
	}
	return Sizes[len(Sizes)-1]
}

// Backend is an element of a ring.
type Backend struct {
	AddrPort netip.AddrPort
	// Weight is the backend's share of the slots beside the others' weights: 2 and 4
	// are as 1 and 2. 0 gets none.
	Weight uint32
}

// order is a backend's order of preference: first, first+step, first+2*step, ...
// modulo the ring's size, which visits every slot for the size is a prime.
type order struct {
	next uint32
	step uint32
}

// newOrder returns the order of a backend. The hash is part of what nodes agree
// on: a node with another one sends flows elsewhere.
func newOrder(addr netip.AddrPort, size uint32) order {
	var key [19]byte
	*(*[16]byte)(key[:]) = addr.Addr().As16()
	binary.BigEndian.PutUint16(key[16:], addr.Port())
	first := xxhash.Sum64(key[:])
	key[18] = 1
	step := xxhash.Sum64(key[:])
	return order{
		next: uint32(first % uint64(size)),
		step: uint32(step%uint64(size-1)) + 1,
	}
}

// turn is a backend's part in the filling of a ring. Each round gives it its weight as credit, and
// the greatest weight is the price of a slot.
type turn struct {
	order
	backend uint32 // index
	weight  uint32
	credit  uint32
}

// frequent is how many rounds there are at most between two slots of a backend that is looked at in
// each round. A rarer one waits in a queue: a heavy backend would have all light ones looked at for
// each of its slots.
const frequent = 8

// Ring returns a ring of size slots, one of [Sizes], each the index of a backend;
// nil when no backend has a weight. The order of backends does not matter to which
// of them is in a slot; none is there twice.
//
// A backend's slots differ from its share by one or two, and those of a heavy one by what thousands
// of light ones get too many or too few. One whose share is less than one slot gets one, as long as
// there are no more backends than slots.
//
// What it costs is bounded by the size and the number of backends, whatever their weights are.
func Ring(size uint32, backends []Backend) []uint32 {
	turns := newTurns(size, backends)
	if len(turns) == 0 {
		return nil
	}
	price := uint32(0)
	for i := range turns {
		price = max(price, turns[i].weight)
	}
	f := filling{turns: turns, price: price, ring: make([]uint32, size), taken: make(bitmap, size/64+1), left: size}
	often := make([]uint32, 0, len(turns))
	for i := range turns {
		if turns[i].credit = price / 2; turns[i].weight >= price/frequent {
			often = append(often, uint32(i))
		} else {
			f.queue = append(f.queue, f.due(0, uint32(i)))
		}
	}
	f.queue.order()
	first := f.queue.first()
	for round := uint32(1); ; round++ {
		for _, i := range often { // in the order of turns, as all slots of a round
			if at := entry(round, i); first < at {
				if first = f.takeRare(at); f.left == 0 {
					return f.ring
				}
			}
			t := &turns[i]
			if t.credit += t.weight; t.credit < price {
				continue
			}
			t.credit -= price
			f.ring[t.take(f.taken, size)] = t.backend
			if f.left--; f.left == 0 {
				return f.ring
			}
		}
	}
}

// filling is a ring that is filled.
type filling struct {
	turns []turn
	price uint32
	queue queue
	ring  []uint32
	taken bitmap
	left  uint32 // slots that are free
}

// newTurns returns the backends that have a weight, by address and port.
func newTurns(size uint32, backends []Backend) []turn {
	turns := make([]turn, 0, len(backends))
	unit := commonWeight(backends)
	var sum uint64
	for i, b := range backends {
		if b.Weight == 0 {
			continue
		}
		weight := b.Weight / unit
		sum += uint64(weight)
		turns = append(turns, turn{order: newOrder(b.AddrPort, size), backend: uint32(i), weight: weight})
	}
	slices.SortFunc(turns, func(a, b turn) int {
		return backends[a.backend].AddrPort.Compare(backends[b.backend].AddrPort)
	})
	least := uint32((sum + uint64(size) - 1) / uint64(size)) // the share of one slot
	for i := range turns {
		turns[i].weight = max(turns[i].weight, least)
	}
	return turns
}

// commonWeight returns the greatest number that divides every weight.
func commonWeight(backends []Backend) uint32 {
	common := uint32(0)
	for _, b := range backends {
		for a := b.Weight; a != 0; {
			common, a = a, common%a
		}
	}
	return common
}

// take returns the next slot of the order that is free, which then is not.
func (o *order) take(taken bitmap, size uint32) uint32 {
	slot, step := o.next, o.step
	for taken.has(slot) {
		if slot += step; slot >= size {
			slot -= size
		}
	}
	taken.set(slot)
	o.next = slot
	return slot
}

// bitmap is a set of slots: small enough to stay in the processor's cache.
type bitmap []uint64

func (b bitmap) has(i uint32) bool { return b[i/64]>>(i%64)&1 != 0 }
func (b bitmap) set(i uint32)      { b[i/64] |= 1 << (i % 64) }
