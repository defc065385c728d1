package bpfmap

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Limits returns how far the tables may grow.
func (m *Maps) Limits() tables.Limits { return m.limits }

// readLimits reads the limits, which takes system calls, from maps that are open.
func (m *Maps) readLimits() tables.Limits {
	return tables.Limits{
		Services:     m.service.limit,
		Backends:     m.backend.limit,
		Slots:        m.slot.limit,
		Frontends:    limit(m.BlFrontend),
		SourceRanges: limit(m.BlSrcrange),
		Nodes:        limit(m.BlNode),
		NodeIDs:      limit(m.BlNodeId),
	}
}

// limit returns how much a hash, trie or array takes.
func limit(kernelMap *ebpf.Map) tables.Limit {
	name := nameOf(kernelMap)
	return tables.Limit{Table: name, Size: kernelMap.MaxEntries(), Setting: Setting(name)}
}

// nameOf returns the name of a map.
func nameOf(kernelMap *ebpf.Map) string {
	info, err := kernelMap.Info()
	if err != nil {
		return kernelMap.String()
	}
	return info.Name
}

// PutServiceName writes what the id stands for and makes room for its entry.
func (m *Maps) PutServiceName(id uint32, name tables.ServiceName) error {
	if _, err := m.service.grow(id); err != nil {
		return err
	}
	if err := m.growStat(); err != nil {
		return err
	}
	e, err := m.name.grow(id)
	if err != nil {
		return err
	}
	*e = nameEntry(name)
	return nil
}

// growStat gives the Services that have an entry their counters. They are not
// mapped.
func (m *Maps) growStat() error {
	outer, inner := m.BlServiceStat, m.specs[bpf.SockMapBlServiceStat].InnerMap
	want := m.service.len() / inner.MaxEntries
	if m.statChunks >= want {
		return nil
	}
	added, err := addChunks(outer, inner, m.statChunks, want)
	for _, chunk := range added {
		err = errors.Join(err, chunk.Close())
	}
	if err != nil {
		return fmt.Errorf("map %s: %w", bpf.SockMapBlServiceStat, err)
	}
	m.statChunks = want
	return nil
}

// Reserve makes room ahead: growing step by step takes longer.
func (m *Maps) Reserve(services, backends, slots uint32) error {
	return errors.Join(m.service.reserve(services), m.name.reserve(services), m.growStat(),
		m.backend.reserve(backends), m.growActive(false), m.slot.reserve(slots))
}

// ClearServiceName marks the id as not in use; its next user's counters start
// from zero.
func (m *Maps) ClearServiceName(id uint32) error {
	e := m.name.at(id)
	if e == nil {
		return nil
	}
	if err := m.clearStat(id); err != nil {
		return fmt.Errorf("map %s: %w", bpf.SockMapBlServiceStat, err)
	}
	*e = bpf.SockBlServiceNameEntry{}
	return nil
}

func (m *Maps) clearStat(id uint32) error {
	chunk, err := Chunk(m.BlServiceStat, id/uint32(bpf.SockBlChunkBL_CHUNK_SIZE))
	if err != nil {
		return err
	}
	zero := []bpf.SockBlServiceStatEntry{{}} // those of further CPUs are zero, too
	return errors.Join(chunk.Put(id%uint32(bpf.SockBlChunkBL_CHUNK_SIZE), zero), chunk.Close())
}

// PutService replaces each word of the entry by one store.
func (m *Maps) PutService(id uint32, service tables.Service) error {
	e, err := m.service.grow(id)
	if err != nil {
		return err
	}
	if err := m.growActive(service.Algorithm.Counts()); err != nil {
		return err
	}
	m.putAlgorithm(e, algorithmNumber(service.Algorithm))
	e.Forwarding = uint16(bpf.SockBlForwardingBL_FORWARDING_SNAT)
	if service.Tunnels {
		e.Forwarding = uint16(bpf.SockBlForwardingBL_FORWARDING_DSR)
	}
	atomic.StoreUint32(&e.Affinity, service.AffinitySeconds)
	atomic.StoreUint64(&e.Cluster, setWord(service.Cluster))
	atomic.StoreUint64(&e.Local, setWord(service.Local))
	return nil
}

// putAlgorithm replaces the algorithm of an entry. While one is BL_ALGORITHM_MAGLEV,
// the filter says so.
func (m *Maps) putAlgorithm(e *bpf.SockBlServiceEntry, algorithm uint16) {
	const maglev = uint16(bpf.SockBlAlgorithmBL_ALGORITHM_MAGLEV)
	old := e.Algorithm
	if old == algorithm {
		return
	}
	if algorithm == maglev {
		m.filter.addRing()
	}
	e.Algorithm = algorithm
	if old == maglev {
		m.filter.removeRing()
	}
}

// PutBackend writes an entry; state, node and generation last, by one store.
func (m *Maps) PutBackend(id uint32, backend tables.Backend) error {
	e, err := m.backend.grow(id)
	if err != nil {
		return err
	}
	if err := m.growActive(false); err != nil {
		return err
	}
	if err := m.endpoints.replace(e, backend); err != nil {
		return err
	}
	addr, port := bpf.AddrOf(backend.AddrPort.Addr()), bpf.Hton16(backend.AddrPort.Port())
	if e.Addr != addr || e.Port != port || e.Service != backend.Service {
		e.Addr, e.Port, e.Service = addr, port, backend.Service
	}
	e.Weight = backend.Weight
	word := struct {
		state, node uint16
		generation  uint32
	}{uint16(backend.State), backend.Node, backend.Generation}
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&e.State)), *(*uint64)(unsafe.Pointer(&word)))
	return nil
}

