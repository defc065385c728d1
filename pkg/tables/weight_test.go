package tables

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

// naive is smooth weighted round robin as it is defined: every place gains its
// weight, the greatest is taken and loses the sum.
func naive(weights []uint32) []uint32 {
	all := int(sum(weights))
	current := make([]int, len(weights))
	var slots []uint32
	for range all {
		best := 0
		for i, w := range weights {
			current[i] += int(w)
			if current[i] > current[best] {
				best = i
			}
		}
		current[best] -= all
		slots = append(slots, uint32(best))
	}
	return slots
}

func TestTurns(t *testing.T) {
	for _, tt := range []struct {
		weights []uint32
		want    string
	}{
		{[]uint32{5, 1, 1}, "[0 0 1 0 2 0 0]"},
		{[]uint32{1, 2}, "[1 0 1]"},
		{[]uint32{4, 3, 2}, "[0 1 2 0 1 0 2 1 0]"},
		{[]uint32{1, 1, 3, 3}, "[2 3 0 1 2 3 2 3]"},
	} {
		if got := fmt.Sprint(turnsOf(tt.weights)); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.weights, got, tt.want)
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		weights := make([]uint32, 1+r.IntN(20))
		most := []uint32{3, 9, 30, 255}[r.IntN(4)]
		for i := range weights {
			weights[i] = 1 + r.Uint32N(most)
		}
		if got, want := turnsOf(weights), naive(weights); !slices.Equal(got, want) {
			t.Fatalf("%v: %v, want %v", weights, got, want)
		}
	}
}

// TestTurnsOfManyWeights: of many weights that all differ, a slot takes a few matches for each level of the
// tournament, and not one for each weight.
func TestTurnsOfManyWeights(t *testing.T) {
	weights := manyWeights(700)
	tournament := newTournament(weights)
	for range tournament.all {
		tournament.next()
	}
	each := float64(tournament.played) / float64(tournament.all)
	if most := 2 * float64(bits.Len(uint(len(weights)))); each > most {
		t.Errorf("a slot takes %.1f matches, want %.0f at most", each, most)
	}
	few := manyWeights(100)
	if got, want := turnsOf(few), naive(few); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// manyWeights returns weights that all differ, in the order of which none follows.
func manyWeights(n int) []uint32 {
	weights := make([]uint32, n)
	for i, w := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		weights[i] = uint32(1 + w)
	}
	return weights
}

func BenchmarkTurns(b *testing.B) {
	for _, n := range []int{3, 10, 100, 700} {
		b.Run(fmt.Sprintf("weights=%d", n), func(b *testing.B) {
			weights := slices.Repeat(manyWeights(n), max(1, 100/n))
			b.ReportAllocs()
			for b.Loop() {
				turnsOf(weights)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(sum(weights)), "ns/slot")
		})
	}
}

func TestWeightRuns(t *testing.T) {
	if got := fmt.Sprint(runsOf([]uint32{2, 1, 3})); got != "[0 0 1 2 2 2]" {
		t.Error(got)
	}
}

func TestReduce(t *testing.T) {
	for _, tt := range []struct{ weights, want []uint32 }{
		{nil, nil},
		{[]uint32{3, 3, 3}, nil},
		{[]uint32{2, 4, 6}, []uint32{1, 2, 3}},
		{[]uint32{7, 1}, []uint32{7, 1}},
	} {
		if got := reduce(slices.Clone(tt.weights)); !slices.Equal(got, tt.want) {
			t.Errorf("%v: %v, want %v", tt.weights, got, tt.want)
		}
	}
}

// TestBound: great weights of many backends keep their proportions, and nobody is
// left out.
func TestBound(t *testing.T) {
	weights := make([]uint32, 5000)
	for i := range weights {
		weights[i] = uint32(1 + i%255*255)
	}
	got := bound(weights, maxWeighted)
	if all := sum(got); all > maxWeighted+uint64(len(weights)) {
		t.Errorf("%d slots", all)
	}
	scale := float64(maxWeighted) / float64(sum(weights))
	for i, w := range got {
		if share := float64(weights[i]) * scale; w == 0 || float64(w) > share+1 || float64(w) < share-1 {
			t.Fatalf("weight %d is %d slots, its share is %.2f", weights[i], w, share)
		}
	}
	if small := []uint32{100, 255}; !slices.Equal(bound(small, maxWeighted), small) {
		t.Error("weights that fit are changed")
	}
}
