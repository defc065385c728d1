package statusmap

import (
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Affinity is a client that goes on to a backend.
type Affinity struct {
	Netns   uint32 // the low half of the cookie of the client's network namespace
	Service uint32
	Backend uint32
	// Valid is false when the backend has left its sets since.
	Valid bool
	Idle  time.Duration // since the last new connection
}

// Affinities returns the entries of session affinity, those that have expired
// among them.
func (t Table) Affinities() ([]Affinity, error) {
	now, err := bpf.Clock()
	if err != nil {
		return nil, err
	}
	var list []Affinity
	err = bpfmap.Each(t.maps.BlAffinity, func(key *bpf.SockBlAffinityKey, value *bpf.SockBlAffinityEntry) {
		a := Affinity{
			Netns:   key.Netns,
			Service: key.Service,
			Backend: value.Backend.Id,
			Idle:    max(0, now-time.Duration(value.LastUsed)),
		}
		b := t.maps.Backend.At(a.Backend)
		a.Valid = b != nil && tables.BackendState(b.State).InSet() && b.Generation == value.Backend.Generation
		list = append(list, a)
	})
	return list, err
}
