package devicemap

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/tests/maptest"
	"github.com/beeline-lb/beeline/tests/tier"
)

func TestLocalCIDRsAreReplaced(t *testing.T) {
	m := New(maptest.New(t, maptest.Small))
	for _, want := range [][]netip.Prefix{
		{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")},
		{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.245.0.0/16")},
		nil,
	} {
		if _, err := m.SetLocalCIDRs(want); err != nil {
			t.Fatal(err)
		}
		if got, err := m.LocalCIDRs(); err != nil || !slices.Equal(got, want) {
			t.Errorf("prefixes %v, %v; want %v", got, err, want)
		}
	}
}

// TestLocalCIDRsFit: the ranges of more nodes than there is room for are covered by shorter ones, which
// replace others as many.
func TestLocalCIDRsFit(t *testing.T) {
	tier.SameInEveryKernel(t)
	m := New(maptest.New(t, maptest.Small))
	one := netip.MustParsePrefix("fd44:0:0:7::/64")
	for second := range 2 {
		ranges := []netip.Prefix{one, netip.MustParsePrefix("172.16.0.0/24")}
		for i := range 8000 {
			ranges = append(ranges, netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/24", 100*(second+1)+i/256, i%256)))
		}
		if _, err := m.SetLocalCIDRs(ranges); err != nil {
			t.Fatal(err)
		}
		got, err := m.LocalCIDRs()
		if err != nil || len(got) > 512 || !slices.Contains(got, one) {
			t.Fatalf("%d prefixes, %v", len(got), err)
		}
		for _, r := range ranges {
			if !slices.ContainsFunc(got, func(p netip.Prefix) bool { return p.Overlaps(r) && p.Bits() <= r.Bits() }) {
				t.Errorf("%s is not covered", r)
			}
		}
		for _, outside := range []string{"10.99.0.1", "10.132.0.1", "10.232.0.1", "172.17.0.1", "192.0.2.1"} {
			if slices.ContainsFunc(got, func(p netip.Prefix) bool { return p.Contains(netip.MustParseAddr(outside)) }) {
				t.Errorf("%s is covered", outside)
			}
		}
	}
}
