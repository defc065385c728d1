// Package tablestest has a store of tables in memory, for tests alone: those of what writes
// tables need no maps of the kernel, and thus no root.
package tablestest

import (
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// ErrWrite is the error of a write that a Store fails on purpose.
var ErrWrite = errors.New("write failed on purpose")

// Killed is the panic of a write at which the agent dies.
type Killed struct{}

// membership masks the bits that decide whether a backend gets new connections.
const membership = tables.InCluster | tables.InLocal

// Store is a [tables.Store] in memory. It holds every write against the contract of that
// type, with readers that never end: whatever a program could have read since the last
// Barrier, it still has. A write that breaks the contract fails the test; of several only
// the first is told, as the others may come of it.
//
// Its methods may be called beside each other. Its fields are for tests that run nothing
// beside them. It has more than 25 methods because it is a [tables.Store] and what reads one.
type Store struct {
	t      testing.TB
	limits tables.Limits

	mu     sync.Mutex // guards all below
	failed bool       // a breach of the contract was told

	Names     map[uint32]tables.ServiceName
	Services  map[uint32]tables.Service
	Backends  map[uint32]tables.Backend
	Slots     map[uint32]uint32
	Frontends map[tables.FrontendKey]tables.Frontend
	Ranges    map[tables.SourceRange]bool
	CIDRs     map[netip.Prefix]bool
	Foreign   map[netip.Addr]bool
	NodeAddrs map[netip.Addr]tables.NodeAddr
	Nodes     map[uint16]tables.Node
	NodeIDs   map[netip.Addr]uint16
	outliers  map[uint32]outlier

	// What readers may hold: the last four are since the last Barrier.
	Owner        map[uint32]uint32 // slot → Service whose word leads to it
	heldSlots    map[uint32]bool
	heldServices map[uint32]bool
	heldBackends map[uint32]bool
	heldNodes    map[uint16]bool
	// lost holds the sets that a backend has left in its present generation.
	lost map[uint32]tables.BackendState

	Writes     int        // so far, those that failed, too
	Failing    *rand.Rand // one write in ten fails; nil: none
	KillAt     int        // the write at which the agent dies; 0: never
	BarrierErr error      // of Barrier; nil: none
}

// New returns an empty store that fails t when its contract is broken.
func New(t testing.TB, limits tables.Limits) *Store {
	return &Store{
		t:            t,
		limits:       limits,
		Names:        make(map[uint32]tables.ServiceName),
		Services:     make(map[uint32]tables.Service),
		Backends:     make(map[uint32]tables.Backend),
		Slots:        make(map[uint32]uint32),
		Frontends:    make(map[tables.FrontendKey]tables.Frontend),
		Ranges:       make(map[tables.SourceRange]bool),
		CIDRs:        make(map[netip.Prefix]bool),
		Foreign:      make(map[netip.Addr]bool),
		NodeAddrs:    make(map[netip.Addr]tables.NodeAddr),
		Nodes:        make(map[uint16]tables.Node),
		outliers:     make(map[uint32]outlier),
		NodeIDs:      make(map[netip.Addr]uint16),
		Owner:        make(map[uint32]uint32),
		heldSlots:    make(map[uint32]bool),
		heldServices: make(map[uint32]bool),
		heldBackends: make(map[uint32]bool),
		heldNodes:    make(map[uint16]bool),
		lost:         make(map[uint32]tables.BackendState),
	}
}

// Roomy are limits that tests reach only when they mean to.
var Roomy = tables.Limits{
	Services:     tables.Limit{Table: "bl_service", Size: 1 << 16, Setting: "tables.maxServices"},
	Backends:     tables.Limit{Table: "bl_backend", Size: 1 << 16, Setting: "tables.maxBackends"},
	Slots:        tables.Limit{Table: "bl_slot", Size: 1 << 20, Setting: "tables.maxSlots"},
	Frontends:    tables.Limit{Table: "bl_frontend", Size: 1 << 16, Setting: "tables.maxFrontends"},
	SourceRanges: tables.Limit{Table: "bl_srcrange", Size: 1 << 16, Setting: "tables.maxSourceRanges"},
	Nodes:        tables.Limit{Table: "bl_node", Size: 512},
	NodeIDs:      tables.Limit{Table: "bl_node_id", Size: 512},
}

// Reserve does nothing: there is room.
func (m *Store) Reserve(_, _, _ uint32) error { return nil }

// Limits returns what New was given.
func (m *Store) Limits() tables.Limits { return m.limits }

// write counts a write and decides whether it fails.
func (m *Store) write() error {
	m.t.Helper()
	m.Writes++
	if m.Writes == m.KillAt {
		panic(Killed{})
	}
	if m.Failing != nil && m.Failing.IntN(10) == 0 {
		return ErrWrite
	}
	return nil
}

// broken fails the test.
func (m *Store) broken(format string, args ...any) {
	m.t.Helper()
	if !m.failed { // not Fatalf: the writer may be in another goroutine than the test
		m.failed = true
		m.t.Errorf("contract: "+format, args...)
	}
}

// PutServiceName names an id that is in no use, or changes the other fields of its Service port.
func (m *Store) PutServiceName(id uint32, name tables.ServiceName) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	if id >= m.limits.Services.Size {
		m.broken("service id %d is beyond the limit", id)
	}
	if old, ok := m.Names[id]; ok && old.ServicePortName() != name.ServicePortName() {
		m.broken("service id %d goes from %v to %v without being cleared", id, old.ServicePortName(), name.ServicePortName())
	} else if !ok && (m.heldServices[id] || m.leadTo(id)) {
		m.broken("service id %d is reused while a reader may have it", id)
	}
	m.Names[id] = name
	return nil
}

