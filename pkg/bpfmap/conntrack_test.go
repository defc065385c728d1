package bpfmap

import (
	"os"
	"testing"
	"time"
)

// TestHaveConntrack: where connections are tracked, the programs can ask for them, be
// connection tracking a module or not.
func TestHaveConntrack(t *testing.T) {
	if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_max"); err != nil {
		t.Skip("no connection is tracked")
	}
	if !haveConntrack() {
		t.Error("the kernel's function is not found")
	}
}

// TestSetTracking: that nothing is tracked holds for some seconds, that something is
// until told otherwise.
func TestSetTracking(t *testing.T) {
	m := load(t, t.TempDir(), small)
	for _, some := range []bool{false, true} {
		if err := m.SetTracking(some); err != nil {
			t.Fatal(err)
		}
		now, err := Clock()
		if err != nil {
			t.Fatal(err)
		}
		// As bl_tracking_none.
		holds := func(after time.Duration) bool {
			return uint32((now+after)/time.Second) < m.Entries.Tracking.NoneUntil
		}
		if got := holds(time.Second); got == some {
			t.Errorf("connections are tracked: %v; in a second none is: %v", some, got)
		}
		if holds(untrackedFor + time.Second) {
			t.Errorf("connections are tracked: %v; later none is", some)
		}
	}
}
