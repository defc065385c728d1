package inspect

import (
	"cmp"
	"net/netip"
	"sync"
	"time"
)

// NewConnections counts by backend the new connections that the programs tell of while somebody looks: of sockets,
// too, which no program counts by backend. Its methods may run at the same time.
type NewConnections struct {
	mu    sync.Mutex
	seen  TopNew
	ports map[PortName]map[netip.AddrPort]int // without ids
}

// NewConnectionEvents are what is listened to for [NewConnections]. Of more than the rate, a sample is told, which
// has the same shares.
var NewConnectionEvents = EventOptions{Kinds: []string{EventConnection}, Rate: 1000}

// TopNew says what the counts of new connections are of (TopBackend.New).
type TopNew struct {
	// Since is when listening began; absent when it could not.
	Since time.Time `json:"since,omitzero"`
	// LeftOut are the new connections since then that are not counted, of the Services that are listened to.
	LeftOut uint64 `json:"leftOut,omitempty"`
	// NotHeard says why new connections are not counted now.
	NotHeard string `json:"notHeard,omitempty"`
}

// Begin forgets what was counted, for listening begins.
func (n *NewConnections) Begin(at time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen, n.ports = TopNew{Since: at}, make(map[PortName]map[netip.AddrPort]int)
}

// Note counts an event after [NewConnections.Begin].
func (n *NewConnections) Note(e *Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch e.Kind {
	case EventConnection:
		port := e.Service.key()
		if n.ports[port] == nil {
			n.ports[port] = make(map[netip.AddrPort]int)
		}
		n.ports[port][e.Backend]++
	case EventLeftOut:
		n.seen.LeftOut += e.LeftOut
	}
}

// End says why nobody listens. What was counted is kept.
func (n *NewConnections) End(why error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen.NotHeard = why.Error()
}

// AddNew fills in the new connections of backends. Those of Services and backends that t does not have are forgotten.
func (t *Top) AddNew(n *NewConnections) {
	n.mu.Lock()
	defer n.mu.Unlock()
	seen, kept := n.seen, make(map[PortName]map[netip.AddrPort]int)
	t.New = &seen
	for i := range t.Services {
		for j := range t.Services[i].Ports {
			p := &t.Services[i].Ports[j]
			counts := n.ports[p.key()]
			if counts == nil {
				continue
			}
			kept[p.key()] = p.addNew(counts)
		}
	}
	n.ports = kept
}

// addNew fills in the new connections of the port's backends, and returns them.
func (p *TopPort) addNew(counts map[netip.AddrPort]int) map[netip.AddrPort]int {
	kept := make(map[netip.AddrPort]int)
	for i := range p.Backends {
		b := &p.Backends[i]
		count := counts[b.Address]
		b.New = &count
		if count > 0 {
			kept[b.Address] = count
		}
	}
	p.share()
	return kept
}

// plus returns what the counts of two nodes are of, of which one may not have listened.
func (n *TopNew) plus(o *TopNew) *TopNew {
	if n == nil || o == nil {
		return cmp.Or(n, o)
	}
	since := n.Since
	if since.IsZero() || !o.Since.IsZero() && o.Since.Before(since) {
		since = o.Since
	}
	return &TopNew{since, n.LeftOut + o.LeftOut, cmp.Or(n.NotHeard, o.NotHeard)}
}
