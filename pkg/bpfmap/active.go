package bpfmap

import (
	"sync/atomic"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// growActive makes room for the active connections of all backends when they are counted: from
// the first Service on that asks for it.
func (m *Maps) growActive(asked bool) error {
	if !asked && m.active.len() == 0 {
		return nil
	}
	return m.active.reserve(m.backend.len())
}

// activeKinds are the words of an entry of bl_active.
const (
	activeSockets = bpf.SockBlActiveKindBL_ACTIVE_SOCKETS
	activeFlows   = bpf.SockBlActiveKindBL_ACTIVE_FLOWS
)

// Counts reports whether active connections are counted at the backends of a Service.
func (m *Maps) Counts(service uint32) bool {
	e := m.service.at(service)
	return e != nil && m.active.len() > 0 && algorithmOf(e.Algorithm).Counts()
}

// Active returns the active connections of a backend, of sockets and of packets, as far as they
// were counted for the generation.
func (m *Maps) Active(id, generation uint32) (sockets, flows uint32) {
	e := m.active.at(id)
	if e == nil {
		return 0, 0
	}
	return activeCount(atomic.LoadUint64(&e.Word[activeSockets]), generation),
		activeCount(atomic.LoadUint64(&e.Word[activeFlows]), generation)
}

// activeCount is bl_active_count of the programs.
func activeCount(word uint64, generation uint32) uint32 {
	if uint32(word>>32) != generation {
		return 0
	}
	return uint32(word)
}

// ActiveBegun returns how many flows the programs have begun to count at a backend, ever: it
// wraps, and is never less than what is in the count.
func (m *Maps) ActiveBegun(id uint32) uint32 {
	e := m.active.at(id)
	if e == nil {
		return 0
	}
	return atomic.LoadUint32(&e.Begun)
}

// AddActiveFlows changes the number of flows that are counted at a backend, not below zero. It
// has no effect when another generation is counted, unless the change is an increase.
func (m *Maps) AddActiveFlows(id, generation uint32, by int64) {
	e := m.active.at(id)
	if e == nil || by == 0 {
		return
	}
	for {
		seen := atomic.LoadUint64(&e.Word[activeFlows])
		if by < 0 && uint32(seen>>32) != generation {
			return
		}
		count := max(0, int64(activeCount(seen, generation))+by)
		if atomic.CompareAndSwapUint64(&e.Word[activeFlows], seen, uint64(generation)<<32|uint64(uint32(count))) {
			return
		}
	}
}

// EachCounted calls fn for the backends in use at which active connections are counted.
func (m *Maps) EachCounted(fn func(id, generation uint32)) {
	for id := range min(m.active.len(), m.backend.len()) {
		if e := m.backend.at(id); e.State != 0 && m.Counts(e.Service) {
			fn(id, e.Generation)
		}
	}
}
