package main

import (
	"math"
	"net/netip"
	"os"
	"runtime/debug"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/maptest"
	"github.com/beeline-lb/beeline/tests/servicetest"
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
	used, err := statusmap.New(maps).Memory()
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
		{limit, "", limit/10*9 - int64(used)},
		{limit, "2GiB", math.MaxInt64},
		{1 << 20, "", leastHeap},
	} {
		t.Setenv("GOMEMLIMIT", tt.env)
		debug.SetMemoryLimit(math.MaxInt64)
		limitHeap(tt.limit, used)
		if got := debug.SetMemoryLimit(-1); got != tt.want {
			t.Errorf("limit %d, GOMEMLIMIT=%q, tables of %d bytes: the heap has %d, want %d", tt.limit, tt.env, used, got, tt.want)
		}
	}
}

// TestLeastLimit: a limit covers the tables, and what the agent remembers of each Service port and endpoint.
func TestLeastLimit(t *testing.T) {
	maps := maptest.New(t, maptest.Small)
	store := servicetest.Open(t, maps)
	const ports, endpoints = 100, 1000
	for id := range uint32(ports) {
		if err := store.PutServiceName(id, maptest.ServiceName("s", model.IPv4)); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint32(endpoints) {
		b := tables.Backend{AddrPort: netip.MustParseAddrPort("10.0.0.1:80"), State: tables.InCluster, Generation: 1}
		if err := store.PutBackend(id, b); err != nil {
			t.Fatal(err)
		}
	}
	used, err := statusmap.New(maps).Memory()
	if err != nil {
		t.Fatal(err)
	}
	want := float64(used+heapOfProgram+ports*heapOfPort+endpoints*heapOfEndpoint) / 0.9
	if got := leastLimit(used, maps); math.Abs(float64(got)-want) > 10 {
		t.Errorf("%d bytes, want %.0f", got, want)
	}
}
