package maglev

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/tests/bounds"
	"github.com/beeline-lb/beeline/tests/tier"
)

// backends returns n backends of equal weight, IPv4 and IPv6.
func backends(n int) []Backend {
	list := make([]Backend, n)
	for i := range list {
		addr := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
		if i%3 == 2 {
			addr = netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)})
		}
		list[i] = Backend{netip.AddrPortFrom(addr, uint16(8000+i%2)), 1}
	}
	return list
}

// count returns how many slots each backend has.
func count(ring []uint32, n int) []int {
	slots := make([]int, n)
	for _, b := range ring {
		slots[b]++
	}
	return slots
}

func TestSizes(t *testing.T) {
	for i, s := range Sizes {
		if !big.NewInt(int64(s)).ProbablyPrime(0) {
			t.Errorf("%d is no prime", s)
		}
		if i > 0 && s <= Sizes[i-1] {
			t.Errorf("%d comes after %d", s, Sizes[i-1])
		}
		if below := math.Ceil(math.Log2(float64(s))); float64(s) < 0.97*math.Exp2(below) {
			t.Errorf("%d leaves much of a block of 2^%g unused", s, below)
		}
		if err := CheckSize(s); err != nil {
			t.Error(err)
		}
		if CheckSize(s+1) == nil {
			t.Errorf("%d passes for a size", s+1)
		}
	}
	for _, a := range automatic {
		if !slices.Contains(Sizes, a.size) {
			t.Errorf("%d is chosen but is no size", a.size)
		}
	}
	for n, want := range map[int]uint32{0: 16381, 1: 16381, 40: 16381, 41: 65521, 1000: 65521, 1001: 1048573, 20000: 1048573, 1 << 20: 2097143} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) = %d, want %d", n, got, want)
		}
	}
	for _, tt := range []struct {
		size uint32
		n    int
		want uint32
	}{{251, 1, 251}, {251, 251, 251}, {251, 252, 509}, {16381, 10, 16381}, {251, 1 << 30, 2097143}} {
		if got := Fit(tt.size, tt.n); got != tt.want {
			t.Errorf("Fit(%d, %d) = %d, want %d", tt.size, tt.n, got, tt.want)
		}
	}
}

// TestEven: the slots of backends of equal weight are within 2 % of even.
func TestEven(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 40, 41, 100, 1000, 1001, 20000} {
		slots := count(Ring(Size(n), backends(n)), n)
		even := float64(Size(n)) / float64(n)
		for i, s := range slots {
			if math.Abs(float64(s)-even) > 0.02*even {
				t.Fatalf("%d backends: number %d has %d slots, even is %.1f", n, i, s, even)
			}
		}
	}
}

// TestDisruption: when one of n backends goes, its flows go to others, and at most
// 1 % of the flows of those move.
func TestDisruption(t *testing.T) {
	tier.OneGoroutine(t)
	for _, n := range []int{2, 3, 10, 40, 42, 100, 500, 1000, 1010} {
		list := backends(n)
		size := Size(n)
		before := Ring(size, list)
		for _, gone := range []int{0, n / 2, n - 1} {
			rest := slices.Delete(slices.Clone(list), gone, gone+1)
			after := Ring(size, rest)
			moved := 0
			for slot := range before {
				if list[before[slot]] != rest[after[slot]] {
					moved++
				}
			}
			share := float64(moved) / float64(size)
			if share > 1/float64(n)+0.01 {
				t.Errorf("%d backends without number %d: %.2f %% move", n, gone, 100*share)
			}
		}
	}
}

// TestReturn: a backend that comes back gets the slots that it had.
func TestReturn(t *testing.T) {
	list := backends(20)
	before := Ring(16381, list)
	Ring(16381, list[1:])
	if !slices.Equal(before, Ring(16381, list)) {
		t.Error("the ring is another one")
	}
}

func TestWeights(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		list := backends(2 + r.IntN(100))
		sum := 0
		for i := range list {
			list[i].Weight = uint32(r.IntN(20))
			sum += int(list[i].Weight)
		}
		if sum == 0 {
			continue
		}
		size := Size(len(list))
		for i, s := range count(Ring(size, list), len(list)) {
			share := float64(size) * float64(list[i].Weight) / float64(sum)
			if list[i].Weight == 0 && s > 0 {
				t.Errorf("weight 0 has %d slots", s)
			}
			if math.Abs(float64(s)-share) > 2 {
				t.Errorf("weight %d of %d has %d slots, its share is %.1f", list[i].Weight, sum, s, share)
			}
		}
	}
}

// TestSameWeights: what weights have in common does not count.
func TestSameWeights(t *testing.T) {
	list := backends(9)
	for i := range list {
		list[i].Weight = uint32(1 + i%3)
	}
	want := Ring(1021, list)
	for i := range list {
		list[i].Weight *= 6
	}
	if !slices.Equal(want, Ring(1021, list)) {
		t.Error("six times the weights make another ring")
	}
}

