package policy

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/beeline-lb/beeline/pkg/model"
)

// HealthCheck is the answer of one family of a Service to load balancers that ask whether this
// node has endpoints.
type HealthCheck struct {
	Service model.Name
	Family  model.Family
	Port    uint16 // 0: it is not to be asked
	Local   int    // Ready endpoints on this node with a weight, see [LocalReady]
}

// LocalReady returns how many endpoints of one family of a Service are Ready, on
// the node and have a weight: others get no connections, however many load balancers
// send. An endpoint with several ports counts once. Of an address in several slices
// with the same ports one counts, as in a set; with other ports it is another endpoint.
// list and node are as for [Select].
//
// Terminating endpoints do not count, although they are used when there is no other:
// a load balancer that sees none sends elsewhere while they still answer
// (KEP-1669).
func LocalReady(svc *model.Service, family model.Family, list []*model.Slice, node *model.LocalNode) int {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	ready := make(map[netip.Addr]struct{})
	for _, same := range samePorts(family, list) {
		s.join(same, node, math.MaxInt)
		weigh(s.listed, svc.ZoneWeights)
		for _, e := range s.unique() {
			if e.onNode && e.ready && e.weight > 0 {
				ready[e.from.Addr] = struct{}{}
			}
		}
	}
	return len(ready)
}

// samePorts returns the slices of a family that have ports, those together that have the same ones.
func samePorts(family model.Family, list []*model.Slice) map[string][]target {
	groups := make(map[string][]target)
	for i, slice := range list {
		if slice.Family == family && len(slice.Ports) > 0 {
			key := portsKey(slice.Ports)
			groups[key] = append(groups[key], target{slice: slice, place: int32(i)})
		}
	}
	return groups
}

// portsKey returns the same for the same ports in any order.
func portsKey(ports []model.SlicePort) string {
	ports = slices.Clone(ports)
	slices.SortFunc(ports, func(a, b model.SlicePort) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	var key []byte
	for _, p := range slices.Compact(ports) {
		key = append(key, byte(p.Protocol), byte(p.Port), byte(p.Port>>8))
		key = append(append(key, p.Name...), 0)
	}
	return string(key)
}
