package main

import (
	"context"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/tests/tier"
)

// TestOldestKernel runs the tests of the programs in the oldest kernel that is supported.
func TestOldestKernel(t *testing.T) {
	tier.Slow(t, "a machine is emulated")
	if runtime.GOARCH != "amd64" {
		t.Skip("the kernels are for amd64")
	}
	runtime.LockOSThread() // as in main
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, options{kernel: kernels[0].name, accel: "auto", timeout: 45 * time.Minute}); err != nil {
		t.Fatal(err)
	}
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
}
