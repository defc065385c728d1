package policy

import (
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/model"
)

// HealthCheck is the answer of one family of a Service to load balancers that ask whether this
// node has endpoints.
type HealthCheck struct {
	Service model.Name
	Family  model.Family
	Port    uint16 // 0: it is not to be asked
	Local   int    // Ready endpoints on this node, see [LocalReady]
}

// LocalReady returns how many endpoints of one family of a Service are Ready and on
// the node. An endpoint with several ports counts once. slices and node are as for
// [Select].
//
// Terminating endpoints do not count, although they are used when there is no other:
// a load balancer that sees none sends elsewhere while they still answer
// (KEP-1669).
func LocalReady(family model.Family, slices []*model.Slice, node *model.LocalNode) int {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	ports := make(map[model.ServicePort]struct{})
	for _, slice := range slices {
		for _, p := range slice.Ports {
			ports[model.ServicePort{Name: p.Name, Protocol: p.Protocol}] = struct{}{}
		}
	}
	ready := make(map[netip.Addr]struct{})
	for port := range ports {
		s.join(port, family, slices, node)
		for _, e := range s.unique() {
			if e.onNode && e.ready {
				ready[e.from.Addr] = struct{}{}
			}
		}
	}
	return len(ready)
}
