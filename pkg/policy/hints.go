package policy

import (
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
)

// hintFilter returns which of the Ready endpoints of eps topology hints leave to
// this node.
//
// A kind of hint counts only if every Ready endpoint carries it and one of them
// names this node or zone: while controllers roll hints out or zones empty, all
// endpoints stay in use. Node hints come before zone hints.
func hintFilter(eps []endpoint, node *model.LocalNode) func(*endpoint) bool {
	forNode := func(e *endpoint) []string { return e.from.NodeHints }
	if hintsCount(eps, forNode, node.Name) {
		return func(e *endpoint) bool { return slices.Contains(forNode(e), node.Name) }
	}
	forZone := func(e *endpoint) []string { return e.from.ZoneHints }
	if hintsCount(eps, forZone, node.Zone) {
		return func(e *endpoint) bool { return slices.Contains(forZone(e), node.Zone) }
	}
	return func(*endpoint) bool { return true }
}

func hintsCount(eps []endpoint, hints func(*endpoint) []string, name string) bool {
	if name == "" {
		return false
	}
	named := false
	for i := range eps {
		if !eps[i].ready {
			continue
		}
		h := hints(&eps[i])
		if len(h) == 0 {
			return false
		}
		named = named || slices.Contains(h, name)
	}
	return named
}
