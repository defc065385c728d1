package web

import (
	"cmp"
	"slices"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

// newCount counts new connections.
type newCount struct{ inspect.NewConnections }

func (n *newCount) begin()                { n.Begin(time.Now()) }
func (n *newCount) hear(e *inspect.Event) { n.Note(e) }
func (n *newCount) end(why error)         { n.End(why) }

// traffic is where the connections of this node go.
type traffic struct {
	Active places `json:"active"`
	New    places `json:"new"`
	// NewConnections says what New counts.
	NewConnections *inspect.TopNew `json:"newConnections"`
	// Backends counts all, Busy are those with most new connections, and with most active ones.
	Backends int           `json:"backends"`
	Busy     []busyBackend `json:"busy"`
}

// places are how many connections go to backends on this node, and on others.
type places struct {
	OnNode    int `json:"onNode"`
	Elsewhere int `json:"elsewhere"`
}

func (p *places) add(n int, onNode bool) {
	if onNode {
		p.OnNode += n
	} else {
		p.Elsewhere += n
	}
}

// busyBackend is a backend with connections, and the Service port that it has them of.
type busyBackend struct {
	inspect.TopBackend
	Service inspect.PortName `json:"service"`
}

func trafficOf(top *inspect.Top) traffic {
	t := traffic{Busy: []busyBackend{}, NewConnections: top.New}
	for i := range top.Services {
		for j := range top.Services[i].Ports {
			p := &top.Services[i].Ports[j]
			t.Backends += len(p.Backends)
			for _, b := range p.Backends {
				t.count(b, p.PortName)
			}
		}
	}
	slices.SortStableFunc(t.Busy, func(a, b busyBackend) int {
		return cmp.Or(cmp.Compare(b.NewCount(), a.NewCount()), cmp.Compare(b.Connections, a.Connections))
	})
	t.Busy, _ = first(t.Busy, mostBusy)
	return t
}

func (t *traffic) count(b inspect.TopBackend, port inspect.PortName) {
	if b.Connections == 0 && b.NewCount() == 0 {
		return
	}
	t.Active.add(b.Connections, b.OnNode)
	t.New.add(b.NewCount(), b.OnNode)
	t.Busy = append(t.Busy, busyBackend{b, port})
}
