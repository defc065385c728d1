package datapath

import (
	"os"
	"testing"
)

// TestHaveConntrack: where connections are tracked, the programs can ask for them, be
// connection tracking a module or not.
func TestHaveConntrack(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_max"); err != nil {
		t.Skip("no connection is tracked")
	}
	if !HaveConntrack() {
		t.Error("the kernel's function is not found")
	}
}
