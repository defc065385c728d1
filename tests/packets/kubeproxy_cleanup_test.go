package packets_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/lab"
)

// TestKubeProxy needs an API server, which takes seconds to start; all its cases
// use the same.
func TestKubeProxy(t *testing.T) {
	t.Parallel()
	lab.Need(t, "nft", "iptables-nft", "iptables-legacy")
	server := apiserver.Start(t, "--service-cluster-ip-range=10.96.0.0/16,fd96::/112")
	publish(t, server, publicServices())
	for _, m := range proxyModes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			t.Run("Cleanup", func(t *testing.T) { testCleanup(t, server, m) })
			t.Run("UsedByOthers", func(t *testing.T) { testUsedByOthers(t, server, m) })
			t.Run("Killed", func(t *testing.T) { testCleanupKilled(t, server, m) })
			t.Run("Handover", func(t *testing.T) { testHandover(t, server, m, false) })
			t.Run("HandoverUDP", func(t *testing.T) { testHandoverUDP(t, server, m) })
			if m.proxy == "iptables" { // in the other, kube-proxy leaves firewalls as they are
				t.Run("Firewall", func(t *testing.T) { testHandover(t, server, m, true) })
			}
		})
	}
}

// firewallBefore are the rules of a firewall and of the kubelet, made before
// kube-proxy starts: chains with names like kube-proxy's among them.
var firewallBefore = []string{
	"-t filter -N KUBE-FIREWALL",
	"-t filter -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment block_incoming_localnet_connections" +
		" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
	"-t filter -A INPUT -j KUBE-FIREWALL",
	"-t filter -A OUTPUT -j KUBE-FIREWALL",
	"-t mangle -N KUBE-KUBELET-CANARY",
	"-t nat -N KUBE-MARK-DROP",
	"-t nat -A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000",
	"-t nat -N KUBE-SVCS",
	"-t nat -A KUBE-SVCS -j RETURN",
	"-t nat -A PREROUTING -j KUBE-SVCS",
	"-t mangle -N KUBE-SERVICES",
	"-t mangle -A FORWARD -j KUBE-SERVICES",
	"-t filter -N kube-services",
	"-t filter -N local",
	"-t filter -A local -p tcp --dport 22 -m comment --comment kubernetes -j ACCEPT",
	"-t filter -A local -m comment --comment empty",
	"-t filter -A local -m conntrack --ctstate INVALID -j DROP",
	"-t filter -A INPUT -g local",
	"-t filter -A FORWARD -p udp --dport 53 -j ACCEPT",
	"-t nat -A POSTROUTING -o nowhere -j MASQUERADE",
	"-t raw -A PREROUTING -i nowhere -j ACCEPT",
}

// firewallBetween comes while kube-proxy's rules are there: behind them, before
// them, and between.
var firewallBetween = []string{
	"-t filter -A INPUT -s 192.0.2.77 -j DROP",
	"-t filter -I INPUT -p icmp -m comment --comment first -j ACCEPT",
	"-t filter -I FORWARD -p tcp --dport 23 -j local",
	"-t nat -I OUTPUT -p tcp --dport 24 -j ACCEPT",
	"-t nat -A OUTPUT -p tcp --dport 25 -j ACCEPT",
	"-t nat -A KUBE-SVCS -p tcp --dport 26 -j ACCEPT",
	"-t filter -A FORWARD -m comment --comment later -p tcp --dport 27 -j REJECT",
	"-t filter -P FORWARD DROP",
}

// inPlaceOfKubeForward is what accepts connections where KUBE-FORWARD did, for FORWARD
// drops them.
var inPlaceOfKubeForward = []string{
	"-t filter -N BEELINE-FORWARD",
	"-t filter -A BEELINE-FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT",
	"-t filter -A BEELINE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
	"-t filter -I FORWARD -j BEELINE-FORWARD",
}

// nativeFirewall is what nft makes.
const nativeFirewall = `
table inet firewall {
	set blocked { type ipv4_addr; elements = { 192.0.2.99 }; }
	chain kube-proxy { ip saddr @blocked drop; }
	chain input { type filter hook input priority 0; jump kube-proxy; }
}
table inet kube-proxy { chain mine { accept; }
}
table ip kube-proxy-mine { chain services { accept; }
}
`

