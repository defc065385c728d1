package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

// TestWeights gives one Ready endpoint a slice, in the zones named.
func TestWeights(t *testing.T) {
	n := func(w uint8) *uint8 { return &w }
	type slice struct {
		weight *uint8
		zone   string
		node   string
	}
	for _, c := range []struct {
		name           string
		zones          map[string]uint8
		slices         []slice
		cluster, local string // kind and weights
	}{
		{"none", nil, []slice{{nil, "a", "here"}, {nil, "b", "there"}}, "backends [1 1]", "backends [1]"},
		{"of slices", nil, []slice{{n(3), "a", "here"}, {nil, "b", "there"}}, "backends [3 1]", "backends [3]"},
		{"of zones", map[string]uint8{"a": 3, "b": 2}, []slice{{nil, "a", "here"}, {nil, "b", "there"}, {nil, "c", "there"}, {nil, "", "there"}},
			"backends [3 2 1 1]", "backends [3]"},
		{"of both", map[string]uint8{"a": 255}, []slice{{n(255), "a", "here"}, {n(4), "b", "there"}}, "backends [65025 4]", "backends [65025]"},
		{"some get none", nil, []slice{{n(0), "a", "here"}, {nil, "b", "there"}}, "backends [0 1]", "drop [0]"},
		{"a zone gets none", map[string]uint8{"b": 0}, []slice{{n(5), "a", "here"}, {n(5), "b", "there"}}, "backends [5 0]", "backends [5]"},
		{"nobody gets any", nil, []slice{{n(0), "a", "here"}, {n(0), "b", "there"}}, "reject [0 0]", "reject [0]"},
		{"nobody elsewhere", nil, []slice{{n(1), "a", "here"}, {n(0), "b", "there"}}, "backends [1 0]", "backends [1]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, family := range model.Families {
				var list []*model.Slice
				for i, s := range c.slices {
					p := ready(i + 1).on(s.node)
					p.Zone = s.zone
					list = append(list, httpSlice(family, p))
					list[i].Weight = s.weight
				}
				sets := Select(&model.Service{ZoneWeights: c.zones}, httpPort, family, list, here)
				if got := weights(sets.cluster()); got != c.cluster {
					t.Errorf("%s cluster set: %s, want %s", family, got, c.cluster)
				}
				if got := weights(sets.local()); got != c.local {
					t.Errorf("%s local set: %s, want %s", family, got, c.local)
				}
			}
		})
	}
}

func weights(s set) string {
	var list []uint16
	for b := range slices.Values(s.Backends) {
		list = append(list, b.Weight)
	}
	return fmt.Sprint(s.Kind, " ", list)
}

// TestDrainedHints: where all endpoints that hints leave to a node are drained, those of others are used.
func TestDrainedHints(t *testing.T) {
	none := uint8(0)
	drained := func(s *model.Slice) *model.Slice {
		s.Weight = &none
		return s
	}
	zone := func(name string, p pod) pod {
		p.Zone = name
		return p.forZones(name)
	}
	for _, c := range []struct {
		name    string
		svc     model.Service
		slices  func(model.Family) []*model.Slice
		cluster string
	}{
		{"zone, by its weight", model.Service{ZoneWeights: map[string]uint8{"zone-a": 0}}, func(f model.Family) []*model.Slice {
			return []*model.Slice{httpSlice(f, zone("zone-a", ready(1)), zone("zone-b", ready(2)))}
		}, "backends [0 1]"},
		{"zone, one of its slices", model.Service{}, func(f model.Family) []*model.Slice {
			return []*model.Slice{drained(httpSlice(f, zone("zone-a", ready(1)))), httpSlice(f, zone("zone-a", ready(2)), zone("zone-b", ready(3)))}
		}, "backends [0 1 0]"},
		{"node: zone", model.Service{}, func(f model.Family) []*model.Slice {
			return []*model.Slice{
				drained(httpSlice(f, zone("zone-a", ready(1)).forNodes("here"))),
				httpSlice(f, zone("zone-a", ready(2)).forNodes("there"), zone("zone-b", ready(3)).forNodes("there")),
			}
		}, "backends [0 1 0]"},
		{"zone that others get spilled over to", model.Service{ZoneWeights: map[string]uint8{"zone-a": 0}, SpillOver: model.SpillOver{Used: true}}, func(f model.Family) []*model.Slice {
			return []*model.Slice{httpSlice(f, zone("zone-a", ready(1)), zone("zone-b", ready(2)))}
		}, "backends [0 1]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, family := range model.Families {
				sets := Select(&c.svc, httpPort, family, c.slices(family), here)
				var got []uint16
				for _, b := range sets.Backends {
					if !b.InCluster {
						b.Weight = 0
					}
					got = append(got, b.Weight)
				}
				if text := fmt.Sprint(sets.Cluster, " ", got); text != c.cluster {
					t.Errorf("%s: %s, want %s", family, text, c.cluster)
				}
			}
		})
	}
}

// TestEjected: an ejected endpoint gets no new connections, unless a set that the Service uses has no
// other.
func TestEjected(t *testing.T) {
	for _, c := range []struct {
		name           string
		svc            model.Service
		nodes          []string
		ejected        []int
		cluster, local string
	}{
		{"one", model.Service{}, []string{"here", "there", "there"}, []int{1}, "backends [1 0 1]", "backends [1]"},
		{"the only one here", model.Service{}, []string{"here", "there", "there"}, []int{0}, "backends [0 1 1]", "drop [0]"},
		{"the only one here, of Local", model.Service{ExternalLocal: true}, []string{"here", "there", "there"}, []int{0, 1}, "backends [1 0 1]", "backends [1]"},
		{"one here of two, of Local", model.Service{InternalLocal: true}, []string{"here", "here", "there"}, []int{0}, "backends [0 1 1]", "backends [0 1]"},
		{"all", model.Service{}, []string{"here", "there"}, []int{0, 1}, "backends [1 1]", "backends [1]"},
		{"all but one without a weight", model.Service{ZoneWeights: map[string]uint8{"none": 0}}, []string{"there", "none"}, []int{0}, "backends [1 0]", "drop []"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, family := range model.Families {
				var list []*model.Slice
				c.svc.Ejected = make(map[netip.AddrPort]bool)
				for i, node := range c.nodes {
					p := ready(i + 1).on(node)
					p.Zone = node
					list = append(list, httpSlice(family, p))
					if slices.Contains(c.ejected, i) {
						last := list[i]
						c.svc.Ejected[netip.AddrPortFrom(last.Endpoints[0].Addr, last.Ports[0].Port)] = true
					}
				}
				sets := Select(&c.svc, httpPort, family, list, here)
				if got := weights(sets.cluster()); got != c.cluster {
					t.Errorf("%s cluster set: %s, want %s", family, got, c.cluster)
				}
				if got := weights(sets.local()); got != c.local {
					t.Errorf("%s local set: %s, want %s", family, got, c.local)
				}
			}
		})
	}
}
