package model_test

import (
	"flag"
	"runtime/debug"
	"testing"

	"github.com/beeline-lb/beeline/tests/tier"
)

var (
	firstSeed = flag.Uint64("seed", 1, "the seed of the first sequence")
	sequences = flag.Int("sequences", 0, "how many sequences are run, with seeds one after another; 0 is what make test does")
)

// TestRandomSequences runs sequences of packets and compares what the programs do with the
// model. One that fails is cut down and printed; -seed and -sequences=1 run it alone.
func TestRandomSequences(t *testing.T) {
	n := newNode(t)
	// The table is read after each packet: much is allocated, and little kept.
	defer debug.SetGCPercent(debug.SetGCPercent(1000))
	count := uint64(*sequences)
	if count == 0 {
		count = 300
		if tier.All(t) {
			count = 1000
		}
	}
	for seed := *firstSeed; seed < *firstSeed+count; seed++ {
		err := n.host.Run(func() error {
			q := newSequence(seed)
			at, wrong := run(n, q)
			if wrong == nil {
				return nil
			}
			q, at, wrong = cutDown(n, q, at, wrong)
			t.Errorf("sequence of seed %d, cut down:\n%sstep %d: %v", seed, q, at+1, wrong)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if t.Failed() {
			return
		}
	}
}

// attempts is how often a sequence is run that may fail: which backend a flow gets, and so
// whether it meets another one, is left to chance.
const attempts = 8

// cutDown returns the shortest sequence that it finds which fails, at which step, and how.
// It begins with one that has failed.
func cutDown(n *node, q sequence, at int, wrong error) (sequence, int, error) {
	q = q.shrink(func(q sequence) bool {
		for range attempts {
			if i, err := run(n, q); err != nil {
				at, wrong = i, err
				return true
			}
		}
		return false
	})
	return q, at, wrong
}