// TestSmallWeights: whoever has a weight gets a slot.
func TestSmallWeights(t *testing.T) {
	for _, weight := range []uint32{1000, 65025, math.MaxUint32 / 2} {
		list := backends(160)
		for i := range 150 {
			list[i].Weight = weight
		}
		slots := count(Ring(16381, list), len(list))
		for i, s := range slots {
			if s == 0 {
				t.Errorf("weight %d beside 150 of %d has no slot", list[i].Weight, weight)
			}
		}
	}
	if ring := Ring(251, []Backend{{Weight: 0}}); ring != nil {
		t.Errorf("a ring of no weight is %v", ring)
	}
	if ring := Ring(251, nil); ring != nil {
		t.Errorf("a ring of nobody is %v", ring)
	}
}

// TestOrder: the order of the backends does not count.
func TestOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	list := backends(40)
	for i := range list {
		list[i].Weight = uint32(1 + r.IntN(5))
	}
	want := Ring(4093, list)
	for range 10 {
		mixed := slices.Clone(list)
		r.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		for slot, b := range Ring(4093, mixed) {
			if mixed[b] != list[want[slot]] {
				t.Fatalf("slot %d: %v, in another order %v", slot, list[want[slot]], mixed[b])
			}
		}
	}
}

// TestTurns: the slots are those that backends get when all are looked at in each round.
func TestTurns(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		list := backends(1 + r.IntN(60))
		most := 1 << r.IntN(17)
		for i := range list {
			list[i].Weight = uint32(r.IntN(most + 1))
			if r.IntN(4) > 0 {
				list[i].Weight %= uint32(2 + r.IntN(8))
			}
		}
		const size = 1021
		var want []uint32
		if turns := newTurns(size, list); len(turns) > 0 {
			greatest := uint32(0)
			for _, turn := range turns {
				greatest = max(greatest, turn.weight)
			}
			want = make([]uint32, size)
			taken := make(bitmap, size/64+1)
			for left, round := size, uint64(1); left > 0; round++ {
				for i := range turns {
					turn := &turns[i]
					due := uint64(greatest/2)+round*uint64(turn.weight) >= uint64(turn.credit+1)*uint64(greatest)
					if due && left > 0 {
						turn.credit++ // slots, here
						want[turn.take(taken, size)] = turn.backend
						left--
					}
				}
			}
		}
		if got := Ring(size, list); !slices.Equal(got, want) {
			t.Fatalf("%v:\n%v, want\n%v", list, got, want)
		}
	}
}

// TestHeavy: one heavy backend does not make a ring dear to fill.
func TestHeavy(t *testing.T) {
	const size = 2097143
	list := backends(20000)
	list[7].Weight = 255 * 255
	var ring []uint32
	bounds.Check(t, 16*len(list), func() { ring = Ring(size, list) })
	slots := count(ring, len(list))
	for i, s := range slots {
		share := float64(size) * float64(list[i].Weight) / float64(len(list)-1+255*255)
		if math.Abs(float64(s)-share) > max(2, share/100) {
			t.Errorf("weight %d has %d slots, its share is %.1f", list[i].Weight, s, share)
		}
	}
}

// TestGolden notices a change of the hash or of the turns: nodes that are of
// different versions would send flows to different backends.
func TestGolden(t *testing.T) {
	list := []Backend{
		{netip.MustParseAddrPort("10.0.0.1:80"), 1},
		{netip.MustParseAddrPort("10.0.0.2:80"), 2},
		{netip.MustParseAddrPort("10.0.0.2:81"), 1},
		{netip.MustParseAddrPort("[fd00::1]:80"), 3},
	}
	ring := Ring(251, list)
	first := fmt.Sprint(ring[:32])
	const want = "[2 3 2 3 0 3 3 3 1 3 1 1 1 0 3 0 0 2 3 2 3 1 3 1 3 1 1 0 2 3 0 3]"
	if first != want {
		t.Errorf("the first slots are\n%s, want\n%s", first, want)
	}
	for size, want := range map[uint32]uint64{
		251:   0x3b33da4ae85f373f,
		16381: 0xe518feacfdfaaeb2,
		65521: 0x9437d0e8aea36105,
	} {
		if got := digest(Ring(size, backends(100))); got != want {
			t.Errorf("ring of %d slots: digest %#x, want %#x", size, got, want)
		}
	}
}

func digest(ring []uint32) uint64 {
	h := fnv.New64a()
	for _, b := range ring {
		h.Write(binary.BigEndian.AppendUint32(nil, b))
	}
	return h.Sum64()
}

func BenchmarkRingHeavy(b *testing.B) {
	for _, n := range []int{10, 1000, 20000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			list := backends(n)
			list[n/2].Weight = 255 * 255
			for b.Loop() {
				Ring(2097143, list)
			}
		})
	}
}

func BenchmarkRing(b *testing.B) {
	for _, n := range []int{10, 100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			list := backends(n)
			for b.Loop() {
				Ring(Size(n), list)
			}
		})
	}
}
