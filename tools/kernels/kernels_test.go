package main

import (
	"context"
	"os/signal"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/tests/interrupt"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestOldestKernel runs the tests of the programs in the oldest kernel that is supported.
func TestOldestKernel(t *testing.T) {
	runIn(t, "6.1", options{packages: packages})
}

// TestArm64 has the oldest kernel of another architecture verify all programs, and serves there, with the
// agent's binary, too.
func TestArm64(t *testing.T) {
	runIn(t, "6.1-arm64", options{
		packages: [][]string{{"./pkg/datapath"}, {"./tests/netns", "./tests/agent"}},
		args:     []string{"-test.run", "^(TestVerifierMargin|TestConnect|TestRestart)$"},
	})
}

// TestLockdownOfLaterKernel: since Linux 6.10 the verifier refuses to read the kernel's memory in other words.
func TestLockdownOfLaterKernel(t *testing.T) {
	runIn(t, "6.12", options{packages: [][]string{{"./tests/lockdown"}}})
}

// interrupted ends with the first signal, for all tests: one that has not begun must not, either.
var interrupted = sync.OnceValue(func() context.Context {
	ctx, _ := signal.NotifyContext(context.Background(), interrupt.Signals()...)
	return ctx
})

// runIn fails the test unless others pass in a kernel.
func runIn(t *testing.T, kernel string, o options) {
	t.Helper()
	tier.Slow(t, "a machine is emulated")
	t.Parallel() // one thread emulates a machine
	if runtime.GOARCH != "amd64" {
		t.Skip("the kernels are for amd64")
	}
	runtime.LockOSThread() // as in main
	ctx := interrupted()
	o.kernel, o.accel, o.timeout = kernel, "auto", 45*time.Minute
	if err := run(ctx, o); err != nil {
		t.Fatal(err)
	}
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
}
