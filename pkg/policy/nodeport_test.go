package policy

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

func TestNodePortAddresses(t *testing.T) {
	local := addrs("10.0.0.7", "127.0.0.1", "192.168.1.7", "::1", "fd00::7")
	node := &model.LocalNode{Addrs: addrs("192.168.1.7", "10.0.0.7", "fd00::7")}
	for _, tc := range []struct {
		name   string
		node   *model.LocalNode
		values []string
		want   []netip.Addr
	}{
		{"unset is every local address", node, nil, local},
		{"primary is the first IP of each family", node, []string{"primary"}, addrs("192.168.1.7", "fd00::7")},
		{"primary is loopback in a family without", &model.LocalNode{Addrs: addrs("10.0.0.7")}, []string{"primary"}, addrs("10.0.0.7", "::1")},
		{"primary is loopback before the Node is known", &model.LocalNode{}, []string{"primary"}, addrs("127.0.0.1", "::1")},
		{"CIDRs of both families", node, []string{"10.0.0.9/8", "::/0"}, addrs("10.0.0.7", "::1", "fd00::7")},
		{"no local address inside", node, []string{"172.16.0.0/12", "fd01::/16"}, nil},
		{"CIDRs of one family say nothing about the other", node, []string{"10.0.0.0/8"}, addrs("10.0.0.7", "::1", "fd00::7")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, err := ParseNodePortAddresses(tc.values)
			if err != nil {
				t.Fatal(err)
			}
			if got := n.Select(local, tc.node); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// TestNodePortAddressesOfFamily: a family of which no CIDR is given is as with none at all.
func TestNodePortAddressesOfFamily(t *testing.T) {
	for _, tc := range []struct {
		value                      string
		all4, all6, local4, local6 bool
	}{
		{"10.0.0.0/8", false, true, false, true},
		{"fd00::/8", true, false, true, false},
		{"127.0.0.0/8", false, true, true, true},
		{"::/0", true, true, true, true},
	} {
		n, err := ParseNodePortAddresses([]string{tc.value})
		if err != nil {
			t.Fatal(err)
		}
		if n.All(model.IPv4) != tc.all4 || n.All(model.IPv6) != tc.all6 || n.Loopback(model.IPv4) != tc.local4 || n.Loopback(model.IPv6) != tc.local6 {
			t.Errorf("%s: all addresses %t and %t, loopback %t and %t, want %+v", tc.value,
				n.All(model.IPv4), n.All(model.IPv6), n.Loopback(model.IPv4), n.Loopback(model.IPv6), tc)
		}
	}
}

func TestNodePortAddressesRejected(t *testing.T) {
	for _, values := range [][]string{{"10.0.0.1"}, {"primary", "10.0.0.0/8"}, {"10.0.0.0/8", "x"}} {
		_, err := ParseNodePortAddresses(values)
		if err == nil || !strings.Contains(err.Error(), "element") {
			t.Errorf("%q: got error %v, want one that names the element", values, err)
		}
	}
}

func addrs(list ...string) []netip.Addr {
	out := make([]netip.Addr, len(list))
	for i, s := range list {
		out[i] = netip.MustParseAddr(s)
	}
	return out
}
