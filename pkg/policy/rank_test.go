package policy

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// TestRanks sorts runs of every number and length, with equal ranks in them.
func TestRanks(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	var s ranks
	for range 5000 {
		s = s[:0]
		sorted := random.IntN(2) == 0
		for range random.IntN(6) {
			first := len(s)
			for range random.IntN(12) {
				addr := netip.AddrFrom4([4]byte{10, 0, byte(random.IntN(2)), byte(random.IntN(12))})
				if random.IntN(3) == 0 {
					addr = netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(random.IntN(4))})
				}
				s.add(addr, uint16(random.IntN(2)), len(s))
			}
			if sorted {
				slices.SortStableFunc(s[first:], compareRanks)
			}
		}
		want := slices.Clone(s)
		slices.SortStableFunc(want, compareRanks)
		given := slices.Clone(s)
		if s.sort(); !slices.Equal(s, want) {
			t.Fatalf("%v sorted: %v, want %v", given, s, want)
		}
	}
}

func compareRanks(a, b rank) int {
	switch {
	case a.before(&b):
		return -1
	case b.before(&a):
		return 1
	}
	return 0
}
