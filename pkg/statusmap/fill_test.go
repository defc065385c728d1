package statusmap

import (
	"os"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
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
