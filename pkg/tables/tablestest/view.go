package tablestest

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// PortView is a Service port as a reader finds it, without ids.
type PortView struct {
	Name           tables.ServiceName
	Affinity       uint32
	Algorithm      model.Algorithm
	Tunnels        bool
	Cluster, Local SetView
	Backends       map[netip.AddrPort]tables.BackendState
	Weights        map[netip.AddrPort]uint16
	Nodes          map[netip.AddrPort]netip.Addr // where their tunnel ends
	Ranges         []netip.Prefix
}

// SetView is a set as a reader finds it: the backend of each of its slots.
type SetView struct {
	Kind     policy.Kind
	Backends []netip.AddrPort
}

// View returns what the store says of each Service port, and fails the test when two ids
// stand for one.
func (m *Store) View() map[tables.ServicePortName]PortView {
	m.mu.Lock()
	defer m.mu.Unlock()
	view := make(map[tables.ServicePortName]PortView)
	for id, name := range m.Names {
		if _, twice := view[name.ServicePortName()]; twice {
			m.t.Fatalf("%v has two ids", name.ServicePortName())
		}
		s := m.Services[id]
		v := PortView{
			Name: name, Affinity: s.AffinitySeconds, Algorithm: s.Algorithm, Tunnels: s.Tunnels,
			Cluster: m.viewSet(s.Cluster), Local: m.viewSet(s.Local),
			Backends: make(map[netip.AddrPort]tables.BackendState),
			Weights:  make(map[netip.AddrPort]uint16),
			Nodes:    make(map[netip.AddrPort]netip.Addr),
		}
		for _, b := range m.Backends {
			if b.Service == id && b.State != 0 {
				v.Backends[b.AddrPort] = b.State
				v.Weights[b.AddrPort] = b.Weight
				v.Nodes[b.AddrPort] = m.Nodes[b.Node].Addr
			}
		}
		for r := range m.Ranges {
			if r.Service == id {
				v.Ranges = append(v.Ranges, r.Prefix)
			}
		}
		slices.SortFunc(v.Ranges, netip.Prefix.Compare)
		view[name.ServicePortName()] = v
	}
	return view
}

// ViewNodes returns the nodes with the addresses that they may send from.
func (m *Store) ViewNodes() map[tables.Node][]netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	view := make(map[tables.Node][]netip.Addr)
	for _, n := range m.Nodes {
		if _, twice := view[n]; twice {
			m.t.Fatalf("%v has two ids", n)
		}
		view[n] = []netip.Addr{}
	}
	for addr, id := range m.NodeIDs {
		n := m.Nodes[id]
		view[n] = append(view[n], addr)
	}
	for _, addrs := range view {
		slices.SortFunc(addrs, netip.Addr.Compare)
	}
	return view
}

func (m *Store) viewSet(set tables.Set) SetView {
	v := SetView{Kind: set.Kind}
	for _, slot := range slotsOf(set) {
		v.Backends = append(v.Backends, m.Backends[m.Slots[slot]].AddrPort)
	}
	return v
}

// String shows a set as "backends [10.0.0.1:80]".
func (s SetView) String() string { return fmt.Sprint(s.Kind, " ", s.Backends) }

// BackendAt returns id and entry of the only backend in use of that address.
func (m *Store) BackendAt(addr netip.AddrPort) (uint32, tables.Backend) {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, b := range m.Backends {
		if b.AddrPort == addr && b.State != 0 {
			return id, b
		}
	}
	m.t.Fatalf("no backend at %s", addr)
	return 0, tables.Backend{}
}

// Valid is the programs' check of a backend that is remembered for new connections.
func (m *Store) Valid(id, generation uint32, member tables.BackendState) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.Backends[id]
	return b.Generation == generation && b.State&member != 0
}

// Serving is the programs' check of what goes to a backend.
func (m *Store) Serving(id, generation uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.Backends[id]
	return uint16(b.Generation) == uint16(generation) && b.State != 0
}

// OwnerOf returns the name of the Service that a frontend leads to, or "nobody".
func (m *Store) OwnerOf(key tables.FrontendKey) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.Frontends[key]
	if !ok {
		return "nobody"
	}
	return m.Names[f.Service].Port.Service.Name
}
