package kubeproxy

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// nft loads a ruleset.
func nft(t *testing.T, ruleset string) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip(err)
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(ruleset)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, ruleset)
	}
}

// forwardRules are a firewall whose chain forward of the table filter has some rules.
func forwardRules(family, policy, rules string) string {
	return "table " + family + " filter { chain forward { type filter hook forward priority filter; policy " + policy + "; " + rules + "; }; }"
}

// firewalldRules is the chain of firewalld and those that it leads to, with the pods in zone trusted and a
// policy in zone public.
func firewalldRules(policy string) string {
	return `table inet firewalld {
		chain services { accept; }
		chain trusted { accept; }
		chain public_allow { oifname "uplink" accept; }
		chain public { ` + policy + ` jump public_allow; meta l4proto { icmp, ipv6-icmp } accept; reject with icmpx admin-prohibited; }
		chain dispatch {
			ip saddr 10.244.0.0/16 goto trusted; ip6 saddr fd44::/44 goto trusted
			iifname "uplink" goto public
			goto public
		}
		chain filter_FORWARD {
			type filter hook forward priority filter + 10; policy accept;
			ct state { established, related } accept
			ct status dnat accept
			iifname "lo" accept
			ct state invalid drop
			ip6 daddr { ::/96, 2002:a00::/24 } reject with icmpv6 addr-unreachable
			jump dispatch
			reject with icmpx admin-prohibited
		}
	}`
}

