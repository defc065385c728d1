package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/beeline-lb/beeline/pkg/model"
)

// LostAddr is an address that a Node lists and another one has.
type LostAddr struct {
	Addr         netip.Addr
	Node, Holder string // names
}

// OwnAddrs returns the nodes, each with those addresses that no other has: a kubelet writes its own
// Node, so one that is taken over may list any. An address is the node's at which tunnel traffic to
// it ends, else the one's that was created first. This node, self, comes before all others. lost
// are the others, sorted. The input is not changed.
func OwnAddrs(nodes []*model.Node, self string) (own []*model.Node, lost []LostAddr) {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b *model.Node) int {
		switch self {
		case a.Name:
			return -1
		case b.Name:
			return 1
		}
		return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(a.Name, b.Name))
	})
	holder := holders(nodes, self)
	for _, n := range nodes {
		kept := slices.DeleteFunc(slices.Clone(n.Addrs), func(a netip.Addr) bool { return holder[a] != n })
		if len(kept) == len(n.Addrs) {
			own = append(own, n)
			continue
		}
		for _, a := range n.Addrs {
			if h := holder[a]; h != n {
				lost = append(lost, LostAddr{a, n.Name, h.Name})
			}
		}
		changed := *n
		changed.Addrs = kept
		own = append(own, &changed)
	}
	slices.SortFunc(lost, func(a, b LostAddr) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), a.Addr.Compare(b.Addr))
	})
	return own, lost
}

// holders returns which of the nodes, the first first, has each address.
func holders(nodes []*model.Node, self string) map[netip.Addr]*model.Node {
	holder := make(map[netip.Addr]*model.Node, 2*len(nodes))
	take := func(n *model.Node, addrs ...netip.Addr) {
		for _, a := range addrs {
			if holder[a] == nil {
				holder[a] = n
			}
		}
	}
	for _, n := range nodes {
		if n.Name == self {
			take(n, n.Addrs...)
		}
	}
	for _, n := range nodes {
		take(n, n.Tunnel)
	}
	for _, n := range nodes {
		take(n, n.Addrs...)
	}
	return holder
}