// Generation returns the generation of the id's last user.
func (m *Maps) Generation(id uint32) uint32 {
	if e := m.backend.at(id); e != nil {
		return e.Generation
	}
	return 0
}

// PutSlots writes a run.
func (m *Maps) PutSlots(first uint32, backends []uint32) error {
	if _, err := m.slot.grow(first + uint32(len(backends)) - 1); err != nil {
		return err
	}
	m.slot.write(first, backends)
	return nil
}

// Put writes an entry. The error is a [tables.FullError] when there is no room for another.
func Put(kernelMap *ebpf.Map, key, value any) error {
	err := kernelMap.Put(key, value)
	if noRoom(err) {
		return limit(kernelMap).Full()
	}
	if err != nil {
		return fmt.Errorf("map %s: %w", nameOf(kernelMap), err)
	}
	return nil
}

// Remove deletes an entry of a hash or trie; one that is not there is no error.
func Remove(kernelMap *ebpf.Map, key any) error {
	if err := kernelMap.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("map %s: %w", nameOf(kernelMap), err)
	}
	return nil
}

// PutFrontend adds or replaces a frontend.
func (m *Maps) PutFrontend(key tables.FrontendKey, frontend tables.Frontend) error {
	k := frontendKey(key)
	m.filter.add(&k)
	e := frontendEntry(&k, frontend)
	err := Put(m.BlFrontend, &k, &e)
	if err != nil {
		return errors.Join(err, m.dropFilter(&k))
	}
	return nil
}

func frontendEntry(k *bpf.SockBlFrontendKey, frontend tables.Frontend) bpf.SockBlFrontendEntry {
	return bpf.SockBlFrontendEntry{
		Service: frontend.Service,
		Kind:    uint8(frontend.Kind),
		Flags:   uint8(frontend.Flags),
		Check:   frontendCheck(k),
	}
}

// dropFilter takes a key out of the filter unless there still is such a frontend.
func (m *Maps) dropFilter(k *bpf.SockBlFrontendKey) error {
	var entry bpf.SockBlFrontendEntry
	err := m.BlFrontend.Lookup(k, &entry)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		m.filter.remove(k)
		return nil
	}
	return err
}

// DeleteFrontend removes a frontend.
func (m *Maps) DeleteFrontend(key tables.FrontendKey) error {
	k := frontendKey(key)
	if err := Remove(m.BlFrontend, &k); err != nil {
		return err
	}
	m.filter.remove(&k)
	return nil
}

// PutSourceRange lets a prefix in.
func (m *Maps) PutSourceRange(r tables.SourceRange) error {
	key := srcrangeKey(r)
	return Put(m.BlSrcrange, &key, uint32(1))
}

// DeleteSourceRange is the opposite of PutSourceRange.
func (m *Maps) DeleteSourceRange(r tables.SourceRange) error {
	key := srcrangeKey(r)
	return Remove(m.BlSrcrange, &key)
}

// PutServiceCIDR makes unallocated addresses of the prefix dropped.
func (m *Maps) PutServiceCIDR(p netip.Prefix) error {
	key := bpf.CIDRKey(p)
	if err := Put(m.BlServiceCidr, &key, uint32(1)); err != nil {
		return err
	}
	return m.writeAggregate()
}

// DeleteServiceCIDR is the opposite of PutServiceCIDR.
func (m *Maps) DeleteServiceCIDR(p netip.Prefix) error {
	key := bpf.CIDRKey(p)
	if err := Remove(m.BlServiceCidr, &key); err != nil {
		return err
	}
	return m.writeAggregate()
}

// PutNodeAddr lets NodePorts answer on the address.
func (m *Maps) PutNodeAddr(addr netip.Addr, a tables.NodeAddr) error {
	key, flags := bpf.AddrOf(addr), uint32(bpf.SockBlNodeAddrFlagBL_NODE_ADDR_SERVED)
	if a.HostOnly {
		flags |= uint32(bpf.SockBlNodeAddrFlagBL_NODE_ADDR_HOST_ONLY)
	}
	return Put(m.BlNodeAddr, &key, flags)
}

// DeleteNodeAddr is the opposite of PutNodeAddr.
func (m *Maps) DeleteNodeAddr(addr netip.Addr) error {
	key := bpf.AddrOf(addr)
	return Remove(m.BlNodeAddr, &key)
}

// Barrier waits for the programs that are running. The kernel promises that an
// update of a map of maps returns only after every program that could have seen
// the former value has ended (maybe_wait_bpf_programs); so the update need not
// change anything.
func (m *Maps) Barrier() error {
	outer := m.BlService
	chunk, err := Chunk(outer, 0)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil // nothing was ever handed out
	}
	if err == nil {
		err = errors.Join(outer.Put(uint32(0), chunk), chunk.Close())
	}
	if err != nil {
		return fmt.Errorf("wait for running programs: map %s: %w", bpf.SockMapBlService, err)
	}
	return nil
}
