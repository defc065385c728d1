package flow

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/bpffs"
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

// TestDrainOfTheFormerTable: flows that an agent has left in a flow table of another size, for it was
// killed before it moved them, are waited for.
func TestDrainOfTheFormerTable(t *testing.T) {
	dir := bpffs.New(t)
	sizes := bpfmap.DefaultSizes
	sizes.Affinity, sizes.UDPPeers, sizes.Clients = 16, 16, 16
	for _, sizes.Flows = range []uint32{1024, 2048} {
		killed, err := bpfmap.Load(dir, sizes)
		check(t, err)
		check(t, killed.Pin(dir))
		if sizes.Flows == 1024 {
			check(t, killed.BlFlow.Put(forward(1, model.TCP, flowmap.StateEstablished, 0)))
			check(t, killed.BlFlow.Put(reply(1, model.TCP, 0)))
		}
		check(t, killed.Close())
	}
	opened, err := bpfmap.Open(dir)
	check(t, err)
	defer opened.Close()
	e := New(Options{Maps: opened, Timeouts: DefaultTimeouts})
	idle := time.Minute
	e.clock = func() (time.Duration, error) { return idle, nil }
	var walks []Walk
	e.Walked = func(w Walk) {
		walks = append(walks, w)
		idle = 365 * 24 * time.Hour
	}
	synctest.Test(t, func(t *testing.T) { check(t, e.Drain(t.Context())) })
	if len(walks) != 2 || walks[0].Flows != 1 || walks[0].Expired != 0 || walks[1].Expired != 1 {
		t.Errorf("walks: %+v, want one that waits for a flow, and one in which it expires", walks)
	}
}
