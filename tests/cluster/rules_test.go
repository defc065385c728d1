package main

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestChooseRule(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	four, six := netip.MustParseAddr("198.18.100.1"), netip.MustParseAddr("fd98:100::1")
	for _, c := range []struct {
		addr  netip.Addr
		nodes []int
		stick bool
		want  string
	}{
		{four, nil, false, ""},
		{four, []int{2}, false, "ip daddr 198.18.100.1 ct mark set numgen random mod 1 map { 0 : 102 }"},
		{six, []int{1, 3}, false, "ip6 daddr fd98:100::1 ct mark set numgen random mod 2 map { 0 : 101, 1 : 103 }"},
		{four, []int{1, 3}, true, "ip daddr 198.18.100.1 ct mark set jhash ip saddr mod 2 map { 0 : 101, 1 : 103 }"},
	} {
		svc.Spec.SessionAffinity = corev1.ServiceAffinityNone
		if c.stick {
			svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}
		if got := strings.TrimSpace(chooseRule(svc, c.addr, c.nodes)); got != c.want {
			t.Errorf("nodes %v: got  %s\nwant %s", c.nodes, got, c.want)
		}
	}
}

// TestRulesAreAccepted: nft takes the rules.
func TestRulesAreAccepted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, as nft does to check rules")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip(err)
	}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	b := &balancer{
		assigned: map[string][]netip.Addr{"shop/web": {netip.MustParseAddr("198.18.100.1"), netip.MustParseAddr("fd98:100::1")}},
		healthy:  map[string][]int{"shop/web": {1, 2, 3}},
	}
	cmd := exec.Command("nft", "--check", "--file", "-")
	cmd.Stdin = strings.NewReader(b.ruleset([]*corev1.Service{svc}))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestControllers(t *testing.T) {
	for options, want := range map[string]string{
		"rw,nosuid,relatime,cpu,cpuacct": "cpu,cpuacct",
		"rw,xattr,name=systemd":          "name=systemd",
		"rw,relatime":                    "",
	} {
		if got := controllers(options); got != want {
			t.Errorf("%s: %q, want %q", options, got, want)
		}
	}
}
