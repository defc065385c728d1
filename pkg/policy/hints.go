package policy

import (
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
)

// hints are a kind of topology hints.
type hints uint8

const (
	noHints hints = iota
	nodeHints
	zoneHints
)

// hintsOf returns the hints that count for this node.
//
// A kind of hint counts only if every Ready endpoint carries it and one of them
// that has a weight names this node or zone: while controllers roll hints out or
// zones empty, by weights too, all endpoints stay in use. Node hints come before
// zone hints.
func hintsOf(eps []endpoint, node *model.LocalNode) hints {
	switch {
	case hintsCount(eps, forNode, node.Name):
		return nodeHints
	case hintsCount(eps, forZone, node.Zone):
		return zoneHints
	}
	return noHints
}

func forNode(e *endpoint) []string { return e.from.NodeHints }
func forZone(e *endpoint) []string { return e.from.ZoneHints }

// hintFilter returns which of the Ready endpoints of eps topology hints leave to
// this node.
func hintFilter(eps []endpoint, node *model.LocalNode) func(*endpoint) bool {
	switch hintsOf(eps, node) {
	case nodeHints:
		return func(e *endpoint) bool { return slices.Contains(forNode(e), node.Name) }
	case zoneHints:
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
		named = named || eps[i].weight > 0 && slices.Contains(h, name)
	}
	return named
}
