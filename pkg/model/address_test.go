package model_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

// TestPreferAddrs overrides the Node object family by family.
func TestPreferAddrs(t *testing.T) {
	four, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	node := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	for _, tc := range []struct{ given, want []netip.Addr }{
		{nil, node},
		{[]netip.Addr{four}, []netip.Addr{four, node[1]}},
		{[]netip.Addr{six}, []netip.Addr{six, node[0]}},
		{[]netip.Addr{six, four}, []netip.Addr{six, four}},
	} {
		if got := model.PreferAddrs(tc.given, node); !slices.Equal(got, tc.want) {
			t.Errorf("given %v: %v, want %v", tc.given, got, tc.want)
		}
	}
}
