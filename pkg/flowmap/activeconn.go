package flowmap

import (
	"sync/atomic"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/servicemap"
)

// The words of an entry of bl_active.
const (
	wordSockets = bpf.SockBlActiveKindBL_ACTIVE_SOCKETS
	wordFlows   = bpf.SockBlActiveKindBL_ACTIVE_FLOWS
)

// sameUser is bl_same_user of the programs.
func sameUser(generation, other uint32) bool {
	return (generation^other)&uint32(bpf.SockBlGenerationBitsBL_GENERATION_USER) == 0
}

// Active returns the active connections of a backend, of sockets and of packets, as far as they
// were counted for this user of its id.
func (t Table) Active(id, generation uint32) (sockets, flows uint32) {
	e := t.maps.Active.At(id)
	if e == nil {
		return 0, 0
	}
	return activeCount(atomic.LoadUint64(&e.Word[wordSockets]), generation),
		activeCount(atomic.LoadUint64(&e.Word[wordFlows]), generation)
}

// RTT returns the round-trip time to a backend as ewma goes by, 0 when that is not known: of TCP
// connections of this node's sockets. now is that of CLOCK_MONOTONIC.
func (t Table) RTT(id, generation uint32, now time.Duration) time.Duration {
	e := t.maps.Active.At(id)
	if e == nil {
		return 0
	}
	noted := atomic.LoadUint64(&e.Noted)
	if atomic.LoadUint32(&e.NotedOf) != ^generation {
		return 0
	}
	halvings := (uint32(now>>bpf.SockBlEwmaLimitsBL_EWMA_UNIT) - uint32(noted>>32)) >> bpf.SockBlEwmaLimitsBL_EWMA_HALVING
	return time.Duration(uint32(noted)>>min(halvings, 31)) * time.Microsecond / 8
}

// activeCount is bl_active_count of the programs.
func activeCount(word uint64, generation uint32) uint32 {
	if !sameUser(uint32(word>>32), generation) {
		return 0
	}
	return uint32(word)
}

// ActiveOf returns how many active connections are counted at the backends of each of some Services.
func (t Table) ActiveOf(names []model.Name) map[model.Name]int {
	wanted := make(map[model.Name]bool, len(names))
	for _, name := range names {
		wanted[name] = true
	}
	of := make(map[uint32]model.Name) // of the wanted ones by id
	services := servicemap.New(t.maps)
	for id := range t.maps.Service.Len() {
		if !services.Counts(id) {
			continue
		}
		if name, ok := services.ServiceName(id); ok && wanted[name.Port.Service] {
			of[id] = name.Port.Service
		}
	}
	counts := make(map[model.Name]int, len(names))
	if len(of) == 0 {
		return counts
	}
	for id := range min(t.maps.Active.Len(), t.maps.Backend.Len()) {
		e := t.maps.Backend.At(id)
		if e.State == 0 {
			continue
		}
		name, wanted := of[e.Service]
		if !wanted {
			continue
		}
		sockets, flows := t.Active(id, e.Generation)
		counts[name] += int(sockets) + int(flows)
	}
	return counts
}

// activeBegun returns how many flows the programs have begun to count at a backend, ever: it
// wraps, and is never less than what is in the count.
func (t Table) activeBegun(id uint32) uint32 {
	e := t.maps.Active.At(id)
	if e == nil {
		return 0
	}
	return atomic.LoadUint32(&e.Begun)
}

// addActive changes the number of flows that are counted at a backend, not below zero. It
// has no effect when another user of the id is counted, unless the change is an increase.
func (t Table) addActive(id, generation uint32, by int64) {
	e := t.maps.Active.At(id)
	if e == nil || by == 0 {
		return
	}
	for {
		seen := atomic.LoadUint64(&e.Word[wordFlows])
		if by < 0 && !sameUser(uint32(seen>>32), generation) {
			return
		}
		count := max(0, int64(activeCount(seen, generation))+by)
		if atomic.CompareAndSwapUint64(&e.Word[wordFlows], seen, uint64(generation)<<32|uint64(uint32(count))) {
			return
		}
	}
}

// eachCounted calls fn for the backends in use at which active connections are counted.
func (t Table) eachCounted(fn func(id, generation uint32)) {
	services := servicemap.New(t.maps)
	for id := range min(t.maps.Active.Len(), t.maps.Backend.Len()) {
		if e := t.maps.Backend.At(id); e.State != 0 && services.Counts(e.Service) {
			fn(id, e.Generation)
		}
	}
}
