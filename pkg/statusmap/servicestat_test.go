package statusmap

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/maptest"
	"github.com/beeline-lb/beeline/tests/servicetest"
)

// perCPU returns one value for every CPU.
func perCPU[T any](t *testing.T, value T) []T {
	t.Helper()
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Repeat([]T{value}, cpus)
}

// TestServiceStats counts connections per Service; another Service that gets the
// id starts from zero.
func TestServiceStats(t *testing.T) {
	m := maptest.New(t, maptest.Small)
	services := servicetest.Open(t, m)
	for _, id := range []uint32{0, 4095, 4096} {
		must(t, services.PutServiceName(id, maptest.ServiceName("a", model.IPv4)))
		chunk, err := bpfmap.Chunk(m.BlServiceStat, id/4096)
		if err != nil {
			t.Fatal(err)
		}
		must(t, chunk.Put(id%4096, perCPU(t, bpf.SockBlServiceStatEntry{Connections: uint64(id) + 1, Refused: 2, Dropped: 1})), chunk.Close())
	}
	cpus := uint64(len(perCPU(t, 0)))
	for _, end := range []uint32{1, 4096, 4097, 5000} {
		stats, err := New(m).ServiceStats(end)
		if err != nil || len(stats) != int(end) {
			t.Fatalf("%d entries of %d, %v", len(stats), end, err)
		}
		for id, s := range stats {
			want := ServiceStat{}
			if id == 0 || id == 4095 || id == 4096 {
				want = ServiceStat{cpus * (uint64(id) + 1), cpus * 2, cpus}
			}
			if s != want {
				t.Errorf("service %d has %+v, want %+v", id, s, want)
			}
		}
	}
	must(t, services.ClearServiceName(4096), services.PutServiceName(4096, maptest.ServiceName("b", model.IPv4)))
	stats, err := New(m).ServiceStats(4097)
	if err != nil || stats[4096] != (ServiceStat{}) || stats[4095] == (ServiceStat{}) {
		t.Errorf("after reuse %+v, beside it %+v, %v", stats[4096], stats[4095], err)
	}
}
