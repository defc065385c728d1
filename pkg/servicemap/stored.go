package servicemap

import (
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// HoldsServiceName reports whether an id stands for that Service port.
func (t Table) HoldsServiceName(id uint32, name tables.ServiceName) bool {
	e := t.maps.ServiceName.At(id)
	return e != nil && *e == nameEntry(name)
}

// HoldsService reports whether a Service port has that entry.
func (t Table) HoldsService(id uint32, service tables.Service) bool {
	e := t.maps.Service.At(id)
	if e == nil {
		return false
	}
	want := service
	want.Algorithm = algorithmOf(algorithmNumber(service.Algorithm))
	return storedService(e) == want
}

// storedService returns what an entry says.
func storedService(e *bpf.SockBlServiceEntry) tables.Service {
	return tables.Service{
		Cluster:         setOf(atomic.LoadUint64(&e.Cluster)),
		Local:           setOf(atomic.LoadUint64(&e.Local)),
		AffinitySeconds: e.Affinity,
		Algorithm:       algorithmOf(e.Algorithm),
		Tunnels:         e.Forwarding == uint16(bpf.SockBlForwardingBL_FORWARDING_DSR),
		Outliers:        e.Outliers != 0,
		Trial:           e.Trial,
	}
}

// HoldsBackend reports whether an id is that backend.
func (t Table) HoldsBackend(id uint32, backend tables.Backend) bool {
	e := t.maps.Backend.At(id)
	return e != nil && storedBackend(e) == backend
}

// storedBackend returns what an entry says.
func storedBackend(e *bpf.SockBlBackendEntry) tables.Backend {
	return tables.Backend{
		AddrPort:   netip.AddrPortFrom(e.Addr.Netip(), bpf.Hton16(e.Port)),
		Service:    e.Service,
		State:      tables.BackendState(e.State),
		Generation: e.Generation,
		Weight:     e.Weight,
		Node:       e.Node,
	}
}

// Runs calls fn with the slots of a set, as far as the table reaches.
func (t Table) Runs(set tables.Set, fn func([]uint32)) {
	if set.Kind == policy.Backends {
		t.maps.Slot.Read(set.First, set.Count, fn)
	}
}

// readFrontend reads the entry of a key; false when there is none.
func (t Table) readFrontend(k *bpf.SockBlFrontendKey) (e bpf.SockBlFrontendEntry, found bool, err error) {
	err = t.maps.BlFrontend.Lookup(k, &e)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return e, false, nil
	}
	return e, err == nil, err
}

// HoldsFrontend reports whether a key has that entry, and the filter leads to it.
func (s *Store) HoldsFrontend(key tables.FrontendKey, frontend tables.Frontend) (bool, error) {
	k := frontendKey(key)
	e, found, err := s.readFrontend(&k)
	return found && e == frontendEntry(&k, frontend) && s.filter.has(&k), err
}

// Frontend returns the entry of a key; false when there is none.
func (t Table) Frontend(key tables.FrontendKey) (tables.Frontend, bool, error) {
	k := frontendKey(key)
	e, found, err := t.readFrontend(&k)
	return storedFrontend(&e), found, err
}

// FrontendAt returns the entry that an address and port lead to: its own, else the NodePort's of the
// port if these answer there; false when there is none.
func (t Table) FrontendAt(key tables.FrontendKey) (tables.Frontend, bool, error) {
	frontend, found, err := t.Frontend(key)
	if found || err != nil {
		return frontend, found, err
	}
	addr, flags := bpf.AddrOf(key.Addr), uint32(0)
	if err := t.maps.BlNodeAddr.Lookup(&addr, &flags); errors.Is(err, ebpf.ErrKeyNotExist) {
		return frontend, false, nil
	} else if err != nil {
		return frontend, false, fmt.Errorf("map %s: %w", bpf.SockMapBlNodeAddr, err)
	}
	if flags&uint32(bpf.SockBlNodeAddrFlagBL_NODE_ADDR_SERVED) == 0 {
		return frontend, false, nil
	}
	return t.Frontend(key.AnyAddress())
}

// StoredFrontends yields all frontends, as many at a time as one system call reads.
func (s *Store) StoredFrontends() iter.Seq2[[]tables.StoredFrontend, error] {
	return func(yield func([]tables.StoredFrontend, error) bool) {
		var list []tables.StoredFrontend
		err := bpfmap.EachBatch(s.maps.BlFrontend, func(keys []bpf.SockBlFrontendKey, entries []bpf.SockBlFrontendEntry) bool {
			list = list[:0]
			for i := range keys {
				f := storedFrontend(&entries[i])
				lost := entries[i].Check != frontendCheck(&keys[i]) || !s.filter.has(&keys[i])
				list = append(list, tables.StoredFrontend{Key: frontendKeyOf(&keys[i]), Frontend: f, Lost: lost})
			}
			return yield(list, nil)
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

// storedFrontend returns what an entry says.
func storedFrontend(e *bpf.SockBlFrontendEntry) tables.Frontend {
	return tables.Frontend{
		Service: e.Service,
		Kind:    tables.FrontendKind(e.Kind),
		Flags:   tables.FrontendFlags(e.Flags),
	}
}

// Others reads the tables that are small.
func (t Table) Others() (tables.Snapshot, error) {
	s := tables.Snapshot{
		NodeAddrs: make(map[netip.Addr]tables.NodeAddr),
		Nodes:     make(map[uint16]tables.Node),
		NodeIDs:   make(map[netip.Addr]uint16),
	}
	return s, t.snapshotOthers(&s)
}
