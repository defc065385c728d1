package bpfmap

import (
	"fmt"
	"time"
)

// The entries of bl_told. Each has a writer of its own.
const (
	toldEvicted uint32 = iota
	toldShort
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
	return Put(m.Told, entry, value)
}

// RecentlyEvicted returns what the agent has set last; zero when it has not since its start.
func (m *Maps) RecentlyEvicted() (v RecentlyEvicted, err error) {
	var e evictedEntry
	if err := m.Told.Lookup(toldEvicted, &e); err != nil {
		return v, fmt.Errorf("%s: %w", m.Told, err)
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
		return 0, fmt.Errorf("%s: %w", m.Told, err)
	}
	return int(e.Services), nil
}
