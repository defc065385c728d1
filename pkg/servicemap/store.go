package servicemap

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// PutServiceName writes what the id stands for and makes room for its entry.
func (s *Store) PutServiceName(id uint32, name tables.ServiceName) error {
	if _, err := s.maps.Service.Grow(id); err != nil {
		return err
	}
	if err := s.maps.GrowServiceStats(); err != nil {
		return err
	}
	e, err := s.maps.ServiceName.Grow(id)
	if err != nil {
		return err
	}
	*e = nameEntry(name)
	return nil
}

// Reserve makes room ahead: growing step by step takes longer.
func (s *Store) Reserve(services, backends, slots uint32) error {
	return errors.Join(s.maps.Service.Reserve(services), s.maps.ServiceName.Reserve(services), s.maps.GrowServiceStats(),
		s.maps.Backend.Reserve(backends), s.growCounts(false, false), s.maps.Slot.Reserve(slots))
}

// ClearServiceName marks the id as not in use; its next user's counters start
// from zero.
func (s *Store) ClearServiceName(id uint32) error {
	e := s.maps.ServiceName.At(id)
	if e == nil {
		return nil
	}
	if err := s.clearStat(id); err != nil {
		return fmt.Errorf("map %s: %w", bpf.SockMapBlServiceStat, err)
	}
	if err := s.clearTraffic(bpf.SockBlTrafficKindBL_TRAFFIC_SERVICE, id); err != nil {
		return err
	}
	*e = bpf.SockBlServiceNameEntry{}
	return nil
}

func (s *Store) clearStat(id uint32) error {
	chunk, err := bpfmap.Chunk(s.maps.BlServiceStat, id/uint32(bpf.SockBlChunkBL_CHUNK_SIZE))
	if err != nil {
		return err
	}
	zero := []bpf.SockBlServiceStatEntry{{}} // those of further CPUs are zero, too
	return errors.Join(chunk.Put(id%uint32(bpf.SockBlChunkBL_CHUNK_SIZE), zero), chunk.Close())
}

// clearTraffic lets the next user of an id begin without traffic.
func (s *Store) clearTraffic(kind bpf.SockBlTrafficKind, id uint32) error {
	if !s.maps.CountsTraffic() {
		return nil
	}
	key := bpf.SockBlTrafficKey{Kind: uint32(kind), Id: id}
	return bpfmap.Remove(s.maps.BlTraffic, &key)
}

// PutService replaces each word of the entry by one store.
func (s *Store) PutService(id uint32, service tables.Service) error {
	e, err := s.maps.Service.Grow(id)
	if err != nil {
		return err
	}
	if err := s.growCounts(service.Algorithm.Counts(), service.Outliers); err != nil {
		return err
	}
	s.putAlgorithm(e, algorithmNumber(service.Algorithm))
	e.Forwarding = uint16(bpf.SockBlForwardingBL_FORWARDING_SNAT)
	if service.Tunnels {
		e.Forwarding = uint16(bpf.SockBlForwardingBL_FORWARDING_DSR)
	}
	e.Outliers = 0
	if service.Outliers {
		e.Outliers = 1
	}
	atomic.StoreUint32(&e.Trial, service.Trial)
	atomic.StoreUint32(&e.Affinity, service.AffinitySeconds)
	atomic.StoreUint64(&e.Cluster, setWord(service.Cluster))
	atomic.StoreUint64(&e.Local, setWord(service.Local))
	return nil
}

// putAlgorithm replaces the algorithm of an entry. While one is BL_ALGORITHM_MAGLEV,
// the filter says so.
func (s *Store) putAlgorithm(e *bpf.SockBlServiceEntry, algorithm uint16) {
	const maglev = uint16(bpf.SockBlAlgorithmBL_ALGORITHM_MAGLEV)
	old := e.Algorithm
	if old == algorithm {
		return
	}
	if algorithm == maglev {
		s.filter.addRing()
	}
	e.Algorithm = algorithm
	if old == maglev {
		s.filter.removeRing()
	}
}

