package inspect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// The states of an affinity entry.
const (
	AffinityValid   = "valid"   // the client's next connection goes to the backend
	AffinityExpired = "expired" // the time-out has passed
	AffinityVoid    = "void"    // the backend has left the Service's sets, or gets no new connections
)

// Affinity is a client that goes on to a backend of a Service port.
type Affinity struct {
	// Client is the address of a client of packets; of one of sockets of this node "netns:" and the
	// low half of its network namespace's cookie.
	Client  string   `json:"client"`
	Service PortName `json:"service"`
	// Backend is absent when its id is not in use any more.
	Backend *Backend `json:"backend,omitempty"`
	State   string   `json:"state"` // valid, expired, void
	// IdleSeconds have passed since the last new connection.
	IdleSeconds int64 `json:"idleSeconds"`
	// RemainingSeconds until the entry expires, 0 when it is not valid.
	RemainingSeconds int64 `json:"remainingSeconds"`

	addr netip.Addr // of a client of packets
}

// Affinities returns the entries of session affinity, by Service port and client.
// Without all, only the valid ones. Clients of packets are left out where their tables cannot be read.
func (d *Datapath) Affinities(all bool) ([]Affinity, error) {
	if err := d.need(bpf.SockMapBlAffinity); err != nil {
		return nil, err
	}
	r, err := d.readServices()
	if err != nil {
		return nil, err
	}
	entries, err := statusmap.New(d.maps).Affinities()
	if err != nil {
		return nil, err
	}
	if d.need(bpf.SockMapBlClient) != nil { // nor is it known then which of the new ones decide
		entries = slices.DeleteFunc(entries, func(e statusmap.Affinity) bool { return e.New })
	}
	list := slices.DeleteFunc(r.affinities(entries), func(a Affinity) bool { return !all && a.State != AffinityValid })
	slices.SortFunc(list, func(a, b Affinity) int {
		return cmp.Or(a.Service.compare(b.Service), a.addr.Compare(b.addr), strings.Compare(a.Client, b.Client))
	})
	return list, nil
}

// affinities returns one entry for each client. A client of packets that has established a flow may
// have a new one as well, by which its next connection goes only when the other one is not valid; all
// new ones that decide nothing are left out.
func (r *reading) affinities(entries []statusmap.Affinity) []Affinity {
	type client struct {
		addr    netip.Addr
		service uint32
	}
	list := make([]Affinity, 0, len(entries))
	known := make(map[client]int) // by index in list
	for _, e := range entries {
		a, c := r.affinity(e), client{e.Client, e.Service}
		at, twice := known[c]
		switch {
		case !e.New:
			known[c] = len(list)
			list = append(list, a)
		case a.State != AffinityValid, twice && list[at].State == AffinityValid:
		case twice:
			list[at] = a
		default:
			list = append(list, a)
		}
	}
	return list
}

func (r *reading) affinity(e statusmap.Affinity) Affinity {
	a := Affinity{
		Client:      e.Client.String(),
		addr:        e.Client,
		Service:     r.portName(e.Service),
		State:       AffinityValid,
		IdleSeconds: int64(e.Idle / time.Second),
	}
	if !e.Client.IsValid() {
		a.Client = fmt.Sprintf("netns:%d", e.Netns)
	}
	b, known := r.Backends[e.Backend]
	known = known && e.Valid && b.Service == e.Service
	if known {
		found := r.backend(e.Backend, b)
		a.Backend = &found
	}
	remaining := time.Duration(r.Services[e.Service].AffinitySeconds)*time.Second - e.Idle
	switch {
	case !known:
		a.State = AffinityVoid
	case remaining <= 0:
		a.State = AffinityExpired
	default:
		a.RemainingSeconds = int64((remaining + time.Second - 1) / time.Second)
	}
	return a
}
