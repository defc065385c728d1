package host

import (
	"context"
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/tests/wait"
)

// TestFollowRules: rules that look at the source or at the input device are told of, others are not.
func TestFollowRules(t *testing.T) {
	inNamespace(t)
	_, all, _ := net.ParseCIDR("192.0.2.0/24")
	for _, step := range []struct {
		name string
		rule func(r *netlink.Rule)
		want bool
	}{
		{"the rules that there are at first", nil, false},
		{"to", func(r *netlink.Rule) { r.Dst = all }, false},
		{"fwmark", func(r *netlink.Rule) { r.Mark = 1 }, false},
		{"lookup", func(r *netlink.Rule) {}, false},
		{"from", func(r *netlink.Rule) { r.Src = all }, true},
		{"not from", func(r *netlink.Rule) { r.Src, r.Invert = all, true }, true},
		{"iif", func(r *netlink.Rule) { r.IifName = "lo" }, true},
		{"iif of IPv6", func(r *netlink.Rule) { r.IifName, r.Family = "lo", netlink.FAMILY_V6 }, true},
	} {
		rule := netlink.NewRule()
		rule.Family, rule.Table, rule.Priority = netlink.FAMILY_V4, 100, 100
		if step.rule != nil {
			step.rule(rule)
			if err := netlink.RuleAdd(rule); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := RulesByClient(); err != nil || got != step.want {
			t.Errorf("%s: by client: %t, %v, want %t", step.name, got, err, step.want)
		}
		if step.rule != nil {
			if err := netlink.RuleDel(rule); err != nil {
				t.Fatal(err)
			}
		}
	}
	checkFollowed(t, all)
}

// checkFollowed adds a rule while the rules are followed.
func checkFollowed(t *testing.T, from *net.IPNet) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority, rule.Src = netlink.FAMILY_V4, 100, 100, from
	var told []bool
	FollowRules(ctx, func(byClient bool) error { // on this thread
		told = append(told, byClient)
		switch {
		case len(told) == 1:
			return netlink.RuleAdd(rule)
		case byClient:
			return netlink.RuleDel(rule)
		case told[len(told)-2]:
			cancel()
		}
		return nil
	})
	if n := len(told); n < 3 || told[0] || !told[n-2] || told[n-1] {
		t.Errorf("told is %v within %s, want false, true at last, then false", told, wait.Limit)
	}
}
