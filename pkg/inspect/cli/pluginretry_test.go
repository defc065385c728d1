package cli

import (
	"slices"
	"testing"
	"time"
)

// TestRetries: pauses grow over losses until a node was followed for long, and one that is lost soon again and
// again is given up.
func TestRetries(t *testing.T) {
	var r retries
	pauses := func(want ...time.Duration) {
		t.Helper()
		var got []time.Duration
		for range want {
			got = append(got, r.next())
		}
		if !slices.Equal(got, want) {
			t.Errorf("pauses of %v, want %v", got, want)
		}
	}
	lost := func(followed time.Duration, want bool) {
		t.Helper()
		if got := r.lost(followed); got != want {
			t.Errorf("looked for again: %t", got)
		}
	}
	lost(time.Second, true)
	pauses(time.Second, 2*time.Second)
	lost(time.Second, true)
	pauses(4*time.Second, 8*time.Second, 10*time.Second, 10*time.Second)
	lost(longFollow, true)
	pauses(time.Second, 2*time.Second)
	for range mostLosses - 1 {
		lost(longFollow-1, true)
	}
	pauses(4 * time.Second)
	lost(0, false)
}
