package kubeproxy

import (
	"slices"
	"strings"
	"testing"
)

// TestLeft: what kube-proxy has made is named, and not the chains that a kubelet has made or the rules of
// others.
func TestLeft(t *testing.T) {
	for _, program := range programs {
		t.Run(program, func(t *testing.T) {
			inNamespace(t)
			want := func(list ...string) {
				t.Helper()
				if left, err := Left(); err != nil || !slices.Equal(left, list) {
					t.Errorf("left: %q, %v; want %q", left, err, list)
				}
			}
			want()
			for _, chain := range []string{"mine", "KUBE-MARK-MASQ", "KUBE-POSTROUTING", "KUBE-KUBELET-CANARY"} {
				iptables(t, program, "-t", "nat", "-N", chain)
			}
			iptables(t, program, "-t", "nat", "-A", "mine", "-j", "KUBE-MARK-MASQ")
			want()
			iptables(t, program, "-t", "nat", "-N", "KUBE-SERVICES")
			iptables(t, program, "-t", "nat", "-N", "KUBE-SVC-ABCDEFGHIJKLMNOP")
			family, _, _ := strings.Cut(program, "tables")
			want("2 chains of " + family + " table nat")
		})
	}
}
