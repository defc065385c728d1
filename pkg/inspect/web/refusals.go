package web

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

// refusals are what counters say of connections that were refused or dropped since the first
// reading. A counter tells neither the client nor the time, only between which readings it grew.
type refusals struct {
	since   time.Time
	reasons map[string]*reasonRefused
	ports   map[inspect.PortName]*portRefused // those that are still served
}

// reasonRefused is a reason for which something was refused or dropped.
type reasonRefused struct {
	inspect.TopReason
	refused
}

// portRefused is a Service port that had connections refused or dropped.
type portRefused struct {
	inspect.PortName
	// NoBackends says why sets of it had no backends then, where some had none.
	NoBackends []string `json:"noBackends,omitempty"`
	refused
}

// refused is how often, and the reading that saw it last.
type refused struct {
	Count float64   `json:"count"`
	Last  time.Time `json:"last"`
}

func (r *refused) add(top *inspect.Top, perSecond float64) {
	r.Count += math.Round(perSecond * top.Seconds)
	r.Last = top.Time
}

// add adds a reading.
func (r *refusals) add(top *inspect.Top) {
	if r.since.IsZero() {
		r.since, r.reasons, r.ports = top.Time, make(map[string]*reasonRefused), make(map[inspect.PortName]*portRefused)
	}
	for _, reason := range top.Reasons {
		if old := r.reasons[reason.Reason]; old != nil {
			old.PerSecond = reason.PerSecond
		}
		if reason.PerSecond > 0 {
			entry(r.reasons, reason.Reason, reasonRefused{TopReason: reason}).add(top, reason.PerSecond)
		}
	}
	served := make(map[inspect.PortName]bool)
	for i := range top.Services {
		for j := range top.Services[i].Ports {
			p := &top.Services[i].Ports[j]
			served[p.PortName] = true
			if p.RefusedPerSecond > 0 {
				e := entry(r.ports, p.PortName, portRefused{PortName: p.PortName})
				e.NoBackends = p.NoBackends
				e.add(top, p.RefusedPerSecond)
			}
		}
	}
	maps.DeleteFunc(r.ports, func(name inspect.PortName, _ *portRefused) bool { return !served[name] })
}

// entry returns the entry of a key, which is new the first time.
func entry[K comparable, V any](m map[K]*V, key K, first V) *V {
	if m[key] == nil {
		m[key] = &first
	}
	return m[key]
}

// later puts the latest first, then the most.
func (r *refused) later(o *refused) int {
	return cmp.Or(o.Last.Compare(r.Last), cmp.Compare(o.Count, r.Count))
}

// refusedView is how the page shows refusals, the latest first.
type refusedView struct {
	// Events are single ones, told while the page was open.
	Events []inspect.Event `json:"events"`
	// NotHeard says why there are no new ones.
	NotHeard string `json:"notHeard,omitempty"`

	Since   time.Time       `json:"since"`
	Reasons []reasonRefused `json:"reasons"`
	Ports   []portRefused   `json:"ports"`
	// MorePorts counts those that are left out.
	MorePorts int `json:"morePorts"`
}

func (r *refusals) view() refusedView {
	v := refusedView{Since: r.since, Reasons: []reasonRefused{}, Ports: []portRefused{}}
	for _, reason := range r.reasons {
		v.Reasons = append(v.Reasons, *reason)
	}
	slices.SortFunc(v.Reasons, func(a, b reasonRefused) int {
		return cmp.Or(a.later(&b.refused), cmp.Compare(a.Reason, b.Reason))
	})
	for _, port := range r.ports {
		v.Ports = append(v.Ports, *port)
	}
	slices.SortFunc(v.Ports, func(a, b portRefused) int {
		return cmp.Or(a.later(&b.refused), cmp.Compare(a.String(), b.String()), cmp.Compare(a.ID, b.ID))
	})
	v.Ports, v.MorePorts = first(v.Ports, mostRefused)
	return v
}
