package differential

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// elsewhere reports whether a connection has reached another backend than the one by which its way
// was told.
func elsewhere(x *inspect.Explanation, got result) bool {
	return x.Chosen != nil && netip.AddrPortFrom(x.Chosen.Address, x.Chosen.TargetPort) != got.server
}

// unmoved says which counter of those named has not moved.
func unmoved(x *inspect.Explanation, before, after counts) string {
	for i, r := range after.reasons {
		if slices.Contains(x.Counters, r.Name) && r.Count == before.reasons[i].Count {
			return fmt.Sprintf("counter %s does not move", r.Name)
		}
	}
	return ""
}

// differs says how the end of a connection differs from what was said, if it does.
func differs(x *inspect.Explanation, got result) string {
	want := map[string]verdict{
		inspect.VerdictServed: reached, inspect.VerdictRefused: refused, inspect.VerdictDropped: dropped,
	}[x.Verdict]
	switch {
	case want == "" && got.verdict == reached: // whether the kernel refuses or drops it is not asked
		return fmt.Sprintf("it reaches %s", got.server)
	case want == "":
		return ""
	case got.verdict != want:
		return fmt.Sprintf("it is %s %s", got.verdict, got.server)
	case want != reached:
		return ""
	}
	chosen := netip.AddrPortFrom(x.Chosen.Address, x.Chosen.TargetPort)
	source := netip.AddrPortFrom(got.source, got.sourcePort)
	switch {
	case x.Certain && got.server != chosen:
		return fmt.Sprintf("it reaches %s", got.server)
	case !slices.ContainsFunc(x.Backends, func(b inspect.ExplainedBackend) bool {
		return b.Share > 0 && netip.AddrPortFrom(b.Address, b.TargetPort) == got.server
	}):
		return fmt.Sprintf("it reaches %s, which is to get nothing", got.server)
	case x.Path.Hook != "socket" && got.server == chosen && source != x.Path.Source:
		return fmt.Sprintf("%s sees %s", got.server, source)
	}
	return ""
}

// counts are the counters of the node.
type counts struct {
	reasons  []statusmap.Reason
	services []statusmap.ServiceStat
}

func (n *explainedNode) counts() (c counts, err error) {
	const ids = 64 // more than a cluster needs
	status := statusmap.New(n.agent.Maps())
	if c.reasons, err = status.Reasons(); err != nil {
		return c, err
	}
	c.services, err = status.ServiceStats(ids)
	return c, err
}

// miscounted says which counter a connection of a socket has moved or not against what was said.
func miscounted(x *inspect.Explanation, before, after counts) string {
	if what := unmoved(x, before, after); what != "" {
		return what
	}
	for i, r := range after.reasons {
		if r.Count != before.reasons[i].Count && !slices.Contains(x.Counters, r.Name) && (r.Effect == statusmap.Refused || r.Effect == statusmap.Dropped) {
			return fmt.Sprintf("counter %s moves", r.Name)
		}
	}
	for id, s := range after.services {
		want := before.services[id]
		if x.Service != nil && x.Service.ID == uint32(id) {
			switch x.Verdict {
			case inspect.VerdictServed:
				want.Connections++
			case inspect.VerdictRefused:
				want.Refused++
			case inspect.VerdictDropped:
				want.Refused, want.Dropped = want.Refused+1, want.Dropped+1
			}
		}
		if s != want {
			return fmt.Sprintf("service port %d counts %+v, to be %+v", id, s, want)
		}
	}
	return ""
}
