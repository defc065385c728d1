package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

// nodeOf is a node of which packets in a tunnel go to the first address; without any to none.
func nodeOf(name string, created int64, addrs ...string) *model.Node {
	n := &model.Node{Name: name, Created: created}
	for _, a := range addrs {
		n.Addrs = append(n.Addrs, netip.MustParseAddr(a))
	}
	if len(addrs) > 0 {
		n.Tunnel = n.Addrs[0]
	}
	return n
}

// TestOwnAddrs: each address is of one node, in whatever order they come.
func TestOwnAddrs(t *testing.T) {
	for name, tt := range map[string]struct {
		nodes []*model.Node
		want  string // names and addresses, this node first, then by age
		lost  string
	}{
		"none in common": {
			[]*model.Node{nodeOf("b", 1, "192.0.2.1", "2001:db8::1"), nodeOf("a", 2, "192.0.2.2"), nodeOf("none", 3)},
			"b 192.0.2.1 2001:db8::1, a 192.0.2.2, none", "",
		},
		"an old node lists addresses of others": {
			[]*model.Node{nodeOf("old", 1, "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.9"), nodeOf("a", 2, "192.0.2.2", "198.51.100.2"), nodeOf("b", 3, "192.0.2.3")},
			"old 192.0.2.1 192.0.2.9, a 192.0.2.2 198.51.100.2, b 192.0.2.3", "old 192.0.2.2 of a, old 192.0.2.3 of b",
		},
		"a new one lists further ones": {
			[]*model.Node{nodeOf("a", 1, "192.0.2.1", "2001:db8::1"), nodeOf("new", 2, "192.0.2.2", "2001:db8::1")},
			"a 192.0.2.1 2001:db8::1, new 192.0.2.2", "new 2001:db8::1 of a",
		},
		"one takes another's place": {
			[]*model.Node{nodeOf("a", 1, "192.0.2.1"), nodeOf("new", 2, "192.0.2.1", "192.0.2.2")},
			"a 192.0.2.1, new 192.0.2.2", "new 192.0.2.1 of a",
		},
		"of one age": {
			[]*model.Node{nodeOf("b", 0, "192.0.2.2", "192.0.2.3"), nodeOf("a", 0, "192.0.2.1", "192.0.2.3")},
			"a 192.0.2.1 192.0.2.3, b 192.0.2.2", "b 192.0.2.3 of a",
		},
		"this node's": {
			[]*model.Node{nodeOf("old", 1, "198.51.100.9", "192.0.2.9"), nodeOf("self", 9, "192.0.2.9", "198.51.100.9")},
			"self 192.0.2.9 198.51.100.9, old", "old 192.0.2.9 of self, old 198.51.100.9 of self",
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := fmt.Sprintf("%+v", *tt.nodes[0])
			for range 10 {
				rand.Shuffle(len(tt.nodes), func(i, j int) { tt.nodes[i], tt.nodes[j] = tt.nodes[j], tt.nodes[i] })
				own, lost := OwnAddrs(tt.nodes, "self")
				var got, gone []string
				for _, n := range own {
					text := n.Name
					for _, a := range n.Addrs {
						text += " " + a.String()
					}
					got = append(got, text)
				}
				for _, l := range lost {
					gone = append(gone, fmt.Sprintf("%s %s of %s", l.Node, l.Addr, l.Holder))
				}
				if strings.Join(got, ", ") != tt.want || strings.Join(gone, ", ") != tt.lost {
					t.Errorf("nodes %v, lost %v", got, gone)
				}
			}
			if !slices.ContainsFunc(tt.nodes, func(n *model.Node) bool { return fmt.Sprintf("%+v", *n) == before }) {
				t.Error("the input is changed")
			}
		})
	}
}
