package model

import (
	"net/netip"
	"slices"
)

// PreferAddrs returns the node's own addresses: those that are given, and of the
// families that none is given of, those of the Node object.
func PreferAddrs(given, node []netip.Addr) []netip.Addr {
	addrs := slices.Clone(given)
	for _, a := range node {
		if !slices.ContainsFunc(given, func(g netip.Addr) bool { return FamilyOf(g) == FamilyOf(a) }) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}
