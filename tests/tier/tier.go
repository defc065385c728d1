// Package tier decides which tests run where:
//
//	go test ./...      as an ordinary user: tests that need no root
//	make test          all but those that call [Slow]
//	make test-rest     those tests and subtests of which make test has left something out
//	make test-all      all on this kernel; in an emulated one all but those that call
//	                   [Slow] or [SameInEveryKernel], and less of those that ask [Brief]
//	make test-kernels  all that the emulated kernels can run
//	make test-race     as make test, without what calls [OneGoroutine]
//
// What is left out is skipped with its reason. The package depends on no other one of
// Beeline: tests of any package can use it.
package tier

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Environment variables of test binaries.
const (
	// AllEnv is set to run the tests that are left out otherwise.
	AllEnv = "BEELINE_TEST_ALL"
	// LeftEnv names a file to which tests and subtests that leave something out are added: folder,
	// a tab, and what -run takes for the test alone.
	LeftEnv = "BEELINE_TEST_LEFT"
	// EmulatedEnv is set in the emulated kernels of tools/kernels.
	EmulatedEnv = "BEELINE_KERNEL_TEST"
	// AgentEnv names the agent's binary that tests start; without, a package builds its own.
	AgentEnv = "BEELINE_AGENT"
)

// folder is that of the package, which a test may leave later.
var folder, _ = os.Getwd()

// All reports whether all tests run. A test that does less otherwise asks here.
func All(t testing.TB) bool {
	t.Helper()
	if os.Getenv(AllEnv) != "" {
		return true
	}
	if path := os.Getenv(LeftEnv); path != "" {
		if err := add(path, folder+"\t"+pattern(t.Name())+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	return false
}

// pattern returns what -run takes for a test, or a subtest, and nothing beside it.
func pattern(name string) string {
	levels := strings.Split(name, "/")
	for i, level := range levels {
		levels[i] = "^" + regexp.QuoteMeta(level) + "$"
	}
	return strings.Join(levels, "/")
}

// add adds a line to a file that other tests add to at the same time.
func add(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}

// Emulated reports whether the test runs in an emulated kernel, which is slow and has no
// programs but those that tools/kernels packs.
func Emulated() bool { return os.Getenv(EmulatedEnv) != "" }

// Slow leaves a test to make test-all: one that builds large programs, or takes more than
// a few seconds of CPU time and whose main points a faster test shows, too.
func Slow(t testing.TB, reason string) {
	t.Helper()
	if !All(t) {
		t.Skipf("left to make test-all: %s", reason)
	}
}

// OneGoroutine leaves a test out of those with the race detector: one that computes for seconds on
// one goroutine, where no race is, and for five to ten times as long with the detector.
func OneGoroutine(t testing.TB) {
	t.Helper()
	if Race {
		t.Skip("runs on one goroutine")
	}
}

// Rounds returns how often a test repeats the same with other random values: n times, with the race
// detector a tenth of them. What may race is the same in each.
func Rounds(n int) int {
	if Race {
		return max(n/10, 1)
	}
	return n
}

// Variant leaves a variant of a test to make test-all, unless it is the one that stands for
// all of them in make test.
func Variant(t testing.TB, stands bool) {
	t.Helper()
	if !stands {
		Slow(t, "another variant of the test stands for it")
	}
}

// Part returns the i-th of n parts of the cases, which together are all: a test that runs in n
// variants runs each case in one of them.
func Part[T any](cases []T, i, n int) []T {
	var part []T
	for j := i % n; j < len(cases); j += n {
		part = append(part, cases[j])
	}
	return part
}

// Share is [Part], but with all tests every case runs in each variant.
func Share[T any](t testing.TB, cases []T, i, n int) []T {
	t.Helper()
	if All(t) {
		return cases
	}
	return Part(cases, i, n)
}

// Brief reports whether a test does what it repeats less often: in an emulated kernel, unless all are
// asked for.
func Brief(t testing.TB) bool {
	t.Helper()
	return Emulated() && !All(t)
}

// SameInEveryKernel leaves a test whose outcome does not depend on the kernel out of
// emulated ones, where loading programs takes long, unless all are asked for.
func SameInEveryKernel(t testing.TB) {
	t.Helper()
	if Brief(t) {
		t.Skip("left to make test-kernels: the outcome is the same in every kernel")
	}
}
