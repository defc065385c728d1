package inspect

import (
	"cmp"
	"fmt"
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
	AffinityVoid    = "void"    // the backend is not in the Service's sets any more
)

// Affinity is a client that goes on to a backend of a Service port.
type Affinity struct {
	// Client is "netns:" and the low half of its network namespace's cookie.
	Client  string   `json:"client"`
	Service PortName `json:"service"`
	// Backend is absent when its id is not in use any more.
	Backend *Backend `json:"backend,omitempty"`
	State   string   `json:"state"` // valid, expired, void
	// IdleSeconds have passed since the last new connection.
	IdleSeconds int64 `json:"idleSeconds"`
	// RemainingSeconds until the entry expires, 0 when it is not valid.
	RemainingSeconds int64 `json:"remainingSeconds"`
}

// Affinities returns the entries of session affinity, by Service port and client.
// Without all, only the valid ones.
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
	list := make([]Affinity, 0, len(entries))
	for _, e := range entries {
		if a := r.affinity(e); all || a.State == AffinityValid {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, func(a, b Affinity) int {
		return cmp.Or(a.Service.compare(b.Service), strings.Compare(a.Client, b.Client))
	})
	return list, nil
}

func (r *reading) affinity(e statusmap.Affinity) Affinity {
	a := Affinity{
		Client:      fmt.Sprintf("netns:%d", e.Netns),
		Service:     r.portName(e.Service),
		State:       AffinityValid,
		IdleSeconds: int64(e.Idle / time.Second),
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
