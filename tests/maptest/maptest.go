// Package maptest makes maps for tests of what reads and writes them.
package maptest

import (
	"errors"
	"os"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Small keeps the LRU maps from taking much memory.
var Small = bpfmap.Sizes{
	Frontends: 2000, Services: 3 * 4096, Backends: 3 * 4096, Slots: 3 * 16384,
	Affinity: 1000, UDPPeers: 1000, SourceRanges: 100, Flows: 1000, Clients: 1000,
}

// New makes maps of those sizes that are pinned nowhere. Without root the test is skipped.
func New(t testing.TB, sizes bpfmap.Sizes) *bpfmap.Maps {
	t.Helper()
	return Load(t, t.TempDir(), sizes)
}

// Load opens the maps that are pinned in dir, or makes them.
func Load(t testing.TB, dir string, sizes bpfmap.Sizes) *bpfmap.Maps {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes BPF maps")
	}
	m, err := bpfmap.Load(dir, sizes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// Reload closes the maps after pinning them in dir, and opens the pins.
func Reload(t testing.TB, m *bpfmap.Maps, dir string, sizes bpfmap.Sizes) *bpfmap.Maps {
	t.Helper()
	if err := errors.Join(m.Pin(dir), m.Close()); err != nil {
		t.Fatal(err)
	}
	return Load(t, dir, sizes)
}

// ServiceName is what the id of a Service port stands for.
func ServiceName(service string, family model.Family) tables.ServiceName {
	return tables.ServiceName{
		Port:   model.PortName{Service: model.Name{Namespace: "ns", Name: service}, Port: "web", Protocol: model.TCP},
		Family: family, Type: "ClusterIP", Number: 80,
	}
}
