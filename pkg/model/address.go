package model

import (
	"net/netip"
	"slices"
)

// PreferAddrs returns the node's own addresses: those that are given, and of the
// families that none is given of, those of the Node object.
func PreferAddrs(given, node []netip.Addr) []netip.Addr {
	return preferFamilies(given, node, FamilyOf)
}

// PreferRanges returns the ranges that are given, and of the families that none is given of, the
// others.
func PreferRanges(given, others []netip.Prefix) []netip.Prefix {
	return preferFamilies(given, others, func(p netip.Prefix) Family { return FamilyOf(p.Addr()) })
}

func preferFamilies[T any](given, others []T, family func(T) Family) []T {
	list := slices.Clone(given)
	for _, o := range others {
		if !slices.ContainsFunc(given, func(g T) bool { return family(g) == family(o) }) {
			list = append(list, o)
		}
	}
	return list
}
