package statusmap

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/tests/bpffs"
	"github.com/beeline-lb/beeline/tests/maptest"
)

// TestMemory is what a node without a Service pays.
func TestMemory(t *testing.T) {
	m := maptest.New(t, bpfmap.DefaultSizes)
	total, err := New(m).Memory()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d KiB", total>>10)
	// Maps that are mapped take whole pages, of which an architecture may have larger ones.
	if most := uint64(32<<20 + 64*(os.Getpagesize()-4096)); total >= most {
		t.Errorf("the maps take %d MiB with nothing in them", total>>20)
	}
}

// TestMemoryOfFormerTables: tables that others of another size replace are counted until what they hold is moved.
func TestMemoryOfFormerTables(t *testing.T) {
	dir := bpffs.New(t)
	first := maptest.Load(t, dir, maptest.Small)
	if err := first.Pin(dir); err != nil {
		t.Fatal(err)
	}
	sizes := maptest.Small
	sizes.Flows, sizes.Clients = 8*sizes.Flows, 8*sizes.Clients
	m := maptest.Load(t, dir, sizes)
	before, err := New(m).Memory()
	if err != nil {
		t.Fatal(err)
	}
	var former uint64
	for _, kernelMap := range []*ebpf.Map{first.BlFlow, first.BlClient} {
		bytes, err := memory(kernelMap)
		if err != nil {
			t.Fatal(err)
		}
		former += bytes
	}
	_, err = m.Move()
	after, errAfter := New(m).Memory()
	if err := errors.Join(err, errAfter); err != nil {
		t.Fatal(err)
	}
	if before < after+former {
		t.Errorf("all maps take %d bytes before entries are moved and %d after that, of %d bytes that the former ones take", before, after, former)
	}
}
