package web

import (
	"cmp"
	"slices"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

// traffic is where the active connections of this node go.
type traffic struct {
	OnNode    int `json:"onNode"`
	Elsewhere int `json:"elsewhere"`
	// Backends counts all, Busy are those with most connections.
	Backends int           `json:"backends"`
	Busy     []busyBackend `json:"busy"`
}

// busyBackend is a backend with connections, and the Service port that it has them of.
type busyBackend struct {
	inspect.TopBackend
	Service inspect.PortName `json:"service"`
}

func trafficOf(top *inspect.Top) traffic {
	t := traffic{Busy: []busyBackend{}}
	for i := range top.Services {
		for j := range top.Services[i].Ports {
			p := &top.Services[i].Ports[j]
			t.Backends += len(p.Backends)
			for _, b := range p.Backends {
				t.count(b, p.PortName)
			}
		}
	}
	slices.SortStableFunc(t.Busy, func(a, b busyBackend) int { return cmp.Compare(b.Connections, a.Connections) })
	t.Busy, _ = first(t.Busy, mostBusy)
	return t
}

func (t *traffic) count(b inspect.TopBackend, port inspect.PortName) {
	if b.Connections == 0 {
		return
	}
	if b.OnNode {
		t.OnNode += b.Connections
	} else {
		t.Elsewhere += b.Connections
	}
	t.Busy = append(t.Busy, busyBackend{b, port})
}
