// Package killpoint chooses at which of its writes a program is killed.
package killpoint

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/beeline-lb/beeline/tests/tier"
)

var count = flag.Int("kill-points", 0, "at how many of its writes a program is killed, in each case; 0 is at a few")

// Each calls fn with few of the writes of a program, spread over all of them; with all tests
// twice as many.
func Each(t *testing.T, few int, writes int64, fn func(*testing.T, int64)) {
	t.Helper()
	points := *count
	if points == 0 {
		points = few
		if tier.All(t) {
			points *= 2
		}
	}
	t.Logf("%d writes, killed at %d of them", writes, points)
	step := max(1, float64(writes)/float64(points))
	for at := 1 + rand.Float64()*(step-1); int64(at) <= writes; at += step {
		t.Run(fmt.Sprint(int64(at)), func(t *testing.T) { fn(t, int64(at)) })
	}
}
