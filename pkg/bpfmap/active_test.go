package bpfmap

import (
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/bpffs"
)

// TestActiveRoom: active connections have no memory until a Service goes by them; from then on all
// backends have a place, also those that come later. Counts outlive agents and other sizes.
func TestActiveRoom(t *testing.T) {
	needRoot(t)
	dir := bpffs.New(t)
	m := load(t, dir, small)
	backend := func(id uint32) {
		t.Helper()
		must(t, m.PutBackend(id, tables.Backend{AddrPort: netip.MustParseAddrPort("10.1.0.1:80"), State: tables.InCluster, Generation: 4}))
	}
	service := func(algorithm model.Algorithm) {
		t.Helper()
		must(t, m.PutServiceName(0, webPort("a", model.IPv4)),
			m.PutService(0, tables.Service{Cluster: tables.Set{Kind: policy.Backends, Count: 1}, Algorithm: algorithm}))
	}
	backend(0)
	for _, algorithm := range model.Algorithms() {
		a, err := model.ParseAlgorithm(algorithm)
		must(t, err)
		if a.Counts() {
			continue
		}
		service(a)
		if m.active.len() != 0 || m.Counts(0) {
			t.Errorf("%s has room for %d active connections", a, m.active.len())
		}
	}
	service(model.LeastConn)
	if m.active.len() < m.backend.len() || !m.Counts(0) {
		t.Errorf("there is room for the active connections of %d backends, want %d", m.active.len(), m.backend.len())
	}
	backend(9000)
	m.AddActiveFlows(9000, 4, 6)
	m.AddActiveFlows(9000, 3, -2)
	larger := small
	larger.Backends *= 4
	for _, sizes := range []Sizes{small, larger} {
		m = reload(t, m, dir, sizes)
		if _, flows := m.Active(9000, 4); flows != 6 {
			t.Errorf("%d connections are active, want 6", flows)
		}
		if _, flows := m.Active(9000, 5); flows != 0 {
			t.Errorf("%d connections of the next generation are active", flows)
		}
		if m.active.len() < m.backend.len() {
			t.Errorf("there is room for the active connections of %d backends, want %d", m.active.len(), m.backend.len())
		}
	}
}
