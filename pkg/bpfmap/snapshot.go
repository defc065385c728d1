package bpfmap

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Snapshot reads the tables. While an agent writes, the parts of the snapshot may
// be of slightly different times.
func (m *Maps) Snapshot() (tables.Snapshot, error) {
	s := tables.Snapshot{
		Names:     m.ServiceNames(),
		Services:  make(map[uint32]tables.Service),
		Backends:  make(map[uint32]tables.Backend),
		Slots:     m.slots,
		Frontends: make(map[tables.FrontendKey]tables.Frontend),
		NodeAddrs: make(map[netip.Addr]tables.NodeAddr),
		Nodes:     make(map[uint16]tables.Node),
		NodeIDs:   make(map[netip.Addr]uint16),
	}
	for id := range m.service.len() {
		if _, ok := s.Names[id]; !ok {
			continue
		}
		s.Services[id] = storedService(m.service.at(id))
	}
	for id := range m.backend.len() {
		if e := m.backend.at(id); e.State != 0 {
			s.Backends[id] = storedBackend(e)
		}
	}
	err := m.EachNode(func(id uint16, n tables.Node, _ *bpf.SockBlNodeEntry) { s.Nodes[id] = n })
	if err != nil {
		return s, err
	}
	return s, m.snapshotHashes(&s)
}

// ServiceNames returns the names of the Service ids in use.
func (m *Maps) ServiceNames() map[uint32]tables.ServiceName {
	names := make(map[uint32]tables.ServiceName)
	for id := range m.name.len() {
		if e := m.name.at(id); e.Family != 0 {
			names[id] = serviceNameOf(e)
		}
	}
	return names
}

// ServiceName returns the name of a Service id; false when it is not in use.
func (m *Maps) ServiceName(id uint32) (tables.ServiceName, bool) {
	e := m.name.at(id)
	if e == nil || e.Family == 0 {
		return tables.ServiceName{}, false
	}
	return serviceNameOf(e), true
}

func (m *Maps) snapshotHashes(s *tables.Snapshot) error {
	err := Each(m.BlFrontend, func(key *bpf.SockBlFrontendKey, value *bpf.SockBlFrontendEntry) {
		s.Frontends[frontendKeyOf(key)] = storedFrontend(value)
	})
	if err != nil {
		return err
	}
	return m.snapshotOthers(s)
}

// snapshotOthers reads the hashes but that of frontends.
func (m *Maps) snapshotOthers(s *tables.Snapshot) error {
	err := Each(m.BlSrcrange, func(key *bpf.SockBlSrcrangeKey, _ *uint32) {
		s.SourceRanges = append(s.SourceRanges, tables.SourceRange{
			Service: key.Service,
			Prefix:  bpf.PrefixOf(key.Addr, key.PrefixLen-32),
		})
	})
	if err != nil {
		return err
	}
	err = Each(m.BlServiceCidr, func(key *bpf.SockBlCidrKey, _ *uint32) {
		s.ServiceCIDRs = append(s.ServiceCIDRs, bpf.PrefixOf(key.Addr, key.PrefixLen))
	})
	if err != nil {
		return err
	}
	err = Each(m.BlNodeId, func(key *bpf.SockBlAddr, id *uint32) { s.NodeIDs[key.Netip()] = uint16(*id) })
	if err != nil {
		return err
	}
	return Each(m.BlNodeAddr, func(key *bpf.SockBlAddr, flags *uint32) {
		hostOnly := *flags&uint32(bpf.SockBlNodeAddrFlagBL_NODE_ADDR_HOST_ONLY) != 0
		s.NodeAddrs[key.Netip()] = tables.NodeAddr{HostOnly: hostOnly}
	})
}

// Each calls fn for every entry of a hash or trie. A hash is read bucket by
// bucket, so entries that come and go meanwhile do not lead it astray.
func Each[K, V any](kernelMap *ebpf.Map, fn func(*K, *V)) error {
	return eachBatch(kernelMap, func(keys []K, values []V) bool {
		for i := range keys {
			fn(&keys[i], &values[i])
		}
		return true
	})
}

// eachBatch calls fn with the entries that one system call reads, until it returns false.
func eachBatch[K, V any](kernelMap *ebpf.Map, fn func([]K, []V) bool) error {
	var cursor ebpf.MapBatchCursor
	size := min(batch, kernelMap.MaxEntries())
	keys, values := make([]K, size), make([]V, size)
	for {
		n, err := kernelMap.BatchLookup(&cursor, keys, values, nil)
		if n > 0 && !fn(keys[:n], values[:n]) || errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", kernelMap, err)
		}
	}
}

// batch is how many entries are read by one system call; more than any bucket of
// a hash holds.
const batch = 4096

// slots returns the backend ids of a set; fewer than it counts when the table
// does not reach so far.
func (m *Maps) slots(set tables.Set) []uint32 {
	if set.Kind != policy.Backends {
		return nil
	}
	backends := make([]uint32, 0, min(set.Count, m.slot.len()))
	for i := range set.Count {
		id := m.slot.at(set.First + i)
		if id == nil {
			break
		}
		backends = append(backends, *id)
	}
	return backends
}