// TestDropping: a chain that drops all new connections to endpoints of pods is named, by its families, and
// no other is: that which accepts Beeline's mark before, or may accept some of the packets.
func TestDropping(t *testing.T) {
	const both4, both6 = "inet filter forward (IPv4)", "inet filter forward (IPv6)"
	cluster := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd44::/44")}
	known := "ct state established,related accept; "
	for name, tc := range map[string]struct {
		ruleset string
		want    []string
	}{
		"policy":             {forwardRules("inet", "drop", "counter"), []string{both4, both6}},
		"known connections":  {forwardRules("inet", "drop", known), []string{both4, both6}},
		"a set of states":    {forwardRules("inet", "drop", "ct state { established, related } accept"), []string{both4, both6}},
		"a map of states":    {forwardRules("inet", "drop", "ct state vmap { established : accept, related : accept, invalid : drop }"), []string{both4, both6}},
		"drop at the end":    {forwardRules("ip", "accept", known+"counter drop"), []string{"ip filter forward (IPv4)"}},
		"reject at the end":  {forwardRules("ip6", "accept", known+"reject with icmpv6 admin-prohibited"), []string{"ip6 filter forward (IPv6)"}},
		"other protocols":    {forwardRules("inet", "drop", "meta l4proto { icmp, ipv6-icmp } accept; meta l4proto gre accept"), []string{both4, both6}},
		"other devices":      {forwardRules("inet", "drop", "iifname { lo, docker0 } accept; iif lo accept; oifname uplink accept"), []string{both4, both6}},
		"translated":         {forwardRules("inet", "drop", "ct status dnat accept"), []string{both4, both6}},
		"another mark":       {forwardRules("inet", "drop", "meta mark 1 accept; meta mark and 0x1000 != 0x1000 accept"), []string{both4, both6}},
		"one family":         {forwardRules("inet", "drop", "meta nfproto ipv4 accept"), []string{both6}},
		"return":             {forwardRules("inet", "drop", "return; accept"), []string{both4, both6}},
		"a chain":            {"table inet filter { chain more { " + known + "reject; }; chain forward { type filter hook forward priority 0; iifname uplink goto more; }; }", nil},
		"a chain for all":    {"table inet filter { chain more { " + known + "reject; }; chain forward { type filter hook forward priority 0; jump more; accept; }; }", []string{both4, both6}},
		"chains that return": {"table inet filter { chain more { tcp dport 22 drop; }; chain forward { type filter hook forward priority 0; jump more; reject; }; }", []string{both4, both6}},
		"a map of devices":   {"table inet filter { chain in { drop; }; chain forward { type filter hook forward priority 0; policy drop; iifname vmap { lo : accept, uplink : jump in }; }; }", []string{both4, both6}},

		"pods":           {forwardRules("inet", "drop", "ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 accept; ip6 saddr fd44::/44 accept"), []string{both4, both6}},
		"pods of a node": {forwardRules("inet", "drop", "ip saddr 10.244.3.0/25 accept; ip saddr 10.244.1.7 accept; ip6 saddr fd44:0:5::/49 accept"), []string{both4, both6}},
		"more than pods": {forwardRules("inet", "drop", "ip saddr 10.240.0.0/12 accept; ip6 saddr fd44::/43 accept"), nil},
		"but pods":       {forwardRules("inet", "drop", "ip saddr != 10.244.0.0/16 accept; ip6 saddr != fd44::/44 accept"), nil},
		"pods in a set":  {forwardRules("ip", "drop", "ip saddr { 10.244.0.0/16, 192.0.2.0/24 } accept"), nil},

		"mark":                {forwardRules("inet", "drop", known+"meta mark and 0x1000 == 0x1000 accept"), nil},
		"mark, not":           {forwardRules("inet", "drop", known+"meta mark and 0x1000 != 0 accept"), nil},
		"mark in a chain":     {"table inet filter { chain more { meta mark & 0x1000 == 0x1000 accept; }; chain forward { type filter hook forward priority 0; policy drop; jump more; }; }", nil},
		"mark after drops":    {forwardRules("inet", "drop", "ct state invalid drop; tcp dport 22 drop; meta mark and 0x1000 == 0x1000 accept"), nil},
		"new connections":     {forwardRules("inet", "drop", "ct state new accept"), nil},
		"addresses":           {forwardRules("ip", "drop", "ip daddr 10.244.0.0/16 accept"), nil},
		"ports":               {forwardRules("inet", "drop", "tcp dport { 80, 8080 } accept"), nil},
		"a port of one":       {forwardRules("inet", "drop", "meta l4proto tcp accept"), nil},
		"a device":            {forwardRules("inet", "drop", "iifname uplink accept"), nil},
		"devices of pods":     {forwardRules("inet", "drop", "oifname \"cali*\" accept"), nil},
		"a bridge of pods":    {forwardRules("inet", "drop", "oifname { cni0, docker0 } accept"), nil},
		"a limit":             {forwardRules("inet", "drop", "limit rate 10/second accept"), nil},
		"the route":           {forwardRules("inet", "drop", "fib daddr type unicast accept"), nil},
		"accept by default":   {forwardRules("inet", "accept", "tcp dport 22 drop; ip saddr 192.0.2.0/24 reject"), nil},
		"a map of addresses":  {"table ip filter { map m { type ipv4_addr : verdict; flags interval; }; chain forward { type filter hook forward priority 0; policy drop; ip daddr vmap @m; }; }", nil},
		"a map of bridges":    {"table ip docker-bridges { map m { type ifname : verdict; }; chain f { drop; }; chain filter-FORWARD { type filter hook forward priority 0; policy accept; oifname vmap @m; }; }", nil},
		"other hooks":         {"table inet filter { chain input { type filter hook input priority 0; policy drop; }; chain output { type filter hook output priority 0; policy drop; }; }", nil},
		"bridges":             {"table bridge filter { chain forward { type filter hook forward priority 0; policy drop; }; }", nil},
		"FORWARD of iptables": {"table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }", nil},
		"nothing":             {"", nil},
		// Each as its program makes it, its names and rules in short.
		"firewalld":         {firewalldRules(""), []string{"inet firewalld filter_FORWARD (IPv4)", "inet firewalld filter_FORWARD (IPv6)"}},
		"firewalld, opened": {firewalldRules("ip daddr 10.244.0.0/16 jump services; ip6 daddr fd44::/44 jump services; "), nil},
		"libvirt": {"table ip libvirt_network { chain guest_input { oif lo reject; }; chain guest_cross { iif lo oif lo accept; }; " +
			"chain forward { type filter hook forward priority 0; policy accept; jump guest_cross; jump guest_input; }; }", nil},
		"kube-proxy": {"table ip kube-proxy { map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }; " +
			"chain check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }; chain filter-forward { type filter hook forward priority -110; ct state new jump check; }; }", nil},
		"kube-router, flannel": {"table ip flannel-ipv4 { chain postrtg { type nat hook postrouting priority srcnat; ip saddr 10.244.0.0/16 masquerade; }; chain forward { type filter hook forward priority 0; ip saddr 10.244.0.0/16 accept; ip daddr 10.244.0.0/16 accept; }; }", nil},
	} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t)
			nft(t, tc.ruleset)
			got, err := Dropping(true, true, map[string]int{"uplink": 7, "second": 8}, cluster)
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("found %q, %v, want %q for\n%s", got, err, tc.want, tc.ruleset)
			}
			if got, err := Dropping(false, false, nil, cluster); err != nil || len(got) != 0 {
				t.Errorf("without a family: %q, %v", got, err)
			}
		})
	}
}
