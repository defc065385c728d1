package bpfmap

import (
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// toldMap is written by the agent and read by people; the programs do not know it.
const toldMap = "bl_told"

// The entries of the map. Each has a writer of its own.
const (
	toldEvicted uint32 = iota
	toldShort
	toldEntries // how many there are
)

// evictedEntry is the value of toldEvicted.
type evictedEntry struct {
	From, To              int64 // ns since the epoch
	Established, HalfOpen uint64
}

// shortEntry is the value of toldShort.
type shortEntry struct {
	Services uint64
	Pad      [3]uint64
}

func toldSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: toldMap, Type: ebpf.Array, MaxEntries: toldEntries, KeySize: 4, ValueSize: 32}
}

// RecentlyEvicted are flows of which it was noticed in a time that the kernel has taken them
// out of a full table.
type RecentlyEvicted struct {
	From, To              time.Time
	Established, HalfOpen uint64
}

// SetRecentlyEvicted replaces what was evicted lately.
func (m *Maps) SetRecentlyEvicted(v RecentlyEvicted) error {
	e := evictedEntry{From: v.From.UnixNano(), To: v.To.UnixNano(), Established: v.Established, HalfOpen: v.HalfOpen}
	return m.tell(toldEvicted, &e)
}

func (m *Maps) tell(entry uint32, value any) error {
	if err := m.Told.Put(entry, value); err != nil {
		return fmt.Errorf("map %s: %w", toldMap, err)
	}
	return nil
}

// RecentlyEvicted returns what the agent has set last; zero when it has not since its start.
func (m *Maps) RecentlyEvicted() (v RecentlyEvicted, err error) {
	var e evictedEntry
	if err := m.Told.Lookup(toldEvicted, &e); err != nil {
		return v, fmt.Errorf("map %s: %w", toldMap, err)
	}
	if from := time.Unix(0, e.From); !from.Before(m.Agent().Started) {
		v = RecentlyEvicted{from, time.Unix(0, e.To), e.Established, e.HalfOpen}
	}
	return v, nil
}

// SetShort notes how many Services get less than they ask for.
func (m *Maps) SetShort(services int) error {
	return m.tell(toldShort, &shortEntry{Services: uint64(services)})
}

// Short returns what SetShort has noted last.
func (m *Maps) Short() (services int, err error) {
	var e shortEntry
	if err := m.Told.Lookup(toldShort, &e); err != nil {
		return 0, fmt.Errorf("map %s: %w", toldMap, err)
	}
	return int(e.Services), nil
}
