package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

// balancerRange returns the addresses that the balancer assigns from.
func balancerRange(family corev1.IPFamily) netip.Prefix {
	if family == corev1.IPv6Protocol {
		return netip.MustParsePrefix("fd98:100::/112")
	}
	return netip.MustParsePrefix("198.18.100.0/24")
}

// balancerTable is the routing table, and the packet mark, of connections that
// belong to the i-th node.
func balancerTable(i int) int { return 100 + i }

// makeBalancerRoutes makes the routes of marked packets. The range itself is on
// the fabric, so that a connection from here gets as far as to be marked.
func makeBalancerRoutes(nodes int) error {
	bridge, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	for f, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		err = errors.Join(err, addRoute(netlink.Route{
			Dst: ipNet(balancerRange(family)), LinkIndex: bridge.Attrs().Index, Scope: netlink.SCOPE_LINK,
			Src: net.ParseIP(clientAddrs[f]),
		}))
		for i := 1; i <= nodes; i++ {
			rule := netlink.NewRule()
			rule.Family = []int{netlink.FAMILY_V4, netlink.FAMILY_V6}[f]
			rule.Mark = uint32(balancerTable(i))
			rule.Table = balancerTable(i)
			all := []string{"0.0.0.0/0", "::/0"}[f]
			_, dst, _ := net.ParseCIDR(all)
			err = errors.Join(err, netlink.RuleAdd(rule), addRoute(netlink.Route{
				Table: balancerTable(i), Dst: dst, Gw: nodeAddrs(i)[f].Addr().AsSlice(),
			}))
		}
	}
	return err
}

// program puts the rules for the served Services in force, all at once.
func (b *balancer) program(served []*corev1.Service) error {
	rules := b.ruleset(served)
	if rules == b.rules {
		return nil
	}
	cmd := exec.Command("nft", "--file", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w\n%s", err, out)
	}
	b.rules = rules
	return nil
}

// ruleset returns the rules: a connection's first packet chooses the node, by a mark
// that all its packets get and routes go by. One to an address that is no Service's, or
// whose Service has no node, is dropped.
func (b *balancer) ruleset(served []*corev1.Service) string {
	slices.SortFunc(served, func(x, y *corev1.Service) int { return strings.Compare(key(x), key(y)) })
	var choose strings.Builder
	for _, s := range served {
		for _, addr := range b.assigned[key(s)] {
			choose.WriteString(chooseRule(s, addr, b.healthy[key(s)]))
		}
	}
	return fmt.Sprintf(`table inet balancer
delete table inet balancer
table inet balancer {
	chain choose {
%[1]s	}
	chain steer {
		ct mark 0 jump choose
		meta mark set ct mark
		ct mark 0 drop
	}
	chain arriving {
		type filter hook prerouting priority mangle
		ip daddr %[2]s jump steer
		ip6 daddr %[3]s jump steer
	}
	chain leaving {
		type route hook output priority mangle
		ip daddr %[2]s jump steer
		ip6 daddr %[3]s jump steer
	}
}
`, choose.String(), balancerRange(corev1.IPv4Protocol), balancerRange(corev1.IPv6Protocol))
}

// chooseRule gives new connections to an address of a Service to one of the
// nodes: at random, or by the client's address when the Service wants that.
func chooseRule(s *corev1.Service, addr netip.Addr, nodes []int) string {
	if len(nodes) == 0 {
		return ""
	}
	var marks []string
	for n, i := range nodes {
		marks = append(marks, fmt.Sprintf("%d : %d", n, balancerTable(i)))
	}
	ip := "ip"
	if addr.Is6() {
		ip = "ip6"
	}
	number := fmt.Sprintf("numgen random mod %d", len(nodes))
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		number = fmt.Sprintf("jhash %s saddr mod %d", ip, len(nodes))
	}
	return fmt.Sprintf("\t\t%s daddr %s ct mark set %s map { %s }\n", ip, addr, number, strings.Join(marks, ", "))
}

// ignoreStale drops errors that a look at the newest object puts right.
func ignoreStale(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || wait.Interrupted(err) {
		return nil
	}
	return err
}
