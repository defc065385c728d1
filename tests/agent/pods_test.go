package agent_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestRangesOfPods: where pods are, the programs know by the podCIDRs of this Node with NodeCIDR, of all
// Nodes with a tunnel, also of those that get them while the agent runs.
func TestRangesOfPods(t *testing.T) {
	t.Parallel()
	own, others := podCIDRs(1), podCIDRs(2)
	for _, tc := range []struct {
		name  string
		flags []string
		want  []string
	}{
		{"NodeCIDR", []string{"--detect-local-mode", "NodeCIDR"}, own},
		{"tunnel", []string{"--forwarding-mode", "dsr"}, slices.Concat(own, others)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, tc.name == "tunnel")
			c := &cluster{t: t, server: apiserver.Start(t), host: lab.NewHost(t)}
			c.client = c.server.Client(t)
			c.host.Relay(strings.TrimPrefix(c.server.Config.Host, "https://"))
			nodes := c.client.CoreV1().Nodes()
			for _, name := range []string{lab.NodeName, "other"} {
				_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
			}
			c.serveCluster(tc.flags...)
			for name, ranges := range map[string][]string{lab.NodeName: own, "other": others} {
				node, err := nodes.Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				node.Spec.PodCIDR, node.Spec.PodCIDRs = ranges[0], ranges
				if _, err := nodes.Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			maps, err := bpfmap.Open(datapath.Dir(c.host.BPFFS))
			if err != nil {
				t.Fatal(err)
			}
			defer maps.Close()
			var want []netip.Prefix
			for _, r := range tc.want {
				want = append(want, netip.MustParsePrefix(r))
			}
			slices.SortFunc(want, netip.Prefix.Compare)
			lab.Eventually(t, fmt.Sprintf("pods are in %v", want), func() bool {
				got, err := devicemap.New(maps).LocalCIDRs()
				return err == nil && slices.Equal(got, want)
			})
		})
	}
}

// podCIDRs are those of a Node.
func podCIDRs(i int) []string {
	return []string{fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd44:0:0:%d::/64", i)}
}
