package policy

import (
	"fmt"
	"math"
	"strings"

	"github.com/beeline-lb/beeline/pkg/model"
)

// Candidate is an endpoint that slices list for a Service port.
type Candidate struct {
	Backend
	// NotInCluster and NotInLocal say why it gets no new connections from the set; "" where it does.
	NotInCluster, NotInLocal string
}

// Candidates returns the endpoints from which [Select] makes the sets, in the order of their
// AddrPort, with why each is left out.
func Candidates(svc *model.Service, port model.ServicePort, family model.Family, list []*model.Slice, node *model.LocalNode) []Candidate {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	return s.candidates(svc, s.targetsOf(port, family, list), node)
}

// Candidates returns those of port number i of the Service, as [Candidates].
func (j *Joined) Candidates(i int, node *model.LocalNode) []Candidate {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	return s.candidates(j.svc, j.targets(s, i), node)
}

func (s *scratch) candidates(svc *model.Service, targets []target, node *model.LocalNode) []Candidate {
	eps := s.sets(svc, targets, node, math.MaxInt)
	eject(eps, svc)
	candidates := make([]Candidate, 0, len(eps))
	for i := range eps {
		e := &eps[i]
		c := Candidate{Backend: e.backend()}
		c.NotInCluster = e.whyNot(c.InCluster, "others are ready")
		c.NotInLocal = fmt.Sprintf("on another node, %s", e.from.NodeName)
		if e.onNode {
			c.NotInLocal = e.whyNot(c.InLocal, "others on this node are ready")
		}
		candidates = append(candidates, c)
	}
	return candidates
}

// whyNot says why an endpoint gets no new connections from a set that it is in or not; "" when it
// does.
func (e *endpoint) whyNot(in bool, others string) string {
	switch {
	case in && e.spare:
		return fmt.Sprintf("topology hints give it to zones %q, and nothing spills over to them", strings.Join(e.from.ZoneHints, ","))
	case in && e.weight == 0:
		return "its weight is 0"
	case in:
		return ""
	case e.draining():
		return "terminating, and " + others
	case e.terminating:
		return "terminating, and it does not serve any more"
	case !e.ready:
		return "not ready"
	}
	return fmt.Sprintf("topology hints give it to zones %q and nodes %q", strings.Join(e.from.ZoneHints, ","), strings.Join(e.from.NodeHints, ","))
}
