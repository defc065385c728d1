package tables

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

// errWrite is the error of a write that memory fails on purpose.
var errWrite = errors.New("write failed on purpose")

// killed is the panic of a write at which the agent dies.
type killed struct{}

// memory is a Store that holds every write against the contract of [Store], with
// readers that never end: whatever a program could have read since the last
// Barrier, it still has.
type memory struct {
	t      testing.TB
	limits Limits

	names     map[uint32]ServiceName
	services  map[uint32]Service
	backends  map[uint32]Backend
	slots     map[uint32]uint32
	frontends map[FrontendKey]Frontend
	ranges    map[SourceRange]bool
	cidrs     map[netip.Prefix]bool
	nodeAddrs map[netip.Addr]NodeAddr
	nodes     map[uint16]Node
	nodeIDs   map[netip.Addr]uint16

	// What readers may hold: the last four are since the last Barrier.
	owner        map[uint32]uint32 // slot → Service whose word leads to it
	heldSlots    map[uint32]bool
	heldServices map[uint32]bool
	heldBackends map[uint32]bool
	heldNodes    map[uint16]bool
	// lost holds the sets that a backend has left in its present generation.
	lost map[uint32]BackendState

	writes     int
	failing    *rand.Rand // one write in ten fails; nil: none
	killAt     int        // the write at which the agent dies; 0: never
	barrierErr error
}

func newMemory(t testing.TB, limits Limits) *memory {
	return &memory{
		t:            t,
		limits:       limits,
		names:        make(map[uint32]ServiceName),
		services:     make(map[uint32]Service),
		backends:     make(map[uint32]Backend),
		slots:        make(map[uint32]uint32),
		frontends:    make(map[FrontendKey]Frontend),
		ranges:       make(map[SourceRange]bool),
		cidrs:        make(map[netip.Prefix]bool),
		nodeAddrs:    make(map[netip.Addr]NodeAddr),
		nodes:        make(map[uint16]Node),
		nodeIDs:      make(map[netip.Addr]uint16),
		owner:        make(map[uint32]uint32),
		heldSlots:    make(map[uint32]bool),
		heldServices: make(map[uint32]bool),
		heldBackends: make(map[uint32]bool),
		heldNodes:    make(map[uint16]bool),
		lost:         make(map[uint32]BackendState),
	}
}

// roomy are limits that the tests do not reach.
var roomy = Limits{
	Services:     Limit{"bl_service", 1 << 16, "tables.maxServices"},
	Backends:     Limit{"bl_backend", 1 << 16, "tables.maxBackends"},
	Slots:        Limit{"bl_slot", 1 << 20, "tables.maxSlots"},
	Frontends:    Limit{"bl_frontend", 1 << 16, "tables.maxFrontends"},
	SourceRanges: Limit{"bl_srcrange", 1 << 16, "tables.maxSourceRanges"},
	Nodes:        Limit{"bl_node", 512, ""},
	NodeIDs:      Limit{"bl_node_id", 512, ""},
}

func (m *memory) Reserve(_, _, _ uint32) error { return nil }

func (m *memory) Limits() Limits { return m.limits }

// write counts a write and decides its fate.
func (m *memory) write() error {
	m.t.Helper()
	m.writes++
	if m.writes == m.killAt {
		panic(killed{})
	}
	if m.failing != nil && m.failing.IntN(10) == 0 {
		return errWrite
	}
	return nil
}

func (m *memory) broken(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("contract: "+format, args...)
}

func (m *memory) PutServiceName(id uint32, name ServiceName) error {
	if err := m.write(); err != nil {
		return err
	}
	if id >= m.limits.Services.Size {
		m.broken("service id %d is beyond the limit", id)
	}
	if old, ok := m.names[id]; ok && old.ServicePortName() != name.ServicePortName() {
		m.broken("service id %d goes from %v to %v without being cleared", id, old.ServicePortName(), name.ServicePortName())
	} else if !ok && (m.heldServices[id] || m.leadTo(id)) {
		m.broken("service id %d is reused while a reader may have it", id)
	}
	m.names[id] = name
	return nil
}

func (m *memory) leadTo(id uint32) bool {
	for _, f := range m.frontends {
		if f.Service == id {
			return true
		}
	}
	return false
}

