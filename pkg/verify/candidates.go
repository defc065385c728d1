package verify

import (
	"fmt"
	"slices"
	"strings"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/setup"
)

// Candidates returns the endpoints that the source lists for one family of a Service port, with why
// each is left out of a set, once [Checker.AwaitSource] has not failed.
func (c *Checker) Candidates(name model.PortName, family model.Family) ([]policy.Candidate, error) {
	all := c.state.All()
	at := slices.IndexFunc(all.PutServices, func(s *model.Service) bool { return s.Name == name.Service })
	if at < 0 {
		return nil, fmt.Errorf("the source has no Service %s any more", name.Service)
	}
	svc := all.PutServices[at]
	at = slices.IndexFunc(svc.Ports, func(p model.ServicePort) bool { return p.Name == name.Port && p.Protocol == name.Protocol })
	if at < 0 {
		return nil, fmt.Errorf("the source has no port %s any more", name)
	}
	list := slices.DeleteFunc(slices.Clone(all.PutSlices), func(s *model.Slice) bool { return s.ServiceName() != name.Service })
	slices.SortFunc(list, func(a, b *model.Slice) int { return strings.Compare(a.Name.Name, b.Name.Name) })
	node := setup.Reconcile(c.settings).LocalNode
	if all.LocalNode != nil {
		node.Zone = all.LocalNode.Zone
	}
	return policy.Candidates(svc, svc.Ports[at], family, list, &node), nil
}