func (m *Store) leadTo(id uint32) bool {
	for _, f := range m.Frontends {
		if f.Service == id {
			return true
		}
	}
	return false
}

// ClearServiceName frees an id that nothing leads to.
func (m *Store) ClearServiceName(id uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	if m.leadTo(id) {
		m.broken("service id %d is cleared while a frontend leads to it", id)
	}
	if s := m.Services[id]; s.Cluster.Kind == policy.Backends || s.Local.Kind == policy.Backends {
		m.broken("service id %d is cleared while it has sets", id)
	}
	for r := range m.Ranges {
		if r.Service == id {
			m.broken("service id %d is cleared while it has source range %s", id, r.Prefix)
		}
	}
	for bid, b := range m.Backends {
		if b.Service == id && b.State != 0 {
			m.broken("service id %d is cleared while it has backend %d", id, bid)
		}
	}
	delete(m.Names, id)
	return nil
}

// PutService dies, when it is to, between the stores of the two words.
func (m *Store) PutService(id uint32, service tables.Service) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Writes+1 == m.KillAt && m.Writes%2 == 0 {
		half := m.Services[id]
		half.Cluster = service.Cluster
		m.put(id, half)
	}
	if err := m.write(); err != nil {
		return err
	}
	m.put(id, service)
	return nil
}

func (m *Store) put(id uint32, service tables.Service) {
	if _, ok := m.Names[id]; !ok {
		m.broken("service id %d is written but has no name", id)
	}
	old := m.Services[id]
	for _, set := range []tables.Set{old.Cluster, old.Local} {
		for _, slot := range slotsOf(set) {
			delete(m.Owner, slot)
			m.heldSlots[slot] = true
		}
	}
	for _, set := range []tables.Set{service.Cluster, service.Local} {
		m.checkSet(id, set)
		for _, slot := range slotsOf(set) {
			if by, taken := m.Owner[slot]; taken {
				m.broken("slot %d of service %d belongs to service %d", slot, id, by)
			}
			m.Owner[slot] = id
		}
	}
	m.Services[id] = service
}

func (m *Store) checkSet(id uint32, set tables.Set) {
	if set.Kind != policy.Backends {
		if set.First != 0 || set.Count != 0 {
			m.broken("set %v of service %d is no run but has slots", set, id)
		}
		return
	}
	if set.Count == 0 {
		m.broken("set %v of service %d is empty", set, id)
	}
	for _, slot := range slotsOf(set) {
		backend, ok := m.Slots[slot]
		if !ok {
			m.broken("service %d leads to slot %d, never written", id, slot)
		}
		if b := m.Backends[backend]; b.State == 0 || b.Service != id {
			m.broken("service %d leads by slot %d to backend %d: %+v", id, slot, backend, b)
		}
	}
}

func slotsOf(set tables.Set) []uint32 {
	if set.Kind != policy.Backends {
		return nil
	}
	list := make([]uint32, set.Count)
	for i := range list {
		list[i] = set.First + uint32(i)
	}
	return list
}

