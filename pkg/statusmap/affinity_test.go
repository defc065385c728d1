package statusmap

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/maptest"
	"github.com/beeline-lb/beeline/tests/servicetest"
	"github.com/beeline-lb/beeline/tests/wait"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestAffinities(t *testing.T) {
	m := maptest.New(t, maptest.Small)
	backend := tables.Backend{AddrPort: netip.MustParseAddrPort("10.1.0.1:80"), Service: 3, State: tables.InCluster, Generation: 2}
	must(t, servicetest.Open(t, m).PutBackend(5, backend))
	now, err := bpf.Clock()
	if err != nil {
		t.Fatal(err)
	}
	put := func(netns, generation uint32) {
		key := bpf.SockBlAffinityKey{Netns: netns, Service: 3}
		entry := bpf.SockBlAffinityEntry{LastUsed: uint64(now - 5*time.Second)}
		entry.Backend.Id, entry.Backend.Generation = 5, generation
		must(t, m.BlAffinity.Put(&key, &entry))
	}
	put(77, 2)
	put(78, 1)
	checkAffinities(t, m, 77)
	backend.State = tables.Serving // in no set any more
	must(t, servicetest.Open(t, m).PutBackend(5, backend))
	checkAffinities(t, m, 0)
}

// checkAffinities checks that of two entries one at most is valid.
func checkAffinities(t *testing.T, m *bpfmap.Maps, valid uint32) {
	t.Helper()
	list, err := New(m).Affinities()
	if err != nil || len(list) != 2 {
		t.Fatalf("%v, %v", list, err)
	}
	for _, a := range list {
		if a.Service != 3 || a.Backend != 5 || a.Idle < 5*time.Second || a.Idle > 5*time.Second+wait.Limit {
			t.Errorf("%+v", a)
		}
		if a.Valid != (a.Netns == valid) {
			t.Errorf("%+v", a)
		}
	}
}
