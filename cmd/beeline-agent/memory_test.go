package main

import (
	"math"
	"os"
	"runtime/debug"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// TestLimitHeap: the heap and the tables together stay within nine tenths of the limit.
func TestLimitHeap(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes BPF maps")
	}
	maps, err := bpfmap.Load(t.TempDir(), bpfmap.DefaultSizes)
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	tables, err := statusmap.New(maps).Memory()
	if err != nil {
		t.Fatal(err)
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	const limit = 1 << 30
	for _, tt := range []struct {
		limit uint64
		env   string // GOMEMLIMIT
		want  int64
	}{
		{0, "", math.MaxInt64},
		{limit, "", limit/10*9 - int64(tables)},
		{limit, "2GiB", math.MaxInt64},
		{1 << 20, "", leastHeap},
	} {
		t.Setenv("GOMEMLIMIT", tt.env)
		debug.SetMemoryLimit(math.MaxInt64)
		if err := limitHeap(tt.limit, maps); err != nil {
			t.Fatal(err)
		}
		if got := debug.SetMemoryLimit(-1); got != tt.want {
			t.Errorf("limit %d, GOMEMLIMIT=%q, tables of %d bytes: the heap has %d, want %d", tt.limit, tt.env, tables, got, tt.want)
		}
	}
}
