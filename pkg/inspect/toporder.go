package inspect

import (
	"cmp"
	"slices"
	"strings"

	"github.com/beeline-lb/beeline/pkg/model"
)

// TopOrder is what the Services with most of come first.
type TopOrder string

// The orders.
const (
	ByConnections TopOrder = "connections"
	ByRefused     TopOrder = "refused"
	ByFlows       TopOrder = "flows"
	ByPackets     TopOrder = "packets"
	ByBytes       TopOrder = "bytes"
	ByName        TopOrder = "name"
)

// TopOrders are all orders.
var TopOrders = []TopOrder{ByConnections, ByRefused, ByFlows, ByPackets, ByBytes, ByName}

// Sort sorts Services, those with equal figures by name.
func (o TopOrder) Sort(services []TopService) {
	slices.SortFunc(services, func(a, b TopService) int {
		by := 0
		switch o {
		case ByConnections:
			by = cmp.Compare(b.ConnectionsPerSecond, a.ConnectionsPerSecond)
		case ByRefused:
			by = cmp.Compare(b.RefusedPerSecond, a.RefusedPerSecond)
		case ByFlows:
			by = cmp.Compare(b.Flows, a.Flows)
		case ByPackets:
			by = cmp.Compare(b.Traffic.Packets(), a.Traffic.Packets())
		case ByBytes:
			by = cmp.Compare(b.Traffic.Bytes(), a.Traffic.Bytes())
		}
		return cmp.Or(by, cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// Matching returns the Services whose full name contains a text, in order.
func (t *Top) Matching(text string, order TopOrder) []TopService {
	services := slices.DeleteFunc(slices.Clone(t.Services), func(s TopService) bool {
		return !strings.Contains(s.FullName().String(), text)
	})
	order.Sort(services)
	return services
}

// IndexOfService returns where the Service of a name is; -1: it is not served.
func IndexOfService(services []TopService, name model.Name) int {
	return slices.IndexFunc(services, func(s TopService) bool { return s.FullName() == name })
}

// FullName is namespace and name.
func (s *TopService) FullName() model.Name {
	return model.Name{Namespace: s.Namespace, Name: s.Name}
}

// BackendCount is how many backends there are of all ports.
func (s *TopService) BackendCount() int { return s.countBackends().Backends }

// countBackends counts the backends of all ports, unless that is done.
func (s *TopService) countBackends() (counts BackendCounts) {
	if s.BackendCounts != nil {
		return *s.BackendCounts
	}
	for i := range s.Ports {
		counts.Backends += len(s.Ports[i].Backends)
		for j := range s.Ports[i].Backends {
			if s.Ports[i].Backends[j].OnNode {
				counts.BackendsOnNode++
			}
		}
	}
	return counts
}

// Sum are the rates of all Services together.
func (t *Top) Sum() (sum Rates) {
	for i := range t.Services {
		sum.Add(t.Services[i].Rates)
	}
	return sum
}

// FullestMaps returns up to n of some maps, those with the least room first.
func FullestMaps(maps []Map, n int) []Map {
	maps = slices.Clone(maps)
	slices.SortStableFunc(maps, func(a, b Map) int { return cmp.Compare(b.Fill(), a.Fill()) })
	return maps[:min(len(maps), n)]
}