// PutBackend takes an id that is in no use, or changes its user.
func (m *Store) PutBackend(id uint32, b tables.Backend) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	if id >= m.limits.Backends.Size {
		m.broken("backend id %d is beyond the limit", id)
	}
	old, known := m.Backends[id]
	moved := known && (old.AddrPort != b.AddrPort || old.Service != b.Service)
	if moved && (old.State != 0 || m.heldBackends[id]) {
		m.broken("backend %d goes from %+v to %+v while a reader may have it", id, old, b)
	}
	if _, ok := m.Names[b.Service]; !ok && b.State != 0 {
		m.broken("backend %d belongs to service %d, which has no name", id, b.Service)
	}
	if b.State == 0 {
		for slot, owner := range m.Owner {
			if m.Slots[slot] == id {
				m.broken("backend %d goes while service %d leads to it", id, owner)
			}
		}
	}
	if b.Generation != old.Generation {
		m.lost[id] = 0
	}
	if moved && b.Generation == old.Generation {
		m.broken("backend %d goes from %s to %s in one generation", id, old.AddrPort, b.AddrPort)
	}
	if old.State != 0 && b.State != 0 && uint16(b.Generation) != uint16(old.Generation) {
		m.broken("backend %d, %s, serves on, but what goes to it leaves: generation %d, then %d", id, b.AddrPort, old.Generation, b.Generation)
	}
	if back := b.State & membership & m.lost[id]; back != 0 {
		m.broken("backend %d, %s, comes back to sets %b in one generation", id, b.AddrPort, back)
	}
	m.lost[id] |= old.State &^ b.State & membership
	if old.State != 0 {
		m.heldBackends[id] = true
	}
	if _, ok := m.Nodes[b.Node]; b.Node != 0 && !ok {
		m.broken("backend %d is on node %d, which is none", id, b.Node)
	}
	if b.State == 0 && b.Node != 0 {
		m.broken("backend %d is not in use but on node %d", id, b.Node)
	}
	m.heldNodes[old.Node] = true
	m.Backends[id] = b
	return nil
}

// Generation is that of the id's last user.
func (m *Store) Generation(id uint32) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Backends[id].Generation
}

// PutSlots takes slots that no reader knows.
func (m *Store) PutSlots(first uint32, backends []uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	if uint64(first)+uint64(len(backends)) > uint64(m.limits.Slots.Size) || len(backends) == 0 {
		m.broken("run of %d slots from %d", len(backends), first)
	}
	for i, id := range backends {
		slot := first + uint32(i)
		if by, taken := m.Owner[slot]; taken || m.heldSlots[slot] {
			m.broken("slot %d, of service %d, is rewritten while a reader may have it", slot, by)
		}
		m.Slots[slot] = id
	}
	return nil
}

// PutFrontend leads to a Service that has a name.
func (m *Store) PutFrontend(key tables.FrontendKey, f tables.Frontend) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	if _, ok := m.Names[f.Service]; !ok {
		m.broken("frontend %s leads to service id %d, which has no name", key, f.Service)
	}
	old, ok := m.Frontends[key]
	if !ok && uint32(len(m.Frontends)) >= m.limits.Frontends.Size {
		return m.limits.Frontends.Full()
	}
	if ok {
		m.heldServices[old.Service] = true
	}
	m.Frontends[key] = f
	return nil
}

// DeleteFrontend takes one that is there.
func (m *Store) DeleteFrontend(key tables.FrontendKey) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	old, ok := m.Frontends[key]
	if !ok {
		m.broken("frontend %s is deleted but is not there", key)
	}
	m.heldServices[old.Service] = true
	delete(m.Frontends, key)
	return nil
}

// PutSourceRange takes one that is not there.
func (m *Store) PutSourceRange(r tables.SourceRange) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	if _, ok := m.Names[r.Service]; !ok || m.Ranges[r] {
		m.broken("source range %v is put; service named: %t", r, ok)
	}
	if uint32(len(m.Ranges)) >= m.limits.SourceRanges.Size {
		return m.limits.SourceRanges.Full()
	}
	m.Ranges[r] = true
	return nil
}

// DeleteSourceRange also checks that a frontend which is to let in everyone is
// not left, by the way, without any range.
func (m *Store) DeleteSourceRange(r tables.SourceRange) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	if !m.Ranges[r] {
		m.broken("source range %v is deleted but is not there", r)
	}
	delete(m.Ranges, r)
	for other := range m.Ranges {
		if other.Service == r.Service {
			return nil
		}
	}
	for key, f := range m.Frontends {
		if m.Failing == nil && f.Service == r.Service && f.Flags&tables.SourceRanges != 0 {
			m.broken("frontend %s lets nobody in", key)
		}
	}
	return nil
}

