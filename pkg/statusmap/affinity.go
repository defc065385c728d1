package statusmap

import (
	"net/netip"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Affinity is a client that goes on to a backend.
type Affinity struct {
	// Client is the address of a client of packets, not valid for one of sockets.
	Client  netip.Addr
	Netns   uint32 // the low half of the cookie of a network namespace, whose sockets are one client
	Service uint32
	Backend uint32
	// New says that the client of packets has yet to establish a flow. Programs ask for such an entry
	// when one of the same client that is not new gives no backend.
	New bool
	// Valid is false when the backend gets no new connections any more: it has left its sets, or
	// has weight 0.
	Valid bool
	Idle  time.Duration // since the last new connection
}

// Affinities returns the entries of session affinity, those that have expired among them; those that
// are new come last.
func (t Table) Affinities() ([]Affinity, error) {
	now, err := bpf.Clock()
	if err != nil {
		return nil, err
	}
	var list []Affinity
	add := func(a Affinity, value *bpf.SockBlAffinityEntry) {
		a.Backend, a.Idle = value.Backend.Id, max(0, now-time.Duration(value.LastUsed))
		b := t.maps.Backend.At(a.Backend)
		a.Valid = b != nil && tables.BackendState(b.State).TakesNew() && b.Generation == value.Backend.Generation
		list = append(list, a)
	}
	err = bpfmap.Each(t.maps.BlAffinity, func(key *bpf.SockBlAffinityKey, value *bpf.SockBlAffinityEntry) {
		add(Affinity{Netns: key.Netns, Service: key.Service}, value)
	})
	if err != nil {
		return nil, err
	}
	for _, fresh := range []bool{false, true} {
		clients := t.maps.BlClient
		if fresh {
			clients = t.maps.BlNewClient
		}
		err = bpfmap.Each(clients, func(key *bpf.SockBlClientKey, value *bpf.SockBlAffinityEntry) {
			add(Affinity{Client: key.Client.Netip(), Service: key.Service, New: fresh}, value)
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}
