package statusmap

import (
	"fmt"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
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

// SetRecentlyEvicted replaces the number of flows evicted lately.
func (t Table) SetRecentlyEvicted(v RecentlyEvicted) error {
	e := evictedEntry{From: v.From.UnixNano(), To: v.To.UnixNano(), Established: v.Established, HalfOpen: v.HalfOpen}
	return t.tell(toldEvicted, &e)
}

func (t Table) tell(entry uint32, value any) error {
	return bpfmap.Put(t.maps.Told, entry, value)
}

// RecentlyEvicted returns what the agent has set last; zero when it has not since its start.
func (t Table) RecentlyEvicted() (v RecentlyEvicted, err error) {
	var e evictedEntry
	if err := t.maps.Told.Lookup(toldEvicted, &e); err != nil {
		return v, fmt.Errorf("%s: %w", t.maps.Told, err)
	}
	if from := time.Unix(0, e.From); !from.Before(t.Agent().Started) {
		v = RecentlyEvicted{from, time.Unix(0, e.To), e.Established, e.HalfOpen}
	}
	return v, nil
}

// SetShort notes how many Services get less than they ask for.
func (t Table) SetShort(services int) error {
	return t.tell(toldShort, &shortEntry{Services: uint64(services)})
}

// Short returns what SetShort has noted last.
func (t Table) Short() (services int, err error) {
	var e shortEntry
	if err := t.maps.Told.Lookup(toldShort, &e); err != nil {
		return 0, fmt.Errorf("%s: %w", t.maps.Told, err)
	}
	return int(e.Services), nil
}