// PutServiceCIDR takes any.
func (m *Store) PutServiceCIDR(p netip.Prefix) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	m.CIDRs[p] = true
	return nil
}

// DeleteServiceCIDR takes any.
func (m *Store) DeleteServiceCIDR(p netip.Prefix) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	delete(m.CIDRs, p)
	return nil
}

// PutForeign takes any.
func (m *Store) PutForeign(addr netip.Addr) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	m.Foreign[addr] = true
	return nil
}

// DeleteForeign takes any.
func (m *Store) DeleteForeign(addr netip.Addr) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	delete(m.Foreign, addr)
	return nil
}

// PutNodeAddr takes any.
func (m *Store) PutNodeAddr(addr netip.Addr, a tables.NodeAddr) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	m.NodeAddrs[addr] = a
	return nil
}

// DeleteNodeAddr takes any.
func (m *Store) DeleteNodeAddr(addr netip.Addr) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	delete(m.NodeAddrs, addr)
	return nil
}

// PutNode takes an id that no reader knows, or that has this address.
func (m *Store) PutNode(id uint16, n tables.Node) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	if id == 0 || uint32(id) >= m.limits.Nodes.Size {
		m.broken("node id %d", id)
	}
	old, known := m.Nodes[id]
	switch {
	case known && old.Addr != n.Addr:
		m.broken("node %d goes from %s to %s", id, old.Addr, n.Addr)
	case !known && m.heldNodes[id]:
		m.broken("node id %d is reused while a reader may have it", id)
	}
	m.Nodes[id] = n
	return nil
}

// ClearNode frees an id that nothing leads to.
func (m *Store) ClearNode(id uint16) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	for bid, b := range m.Backends {
		if b.State != 0 && b.Node == id {
			m.broken("node %d is cleared while backend %d is on it", id, bid)
		}
	}
	for addr, node := range m.NodeIDs {
		if node == id {
			m.broken("node %d is cleared while it has address %s", id, addr)
		}
	}
	delete(m.Nodes, id)
	m.heldNodes[id] = true
	return nil
}

// PutNodeID leads to a node that is there.
func (m *Store) PutNodeID(addr netip.Addr, id uint16) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	if _, ok := m.Nodes[id]; !ok {
		m.broken("address %s leads to node %d, which is none", addr, id)
	}
	if _, ok := m.NodeIDs[addr]; !ok && uint32(len(m.NodeIDs)) >= m.limits.NodeIDs.Size {
		return m.limits.NodeIDs.Full()
	}
	m.NodeIDs[addr] = id
	return nil
}

// DeleteNodeID takes any.
func (m *Store) DeleteNodeID(addr netip.Addr) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.write(); err != nil {
		return err
	}
	m.heldNodes[m.NodeIDs[addr]] = true
	delete(m.NodeIDs, addr)
	return nil
}

// Barrier ends all readers.
func (m *Store) Barrier() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.BarrierErr != nil {
		return m.BarrierErr
	}
	clear(m.heldSlots)
	clear(m.heldServices)
	clear(m.heldBackends)
	clear(m.heldNodes)
	return nil
}

// Snapshot returns what the store holds.
func (m *Store) Snapshot() (tables.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	slots := maps.Clone(m.Slots)
	s := tables.Snapshot{
		Names:    maps.Clone(m.Names),
		Services: make(map[uint32]tables.Service),
		Backends: make(map[uint32]tables.Backend),
		Slots: func(set tables.Set) []uint32 {
			var ids []uint32
			for _, slot := range slotsOf(set) {
				id, ok := slots[slot]
				if !ok {
					break
				}
				ids = append(ids, id)
			}
			return ids
		},
		Frontends:    maps.Clone(m.Frontends),
		SourceRanges: slices.Collect(maps.Keys(m.Ranges)),
		ServiceCIDRs: slices.Collect(maps.Keys(m.CIDRs)),
		Foreign:      slices.Collect(maps.Keys(m.Foreign)),
		NodeAddrs:    maps.Clone(m.NodeAddrs),
		Nodes:        maps.Clone(m.Nodes),
		NodeIDs:      maps.Clone(m.NodeIDs),
	}
	for id := range m.Names {
		s.Services[id] = m.Services[id]
	}
	for id, b := range m.Backends {
		if b.State != 0 {
			s.Backends[id] = b
		}
	}
	return s, nil
}
