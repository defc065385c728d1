package statusmap

import (
	"fmt"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
)

// The entries of bl_status. Each has a writer of its own.
const (
	statusEvicted uint32 = iota
	statusLimited
)

// evictedEntry is the value of statusEvicted.
type evictedEntry struct {
	From, To              int64 // ns since the epoch
	Established, HalfOpen uint64
}

// limitedEntry is the value of statusLimited.
type limitedEntry struct {
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
	return t.setStatus(statusEvicted, &e)
}

func (t Table) setStatus(entry uint32, value any) error {
	return bpfmap.Put(t.maps.Status, entry, value)
}

// RecentlyEvicted returns what the agent has set last; zero when it has not since its start.
func (t Table) RecentlyEvicted() (v RecentlyEvicted, err error) {
	var e evictedEntry
	if err := t.maps.Status.Lookup(statusEvicted, &e); err != nil {
		return v, fmt.Errorf("%s: %w", t.maps.Status, err)
	}
	if from := time.Unix(0, e.From); !from.Before(t.Agent().Started) {
		v = RecentlyEvicted{from, time.Unix(0, e.To), e.Established, e.HalfOpen}
	}
	return v, nil
}

// SetLimited notes how many Services get less than they ask for.
func (t Table) SetLimited(services int) error {
	return t.setStatus(statusLimited, &limitedEntry{Services: uint64(services)})
}

// Limited returns what SetLimited has noted last.
func (t Table) Limited() (services int, err error) {
	var e limitedEntry
	if err := t.maps.Status.Lookup(statusLimited, &e); err != nil {
		return 0, fmt.Errorf("%s: %w", t.maps.Status, err)
	}
	return int(e.Services), nil
}