func (m *memory) ClearServiceName(id uint32) error {
	if err := m.write(); err != nil {
		return err
	}
	if m.leadTo(id) {
		m.broken("service id %d is cleared while a frontend leads to it", id)
	}
	if s := m.services[id]; s.Cluster.Kind == policy.Backends || s.Local.Kind == policy.Backends {
		m.broken("service id %d is cleared while it has sets", id)
	}
	for r := range m.ranges {
		if r.Service == id {
			m.broken("service id %d is cleared while it has source range %s", id, r.Prefix)
		}
	}
	for bid, b := range m.backends {
		if b.Service == id && b.State != 0 {
			m.broken("service id %d is cleared while it has backend %d", id, bid)
		}
	}
	delete(m.names, id)
	return nil
}

// PutService dies, when it is to, between the stores of the two words.
func (m *memory) PutService(id uint32, service Service) error {
	if m.writes+1 == m.killAt && m.writes%2 == 0 {
		half := m.services[id]
		half.Cluster = service.Cluster
		m.put(id, half)
	}
	if err := m.write(); err != nil {
		return err
	}
	m.put(id, service)
	return nil
}

func (m *memory) put(id uint32, service Service) {
	if _, ok := m.names[id]; !ok {
		m.broken("service id %d is written but has no name", id)
	}
	old := m.services[id]
	for _, set := range []Set{old.Cluster, old.Local} {
		for _, slot := range slotsOf(set) {
			delete(m.owner, slot)
			m.heldSlots[slot] = true
		}
	}
	for _, set := range []Set{service.Cluster, service.Local} {
		m.checkSet(id, set)
		for _, slot := range slotsOf(set) {
			if by, taken := m.owner[slot]; taken {
				m.broken("slot %d of service %d belongs to service %d", slot, id, by)
			}
			m.owner[slot] = id
		}
	}
	m.services[id] = service
}

func (m *memory) checkSet(id uint32, set Set) {
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
		backend, ok := m.slots[slot]
		if !ok {
			m.broken("service %d leads to slot %d, never written", id, slot)
		}
		if b := m.backends[backend]; b.State == 0 || b.Service != id {
			m.broken("service %d leads by slot %d to backend %d: %+v", id, slot, backend, b)
		}
	}
}

func slotsOf(set Set) []uint32 {
	if set.Kind != policy.Backends {
		return nil
	}
	list := make([]uint32, set.Count)
	for i := range list {
		list[i] = set.First + uint32(i)
	}
	return list
}