// testCleanup: what a firewall made before kube-proxy, and while it ran, is the
// same afterwards, byte by byte, as on a machine that never had a kube-proxy, and as
// kube-proxy leaves it when it cleans up itself. Only KUBE-FORWARD has a successor.
func testCleanup(t *testing.T, server *apiserver.Server, m proxyMode) {
	without := lab.NewNode(t).Namespace
	makeFirewall(t, without, m, firewallBefore)
	addNativeFirewall(t, without)
	makeFirewall(t, without, m, firewallBetween)
	insertBetween(t, without, m, 2)
	want := dumpFirewall(t, without)

	byAgent, byItself := lab.NewNode(t).Namespace, lab.NewNode(t).Namespace
	for _, n := range []*lab.Namespace{byAgent, byItself} {
		makeFirewall(t, n, m, firewallBefore)
		addNativeFirewall(t, n)
		proxy := newKubeProxy(t, server, n, m)
		proxy.start()
		makeFirewall(t, n, m, firewallBetween)
		insertBetween(t, n, m, 3)
		proxy.stop()
		if with := dumpFirewall(t, n); with == want {
			t.Fatal("kube-proxy has made no rules, so this test proves nothing")
		}
		if n == byItself {
			proxy.cleanup()
			continue
		}
		if out := cleanupByAgent(t, n); !strings.Contains(out, "removed") || strings.Contains(out, "kept") {
			t.Errorf("the agent says %q", out)
		}
	}
	if got := dumpFirewall(t, byItself); got != want {
		t.Errorf("after kube-proxy's own cleanup:\n%s\nwant:\n%s", got, want)
	}
	if m.proxy == "iptables" {
		makeFirewall(t, without, m, inPlaceOfKubeForward)
		want = dumpFirewall(t, without)
	}
	if got := dumpFirewall(t, byAgent); got != want {
		t.Errorf("after the agent's cleanup:\n%s\nwant:\n%s", got, want)
	}
	if out := cleanupByAgent(t, byAgent); out != "nothing of kube-proxy to remove\n" {
		t.Errorf("a second cleanup says %q", out)
	}
}

// testUsedByOthers: a chain of kube-proxy that somebody else leads packets to goes
// on to do what it did.
func testUsedByOthers(t *testing.T, server *apiserver.Server, m proxyMode) {
	if m.proxy != "iptables" {
		t.Skip("nobody can lead packets to the table of another")
	}
	n := lab.NewNode(t).Namespace
	proxy := newKubeProxy(t, server, n, m)
	proxy.start()
	makeFirewall(t, n, m, []string{
		"-t nat -N CNI-HOSTPORT-SETMARK",
		"-t nat -A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ",
	})
	proxy.stop()
	out := cleanupByAgent(t, n)
	for _, want := range []string{
		"kept chain KUBE-MARK-MASQ of ", ": chain CNI-HOSTPORT-SETMARK leads to it",
		"kept chain KUBE-POSTROUTING of ", ": chain KUBE-MARK-MASQ leads to it",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the agent says %q, want %q in it", out, want)
		}
	}
	for _, program := range []string{"iptables", "ip6tables"} {
		dump, err := n.Output(program + "-" + m.iptables + "-save")
		if err != nil {
			t.Fatal(failure(err))
		}
		for _, want := range []string{
			"-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ\n",
			"-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n",
			"-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING\n",
		} {
			if !strings.Contains(dump, want) {
				t.Errorf("%s lacks %q:\n%s", program, want, dump)
			}
		}
		for _, gone := range []string{"KUBE-SERVICES", "KUBE-SEP", "KUBE-FORWARD", "KUBE-PROXY"} {
			if strings.Contains(dump, gone) {
				t.Errorf("%s still has %s:\n%s", program, gone, dump)
			}
		}
	}
}

// toIPv6 makes rules of IPv6.
var toIPv6 = strings.NewReplacer("192.0.2.77", "2001:db8::77", "-p icmp", "-p icmpv6", "127.0.0.0/8", "::1/128")

// makeFirewall makes rules of iptables in both families. A "_" stands for a space.
func makeFirewall(t *testing.T, n *lab.Namespace, m proxyMode, rules []string) {
	t.Helper()
	for _, program := range []string{"iptables", "ip6tables"} {
		for _, rule := range rules {
			if program == "ip6tables" {
				rule = toIPv6.Replace(rule)
			}
			args := strings.Fields("-w " + rule)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "_", " ")
			}
			if _, err := n.Output(program+"-"+m.iptables, args...); err != nil {
				t.Fatalf("%s %s: %v", program, rule, failure(err))
			}
		}
	}
}

// insertBetween inserts rules at a place of INPUT and PREROUTING.
func insertBetween(t *testing.T, n *lab.Namespace, m proxyMode, place int) {
	t.Helper()
	if m.proxy != "iptables" {
		return
	}
	at := string(rune('0' + place))
	makeFirewall(t, n, m, []string{
		"-t filter -I INPUT " + at + " -p tcp --dport 28 -j ACCEPT",
	})
}

func addNativeFirewall(t *testing.T, n *lab.Namespace) {
	t.Helper()
	if _, err := n.Output("nft", strings.TrimSpace(nativeFirewall)); err != nil {
		t.Fatal(failure(err))
	}
}

// unsteady matches what differs from one dump to the next.
var unsteady = regexp.MustCompile(`(?m)^# .*\n|\[\d+:\d+\]|counter packets \d+ bytes \d+`)

// dumpFirewall returns all rules of a namespace.
func dumpFirewall(t *testing.T, n *lab.Namespace) string {
	t.Helper()
	var all strings.Builder
	for _, command := range []string{
		"iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save",
	} {
		dump, err := n.Output(command)
		if err != nil {
			t.Fatal(failure(err))
		}
		all.WriteString("== " + command + "\n" + dump)
	}
	dump, err := n.Output("nft", "list", "ruleset")
	if err != nil {
		t.Fatal(failure(err))
	}
	all.WriteString("== nft\n" + dump)
	return unsteady.ReplaceAllString(all.String(), "")
}
