package packets_test

import (
	"fmt"
	"testing"

	"github.com/beeline-lb/beeline/tests/tier"
)

// newGKE makes a cluster as GKE's without Dataplane V2: the plugin ptp, pods of a range of the node's own, ip-masq-agent.
func newGKE(t *testing.T) *cloudCluster {
	t.Helper()
	c := newCloudCluster(t, []string{"4", "6"}, parseAddrs("10.244.2.41", "fd44:0:0:2::41"),
		parseAddrs("10.244.1.31", "fd44:0:0:1::31"), parseAddrs("10.244.1.32", "fd44:0:0:1::32"))
	for i, s := range []site{c.host, c.farHost} {
		own := []string{s.at[0].String(), s.at[1].String(), podRangesOf(i + 1)[0].String(), podRangesOf(i + 1)[1].String()}
		if i == 0 {
			own = append(own, externalRanges[0], balancerRanges[0], externalRanges[1], balancerRanges[1])
		}
		c.plug(s.n, "eth0", own...)
		c.address(s.n, "eth0", s.at)
		c.nodes[i].shell(t, masqAgent)
	}
	for device, p := range map[string]site{"gke1": c.pods[0], "gke2": c.pods[1], "gke3": c.far} {
		n := c.nodes[p.node-1]
		n.AddDevice(device, p.n, "eth0")
		gateway := parseAddrs(fmt.Sprintf("10.244.%d.1", p.node), fmt.Sprintf("fd44:0:0:%d::1", p.node))
		n.addPod(p.n, device, gateway, p.at)
	}
	return c
}

// netdRules are those of netd for intranode visibility (GoogleCloudPlatform/netd, pkg/config/config_policy_routing.go): what
// pods of the node send to each other goes by the network, too.
const netdRules = `
	ip route add default via 10.2.0.1 dev eth0 table 1
	for to in 127.0.0.0/8 169.254.0.0/16 10.2.0.11/32 10.244.1.1/32; do ip rule add to $to lookup local priority 70; done
	ip rule add fwmark 0x4000/0x4000 lookup main priority 74
	ip rule add iif lo lookup main priority 75
	ip rule add not iif eth0 lookup 1 priority 76
	i="iptables-nft -w -t mangle"
	$i -N GCP-PREROUTING
	$i -A GCP-PREROUTING -j CONNMARK --restore-mark --nfmask 0x4000 --ctmask 0x4000
	$i -A PREROUTING -j GCP-PREROUTING
	$i -N GCP-POSTROUTING
	$i -A GCP-POSTROUTING -m mark --mark 0x4000/0x4000 -j CONNMARK --save-mark --nfmask 0x4000 --ctmask 0x4000
	$i -A POSTROUTING -j GCP-POSTROUTING`

// TestGKE: likewise in the network of pods of GKE, and with its rules for intranode visibility, which are of IPv4 alone.
func TestGKE(t *testing.T) {
	t.Parallel()
	for rules, script := range map[string]string{"routes": "", "intranode visibility": netdRules} {
		for name, flags := range map[string][]string{
			"sockets": nil,
			"packets": {"--socket-lb", "host-namespace-only", "--pod-devices", "gke*"},
		} {
			t.Run(rules+" "+name, func(t *testing.T) {
				t.Parallel()
				tier.Variant(t, (script == "") == (flags == nil))
				c := newGKE(t)
				if script != "" {
					c.nodes[0].SetSysctl("ipv4/conf/eth0/rp_filter", "2")
					c.nodes[0].shell(t, script)
				}
				c.serve(flags...)
				c.wantDevices([2]string{"eth0", "default route"})
				c.check()
				c.checkSNAT(func(site) addrs { return c.host.at })
			})
		}
	}
}
