package flow

import (
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/model"
)

// Departed finds endpoints that have left their Service with open flows.
type Departed struct {
	// Tell is called with a flow of the endpoint and their number, once for each endpoint.
	Tell func(f *flowmap.Flow, flows int)

	counting, known map[destination]*departure // by the walk that is under way, by the last one
}

// destination is an endpoint as flows have it.
type destination struct {
	backend  netip.AddrPort
	protocol model.Protocol
}

// departure is an endpoint that has left.
type departure struct {
	one   flowmap.Flow
	flows int
}

// Count counts a flow that a walk has left.
func (d *Departed) Count(f *flowmap.Flow) {
	if !f.Departed() {
		return
	}
	at := destination{f.Backend, f.Protocol}
	if d.counting == nil {
		d.counting = make(map[destination]*departure)
	}
	if d.counting[at] == nil {
		d.counting[at] = &departure{one: *f}
	}
	d.counting[at].flows++
}

// Walked ends a walk. One that was cut short has not seen all flows, and tells nothing.
func (d *Departed) Walked(w Walk) {
	counted := d.counting
	d.counting = nil
	if !w.Whole {
		return
	}
	for at, left := range counted {
		if d.known[at] == nil {
			d.Tell(&left.one, left.flows)
		}
	}
	d.known = counted
}
