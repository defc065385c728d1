package flow

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
)

// TestDrainReadsOnly: the table is drained by maps that are opened for reading, as those of
// an agent that has ended are.
func TestDrainReadsOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes BPF maps and mounts a BPF file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	sizes := bpfmap.DefaultSizes
	sizes.Affinity, sizes.UDPPeers, sizes.Flows, sizes.Clients = 16, 16, 16, 16
	full, err := bpfmap.Load(dir, sizes)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if err := full.Pin(dir); err != nil {
		t.Fatal(err)
	}
	opened, err := bpfmap.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	if err := New(Options{Maps: opened, Timeouts: DefaultTimeouts}).Drain(t.Context()); err != nil {
		t.Error(err)
	}
}
