package packets_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestNetworkPolicy: what netfilter's hook forward refuses at a node, as what enforces
// NetworkPolicies has it do there, comes to no endpoint of that node, and from none of its pods to
// an endpoint.
func TestNetworkPolicy(t *testing.T) {
	t.Parallel()
	lab.Need(t, "nft")
	for name, v := range map[string]struct {
		pods  bool
		flags []string
	}{
		"tc":                          {flags: nil},
		"XDP":                         {flags: []string{"--xdp", "generic"}},
		"DSR":                         {flags: nil},
		"masqueradeAll":               {flags: []string{"--masquerade-all"}},
		"masqueradeAll, XDP":          {flags: []string{"--masquerade-all", "--xdp", "generic"}},
		"pods":                        {pods: true},
		"pods, masqueradeAll":         {pods: true, flags: []string{"--masquerade-all"}},
		"pods, masqueradeAll, clsact": {pods: true, flags: []string{"--masquerade-all", "--tc-mode", "clsact"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, name == "pods, masqueradeAll")
			c := newCluster(t, false)
			serve := c.serve
			if name == "DSR" {
				serve = c.serveDSR
			}
			if v.pods {
				v.flags = append(v.flags, podFlags...)
			}
			serve(t, c.masqueradeServices(), v.flags...)
			for _, n := range c.nodes {
				// Each client is refused more than once a second.
				n.SetSysctl("ipv4/icmp_ratelimit", "0")
				n.SetSysctl("ipv6/icmp/ratelimit", "0")
			}
			for i, set := range masqueradeSets {
				if set.at.place == "host" {
					continue // no policy is for it
				}
				there := c.nodes[set.at.node-1]
				c.checkPolicy(t, c.client, i, there, "daddr", c.addrsOf(set.at))
				if !v.pods {
					continue
				}
				pod := local
				if set.at == local {
					pod = otherLocal
				}
				c.checkPolicy(t, c.podOf(pod), i, there, "daddr", c.addrsOf(set.at))
				c.checkPolicy(t, c.podOf(pod), i, c.nodes[0], "saddr", c.addrsOf(pod))
			}
		})
	}
}

// checkPolicy has a node refuse new connections to or from a pod, and wants a client to reach the
// i-th Service by no frontend, and by each without.
func (c *cluster) checkPolicy(t *testing.T, from *lab.Namespace, i int, node *node, side string, pod addrs) {
	t.Helper()
	rules := fmt.Sprintf(`table inet enforced {
	chain forward {
		type filter hook forward priority filter
		ip %[1]s %[2]s ct state new counter reject
		ip6 %[1]s %[3]s ct state new counter reject
	}
}
`, side, pod[0], pod[1])
	at := fmt.Sprintf("%s to an endpoint of %s", masqueradeSets[i].policy, masqueradeSets[i].at.server())
	for _, denied := range []bool{true, false} {
		if denied {
			if _, err := node.Output("nft", rules); err != nil {
				t.Fatal(failure(err))
			}
		}
		var asking sync.WaitGroup
		for _, f := range frontends {
			for _, network := range networks {
				asking.Go(func() {
					to := netip.AddrPortFrom(f.address(i+1).of(network), uint16(f.port(i+1)))
					got, err := ask(from, network, to, "payload")
					if denied && err == nil {
						t.Errorf("%s, by the %s, %s: %s of %s is refused at %s, but it has answered", at, f.name, network, side, pod.of(network), node.name())
					}
					if !denied && (err != nil || got.name != masqueradeSets[i].at.server()) {
						t.Errorf("%s, by the %s, %s, without a policy: %v, %v", at, f.name, network, got.greeting, err)
					}
				})
			}
		}
		asking.Wait()
		if denied {
			if out, err := node.Output("nft", "list", "table", "inet", "enforced"); err != nil || strings.Contains(out, "packets 0 ") {
				t.Errorf("%s: the policy has not refused packets of both families: %v\n%s", at, err, out)
			}
			if _, err := node.Output("nft", "delete table inet enforced"); err != nil {
				t.Fatal(failure(err))
			}
		}
	}
}
