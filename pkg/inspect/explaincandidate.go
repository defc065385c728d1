package inspect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

// Wants reports whether more would be known of the Service port's endpoints by what the source
// lists, and of which: those in no set are not in the tables.
func (x *Explanation) Wants() (name model.PortName, family model.Family, wants bool) {
	if x.Service == nil || x.Set == "" {
		return name, family, false
	}
	n := x.reading.Names[x.Service.ID]
	return n.Port, n.Family, true
}

// AddCandidates adds the endpoints that the source lists, or says why they are not known.
func (x *Explanation) AddCandidates(list []policy.Candidate, err error) {
	if err != nil {
		x.insert("set", "slices", fmt.Sprintf("not read, so endpoints in no set are not known: %v", err))
		return
	}
	ready := 0
	for _, c := range list {
		if c.Ready {
			ready++
		}
		x.addCandidate(c)
	}
	text := fmt.Sprintf("%s listed, %d ready", Amount(len(list), "endpoint"), ready)
	if len(list) == 0 {
		text = "no EndpointSlice lists an endpoint for this port: does the Service's selector match pods that have the port?"
	}
	x.insert("set", "slices", text)
	slices.SortFunc(x.Backends, func(a, b ExplainedBackend) int { return a.compare(b.Backend) })
}

func (x *Explanation) addCandidate(c policy.Candidate) {
	why := c.NotInCluster
	if x.Set == setLocal {
		why = c.NotInLocal
	}
	at := slices.IndexFunc(x.Backends, func(b ExplainedBackend) bool {
		return netip.AddrPortFrom(b.Address, b.TargetPort) == c.AddrPort
	})
	if at >= 0 {
		if x.Backends[at].Share == 0 && why != "" {
			x.Backends[at].Why = why
		}
		return
	}
	x.Backends = append(x.Backends, ExplainedBackend{Why: cmp.Or(why, "not in the tables yet"), Backend: Backend{
		Address: c.AddrPort.Addr(), TargetPort: c.AddrPort.Port(), Ready: c.Ready, Serving: c.Serving, Terminating: c.Terminating,
		OnNode: c.OnNode, Sets: []string{}, Weight: c.Weight,
	}})
}

// insert adds a step after another one.
func (x *Explanation) insert(after, step, result string) {
	at := slices.IndexFunc(x.Steps, func(s ExplainedStep) bool { return s.Step == after })
	x.Steps = slices.Insert(x.Steps, at+1, ExplainedStep{step, result})
}
