package inspect

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/flowmap"
)

// FlowSummary counts flows, and has some of them.
type FlowSummary struct {
	Total  int         `json:"total"`
	Counts []FlowCount `json:"counts"`
	Sample []Flow      `json:"sample"`
}

// FlowCount counts the flows of a Service port that are in one state.
type FlowCount struct {
	Service PortName `json:"service,omitzero"`
	State   string   `json:"state"`
	Count   int      `json:"count"`
}

// FlowSummary counts all flows and returns up to sample of them, as they come from the table. It
// takes no more memory for a large table. Unless clients is set, the addresses of clients are
// 0.0.0.0 or ::, and their ports are left.
func (d *Datapath) FlowSummary(sample int, clients bool) (*FlowSummary, error) {
	if err := d.need(flowTables...); err != nil {
		return nil, err
	}
	s := &FlowSummary{Counts: []FlowCount{}, Sample: []Flow{}}
	counts := make(map[FlowCount]int)
	err := d.eachFlow(FlowFilter{}, func(_ *flowmap.Flow, flow *Flow) error {
		s.Total++
		counts[FlowCount{Service: flow.Service, State: flow.State}]++
		if len(s.Sample) < sample {
			f := *flow
			if !clients {
				f.hideClient()
			}
			s.Sample = append(s.Sample, f)
		}
		return nil
	})
	for c, n := range counts {
		c.Count = n
		s.Counts = append(s.Counts, c)
	}
	slices.SortFunc(s.Counts, func(a, b FlowCount) int {
		return cmp.Or(a.Service.compare(b.Service), cmp.Compare(a.State, b.State))
	})
	return s, err
}

// hideClient takes the client's address out of what is shown.
func (f *Flow) hideClient() {
	hidden := netip.IPv6Unspecified()
	if f.Client.Addr().Is4() {
		hidden = netip.IPv4Unspecified()
	}
	if f.Source.Addr() == f.Client.Addr() {
		f.Source = netip.AddrPortFrom(hidden, f.Source.Port())
	}
	f.Client = netip.AddrPortFrom(hidden, f.Client.Port())
}
