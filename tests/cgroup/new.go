package cgroup

import (
	"os"
	"os/signal"
	"testing"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/interrupt"
)

// New makes a cgroup, which goes with what is in it when the test ends, or the process by an interrupt.
// A process has one at a time.
func New(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make cgroups")
	}
	root, err := datapath.FindCgroup2()
	if err != nil {
		t.Fatal(err)
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, interrupt.Signals()...)
	path, err := os.MkdirTemp(root, "beeline-test-")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for range interrupted {
			if err := Kill(path); err == nil {
				_ = Remove(path)
			}
			os.Exit(1)
		}
	}()
	t.Cleanup(func() {
		signal.Stop(interrupted)
		close(interrupted)
		if err := Remove(path); err != nil {
			t.Error(err)
		}
	})
	return path
}
