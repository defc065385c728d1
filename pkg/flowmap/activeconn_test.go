package flowmap

import (
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/bpffs"
	"github.com/beeline-lb/beeline/tests/maptest"
	"github.com/beeline-lb/beeline/tests/servicetest"
)

// TestActiveRoom: no memory is used for active connections until a Service's algorithm counts them;
// from then on all backends have an entry, also those added later. Counts survive a restart and
// another size.
func TestActiveRoom(t *testing.T) {
	dir := bpffs.New(t)
	m := maptest.Load(t, dir, maptest.Small)
	services := servicetest.Open(t, m)
	backend := func(id uint32) {
		t.Helper()
		must(t, services.PutBackend(id, tables.Backend{AddrPort: netip.MustParseAddrPort("10.1.0.1:80"), State: tables.InCluster, Generation: 4}))
	}
	service := func(algorithm model.Algorithm) {
		t.Helper()
		must(t, services.PutServiceName(0, maptest.ServiceName("a", model.IPv4)),
			services.PutService(0, tables.Service{Cluster: tables.Set{Kind: policy.Backends, Count: 1}, Algorithm: algorithm}))
	}
	backend(0)
	for _, algorithm := range model.Algorithms() {
		a, err := model.ParseAlgorithm(algorithm)
		must(t, err)
		if a.Counts() {
			continue
		}
		service(a)
		if m.Active.Len() != 0 || services.Counts(0) {
			t.Errorf("%s has room for %d active connections", a, m.Active.Len())
		}
	}
	service(model.LeastConn)
	if m.Active.Len() < m.Backend.Len() || !services.Counts(0) {
		t.Errorf("there is room for the active connections of %d backends, want %d", m.Active.Len(), m.Backend.Len())
	}
	backend(9000)
	New(m).addActive(9000, 4, 6)
	New(m).addActive(9000, 3, -2)
	larger := maptest.Small
	larger.Backends *= 4
	for _, sizes := range []bpfmap.Sizes{maptest.Small, larger} {
		m = maptest.Reload(t, m, dir, sizes)
		if _, flows := New(m).Active(9000, 4); flows != 6 {
			t.Errorf("%d connections are active, want 6", flows)
		}
		if _, flows := New(m).Active(9000, 5); flows != 0 {
			t.Errorf("%d connections of the next generation are active", flows)
		}
		if m.Active.Len() < m.Backend.Len() {
			t.Errorf("there is room for the active connections of %d backends, want %d", m.Active.Len(), m.Backend.Len())
		}
	}
}