func (m *memory) PutBackend(id uint32, b Backend) error {
	if err := m.write(); err != nil {
		return err
	}
	if id >= m.limits.Backends.Size {
		m.broken("backend id %d is beyond the limit", id)
	}
	old, known := m.backends[id]
	moved := known && (old.AddrPort != b.AddrPort || old.Service != b.Service)
	if moved && (old.State != 0 || m.heldBackends[id]) {
		m.broken("backend %d goes from %+v to %+v while a reader may have it", id, old, b)
	}
	if _, ok := m.names[b.Service]; !ok && b.State != 0 {
		m.broken("backend %d belongs to service %d, which has no name", id, b.Service)
	}
	if b.State == 0 {
		for slot, owner := range m.owner {
			if m.slots[slot] == id {
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
	if back := b.State & membership & m.lost[id]; back != 0 {
		m.broken("backend %d, %s, comes back to sets %b in one generation", id, b.AddrPort, back)
	}
	m.lost[id] |= old.State &^ b.State & membership
	if old.State != 0 {
		m.heldBackends[id] = true
	}
	if _, ok := m.nodes[b.Node]; b.Node != 0 && !ok {
		m.broken("backend %d is on node %d, which is none", id, b.Node)
	}
	if b.State == 0 && b.Node != 0 {
		m.broken("backend %d is not in use but on node %d", id, b.Node)
	}
	m.heldNodes[old.Node] = true
	m.backends[id] = b
	return nil
}

func (m *memory) Generation(id uint32) uint32 { return m.backends[id].Generation }

func (m *memory) PutSlots(first uint32, backends []uint32) error {
	if err := m.write(); err != nil {
		return err
	}
	if uint64(first)+uint64(len(backends)) > uint64(m.limits.Slots.Size) || len(backends) == 0 {
		m.broken("run of %d slots from %d", len(backends), first)
	}
	for i, id := range backends {
		slot := first + uint32(i)
		if by, taken := m.owner[slot]; taken || m.heldSlots[slot] {
			m.broken("slot %d, of service %d, is rewritten while a reader may have it", slot, by)
		}
		m.slots[slot] = id
	}
	return nil
}

func (m *memory) PutFrontend(key FrontendKey, f Frontend) error {
	if err := m.write(); err != nil {
		return err
	}
	if _, ok := m.names[f.Service]; !ok {
		m.broken("frontend %s leads to service id %d, which has no name", key, f.Service)
	}
	old, ok := m.frontends[key]
	if !ok && uint32(len(m.frontends)) >= m.limits.Frontends.Size {
		return m.limits.Frontends.Full()
	}
	if ok {
		m.heldServices[old.Service] = true
	}
	m.frontends[key] = f
	return nil
}

func (m *memory) DeleteFrontend(key FrontendKey) error {
	if err := m.write(); err != nil {
		return err
	}
	old, ok := m.frontends[key]
	if !ok {
		m.broken("frontend %s is deleted but is not there", key)
	}
	m.heldServices[old.Service] = true
	delete(m.frontends, key)
	return nil
}

func (m *memory) PutSourceRange(r SourceRange) error {
	if err := m.write(); err != nil {
		return err
	}
	if _, ok := m.names[r.Service]; !ok || m.ranges[r] {
		m.broken("source range %v is put; service named: %t", r, ok)
	}
	m.ranges[r] = true
	return nil
}

// DeleteSourceRange also checks that a frontend which is to let in everyone is
// not left, by the way, without any range.
func (m *memory) DeleteSourceRange(r SourceRange) error {
	if err := m.write(); err != nil {
		return err
	}
	if !m.ranges[r] {
		m.broken("source range %v is deleted but is not there", r)
	}
	delete(m.ranges, r)
	for other := range m.ranges {
		if other.Service == r.Service {
			return nil
		}
	}
	for key, f := range m.frontends {
		if m.failing == nil && f.Service == r.Service && f.Flags&SourceRanges != 0 {
			m.broken("frontend %s lets nobody in", key)
		}
	}
	return nil
}

func (m *memory) PutServiceCIDR(p netip.Prefix) error {
	if err := m.write(); err != nil {
		return err
	}
	m.cidrs[p] = true
	return nil
}

func (m *memory) DeleteServiceCIDR(p netip.Prefix) error {
	if err := m.write(); err != nil {
		return err
	}
	delete(m.cidrs, p)
	return nil
}

func (m *memory) PutNodeAddr(addr netip.Addr, a NodeAddr) error {
	if err := m.write(); err != nil {
		return err
	}
	m.nodeAddrs[addr] = a
	return nil
}

func (m *memory) DeleteNodeAddr(addr netip.Addr) error {
	if err := m.write(); err != nil {
		return err
	}
	delete(m.nodeAddrs, addr)
	return nil
}

func (m *memory) PutNode(id uint16, n Node) error {
	if err := m.write(); err != nil {
		return err
	}
	if id == 0 || uint32(id) >= m.limits.Nodes.Size {
		m.broken("node id %d", id)
	}
	old, known := m.nodes[id]
	switch {
	case known && old.Addr != n.Addr:
		m.broken("node %d goes from %s to %s", id, old.Addr, n.Addr)
	case !known && m.heldNodes[id]:
		m.broken("node id %d is reused while a reader may have it", id)
	}
	m.nodes[id] = n
	return nil
}

func (m *memory) ClearNode(id uint16) error {
	if err := m.write(); err != nil {
		return err
	}
	for bid, b := range m.backends {
		if b.State != 0 && b.Node == id {
			m.broken("node %d is cleared while backend %d is on it", id, bid)
		}
	}
	for addr, node := range m.nodeIDs {
		if node == id {
			m.broken("node %d is cleared while it has address %s", id, addr)
		}
	}
	delete(m.nodes, id)
	m.heldNodes[id] = true
	return nil
}

func (m *memory) PutNodeID(addr netip.Addr, id uint16) error {
	if err := m.write(); err != nil {
		return err
	}
	if _, ok := m.nodes[id]; !ok {
		m.broken("address %s leads to node %d, which is none", addr, id)
	}
	if _, ok := m.nodeIDs[addr]; !ok && uint32(len(m.nodeIDs)) >= m.limits.NodeIDs.Size {
		return m.limits.NodeIDs.Full()
	}
	m.nodeIDs[addr] = id
	return nil
}

func (m *memory) DeleteNodeID(addr netip.Addr) error {
	if err := m.write(); err != nil {
		return err
	}
	m.heldNodes[m.nodeIDs[addr]] = true
	delete(m.nodeIDs, addr)
	return nil
}

// Barrier ends all readers.
func (m *memory) Barrier() error {
	if m.barrierErr != nil {
		return m.barrierErr
	}
	clear(m.heldSlots)
	clear(m.heldServices)
	clear(m.heldBackends)
	clear(m.heldNodes)
	return nil
}

func (m *memory) snapshot() Snapshot {
	slots := maps.Clone(m.slots)
	s := Snapshot{
		Names:    maps.Clone(m.names),
		Services: make(map[uint32]Service),
		Backends: make(map[uint32]Backend),
		Slots: func(set Set) []uint32 {
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
		Frontends:    maps.Clone(m.frontends),
		SourceRanges: slices.Collect(maps.Keys(m.ranges)),
		ServiceCIDRs: slices.Collect(maps.Keys(m.cidrs)),
		NodeAddrs:    maps.Clone(m.nodeAddrs),
		Nodes:        maps.Clone(m.nodes),
		NodeIDs:      maps.Clone(m.nodeIDs),
	}
	for id := range m.names {
		s.Services[id] = m.services[id]
	}
	for id, b := range m.backends {
		if b.State != 0 {
			s.Backends[id] = b
		}
	}
	return s
}

// portView is a Service port as a reader finds it, without ids.
type portView struct {
	name           ServiceName
	affinity       uint32
	algorithm      model.Algorithm
	tunnels        bool
	cluster, local setView
	backends       map[netip.AddrPort]BackendState
	weights        map[netip.AddrPort]uint16
	nodes          map[netip.AddrPort]netip.Addr // where their tunnel ends
	ranges         []netip.Prefix
}

type setView struct {
	kind     policy.Kind
	backends []netip.AddrPort
}

// view returns what the store says of each Service port, and fails the test when two ids
// stand for one.
func (m *memory) view() map[ServicePortName]portView {
	view := make(map[ServicePortName]portView)
	for id, name := range m.names {
		if _, twice := view[name.ServicePortName()]; twice {
			m.t.Fatalf("%v has two ids", name.ServicePortName())
		}
		s := m.services[id]
		v := portView{
			name: name, affinity: s.AffinitySeconds, algorithm: s.Algorithm, tunnels: s.Tunnels,
			cluster: m.viewSet(s.Cluster), local: m.viewSet(s.Local),
			backends: make(map[netip.AddrPort]BackendState),
			weights:  make(map[netip.AddrPort]uint16),
			nodes:    make(map[netip.AddrPort]netip.Addr),
		}
		for _, b := range m.backends {
			if b.Service == id && b.State != 0 {
				v.backends[b.AddrPort] = b.State
				v.weights[b.AddrPort] = b.Weight
				v.nodes[b.AddrPort] = m.nodes[b.Node].Addr
			}
		}
		for r := range m.ranges {
			if r.Service == id {
				v.ranges = append(v.ranges, r.Prefix)
			}
		}
		slices.SortFunc(v.ranges, netip.Prefix.Compare)
		view[name.ServicePortName()] = v
	}
	return view
}

// viewNodes returns the nodes with the addresses that they may send from.
func (m *memory) viewNodes() map[Node][]netip.Addr {
	view := make(map[Node][]netip.Addr)
	for _, n := range m.nodes {
		if _, twice := view[n]; twice {
			m.t.Fatalf("%v has two ids", n)
		}
		view[n] = []netip.Addr{}
	}
	for addr, id := range m.nodeIDs {
		n := m.nodes[id]
		view[n] = append(view[n], addr)
	}
	for _, addrs := range view {
		slices.SortFunc(addrs, netip.Addr.Compare)
	}
	return view
}

func (m *memory) viewSet(set Set) setView {
	v := setView{kind: set.Kind}
	for _, slot := range slotsOf(set) {
		v.backends = append(v.backends, m.backends[m.slots[slot]].AddrPort)
	}
	return v
}

// String shows a set as "backends [10.0.0.1:80]".
func (s setView) String() string { return fmt.Sprint(s.kind, " ", s.backends) }
