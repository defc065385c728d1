package statusmap

import (
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
	if total >= 32<<20 {
		t.Errorf("the maps take %d MiB with nothing in them", total>>20)
	}
}
