package policy

import (
	"fmt"
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