// PutBackend writes an entry; state, node and generation last, by one store.
func (s *Store) PutBackend(id uint32, backend tables.Backend) error {
	e, err := s.maps.Backend.Grow(id)
	if err != nil {
		return err
	}
	if err := s.growCounts(false, false); err != nil {
		return err
	}
	if err := s.endpoints.replace(e, backend); err != nil {
		return err
	}
	// Programs that still knew the former user of the id have ended by now.
	if e.Generation != backend.Generation {
		if err := s.clearTraffic(bpf.SockBlTrafficKindBL_TRAFFIC_BACKEND, id); err != nil {
			return err
		}
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

// PutSlots writes a run.
func (s *Store) PutSlots(first uint32, backends []uint32) error {
	if _, err := s.maps.Slot.Grow(first + uint32(len(backends)) - 1); err != nil {
		return err
	}
	s.maps.Slot.Write(first, backends)
	return nil
}

// PutFrontend adds or replaces a frontend.
func (s *Store) PutFrontend(key tables.FrontendKey, frontend tables.Frontend) error {
	k := frontendKey(key)
	s.filter.add(&k)
	e := frontendEntry(&k, frontend)
	err := bpfmap.Put(s.maps.BlFrontend, &k, &e)
	if err != nil {
		return errors.Join(err, s.dropFilter(&k))
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
func (s *Store) dropFilter(k *bpf.SockBlFrontendKey) error {
	var entry bpf.SockBlFrontendEntry
	err := s.maps.BlFrontend.Lookup(k, &entry)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		s.filter.remove(k)
		return nil
	}
	return err
}

// DeleteFrontend removes a frontend.
func (s *Store) DeleteFrontend(key tables.FrontendKey) error {
	k := frontendKey(key)
	if err := bpfmap.Remove(s.maps.BlFrontend, &k); err != nil {
		return err
	}
	s.filter.remove(&k)
	return nil
}

// PutSourceRange lets a prefix in.
func (s *Store) PutSourceRange(r tables.SourceRange) error {
	key := srcrangeKey(r)
	return bpfmap.Put(s.maps.BlSrcrange, &key, uint32(1))
}

// DeleteSourceRange is the opposite of PutSourceRange.
func (s *Store) DeleteSourceRange(r tables.SourceRange) error {
	key := srcrangeKey(r)
	return bpfmap.Remove(s.maps.BlSrcrange, &key)
}

// PutServiceCIDR makes unallocated addresses of the prefix dropped.
func (s *Store) PutServiceCIDR(p netip.Prefix) error {
	key := bpf.CIDRKey(p)
	if err := bpfmap.Put(s.maps.BlServiceCidr, &key, uint32(1)); err != nil {
		return err
	}
	return writeAggregate(s.maps)
}

// DeleteServiceCIDR is the opposite of PutServiceCIDR.
func (s *Store) DeleteServiceCIDR(p netip.Prefix) error {
	key := bpf.CIDRKey(p)
	if err := bpfmap.Remove(s.maps.BlServiceCidr, &key); err != nil {
		return err
	}
	return writeAggregate(s.maps)
}

// PutForeign lets packets to an address in a Service CIDR pass.
func (s *Store) PutForeign(addr netip.Addr) error {
	key := bpf.CIDRKey(netip.PrefixFrom(addr, addr.BitLen()))
	return bpfmap.Put(s.maps.BlForeign, &key, uint32(1))
}

// DeleteForeign is the opposite of PutForeign.
func (s *Store) DeleteForeign(addr netip.Addr) error {
	key := bpf.CIDRKey(netip.PrefixFrom(addr, addr.BitLen()))
	return bpfmap.Remove(s.maps.BlForeign, &key)
}

// PutNodeAddr lets NodePorts answer on the address.
func (s *Store) PutNodeAddr(addr netip.Addr, a tables.NodeAddr) error {
	key, flags := bpf.AddrOf(addr), uint32(bpf.SockBlNodeAddrFlagBL_NODE_ADDR_SERVED)
	if a.HostOnly {
		flags |= uint32(bpf.SockBlNodeAddrFlagBL_NODE_ADDR_HOST_ONLY)
	}
	return bpfmap.Put(s.maps.BlNodeAddr, &key, flags)
}

// DeleteNodeAddr is the opposite of PutNodeAddr.
func (s *Store) DeleteNodeAddr(addr netip.Addr) error {
	key := bpf.AddrOf(addr)
	return bpfmap.Remove(s.maps.BlNodeAddr, &key)
}

// Barrier waits for the programs that are running.
func (s *Store) Barrier() error { return s.maps.Barrier() }

// growCounts makes room for the active connections, and for the failures, of all backends when they are
// counted: from the first Service on that asks for it.
func (s *Store) growCounts(active, failures bool) error {
	return errors.Join(growBeside(s.maps.Active, active, s.maps.Backend.Len()), growBeside(s.maps.Outlier, failures, s.maps.Backend.Len()))
}

// growBeside makes room for so many entries in a table that is empty until somebody asks for it.
func growBeside[E any](t *bpfmap.Table[E], asked bool, entries uint32) error {
	if !asked && t.Len() == 0 {
		return nil
	}
	return t.Reserve(entries)
}
