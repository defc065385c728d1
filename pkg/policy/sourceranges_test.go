package policy

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

func TestSourceRanges(t *testing.T) {
	for _, c := range []struct {
		name   string
		ranges []string
		v4, v6 []string // nil: every source
	}{
		{"none", nil, nil, nil},
		{"IPv4 only", []string{"10.0.0.0/8", "192.0.2.0/24"}, []string{"10.0.0.0/8", "192.0.2.0/24"}, nil},
		{"IPv6 only", []string{"2001:db8::/32"}, nil, []string{"2001:db8::/32"}},
		{"both", []string{"10.0.0.0/8", "2001:db8::/32"}, []string{"10.0.0.0/8"}, []string{"2001:db8::/32"}},
		{"IPv4 /0 opens IPv4", []string{"10.0.0.0/8", "0.0.0.0/0", "2001:db8::/32"}, nil, []string{"2001:db8::/32"}},
		{"IPv6 /0 opens IPv6", []string{"10.0.0.0/8", "2001:db8::/32", "::/0"}, []string{"10.0.0.0/8"}, nil},
		{"only /0", []string{"0.0.0.0/0"}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := &model.Service{LoadBalancerIPs: addrs("203.0.113.1", "2001:db8:2::1")}
			for _, r := range c.ranges {
				svc.SourceRanges = append(svc.SourceRanges, netip.MustParsePrefix(r))
			}
			for family, want := range map[model.Family][]string{model.IPv4: c.v4, model.IPv6: c.v6} {
				prefixes, restricted := SourceRanges(svc, family)
				var got []string
				for _, p := range prefixes {
					got = append(got, p.String())
				}
				if !slices.Equal(got, want) || restricted != (want != nil) {
					t.Errorf("%v: %v, restricted %v; want %v, restricted %v",
						family, got, restricted, want, want != nil)
				}
			}
		})
	}
}
