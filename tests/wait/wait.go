// Package wait is how tests wait for what another process, thread or the kernel does, so
// that no test depends on the speed of the machine. It depends on no other package of
// Beeline but tests/tier: tests of any package can use it.
package wait

import (
	"testing"
	"time"

	"github.com/beeline-lb/beeline/tests/tier"
)

// Limit is how long a test waits for what must come before it fails. It is about ten times
// what the slowest of these waits takes on a quiet machine, where an agent needs a few
// seconds to load its programs. A shorter limit is ten times what its own wait takes, or what
// it ends is tried again. An emulated kernel takes a minute, two beside load, to check an agent's programs.
var Limit = limit()

func limit() time.Duration {
	if tier.Emulated() {
		return 15 * time.Minute
	}
	return 2 * time.Minute
}

// Until looks every shortest interval at first. What takes long is looked at less often, up
// to the longest: looking takes from what is waited for.
const (
	shortest = 5 * time.Millisecond
	longest  = time.Second
)

// Until waits until done returns true. The test fails when it does not within [Limit].
func Until(t testing.TB, what string, done func() bool) {
	t.Helper()
	for begin := time.Now(); !done(); time.Sleep(min(max(shortest, time.Since(begin)/8), longest)) {
		if time.Since(begin) > Limit {
			t.Fatalf("%s: not after %s", what, Limit)
		}
	}
}
