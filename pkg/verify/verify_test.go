package verify

import (
	"slices"
	"testing"
)

// TestOrder: what could not be looked at comes in the same order in whichever it was found, so that verify
// --watch prints only what has changed.
func TestOrder(t *testing.T) {
	want := []Unchecked{{Tables, "a"}, {Tables, "b"}, {Programs, "a"}, {Machine, "a"}}
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}} {
		var r Report
		for _, i := range order {
			r.Unchecked = append(r.Unchecked, want[i])
		}
		(&Checker{}).complete(&r)
		if !slices.Equal(r.Unchecked, want) {
			t.Errorf("of the order %v: %v", order, r.Unchecked)
		}
	}
}
