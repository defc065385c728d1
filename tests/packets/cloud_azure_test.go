package packets_test

import (
	"testing"

	"github.com/beeline-lb/beeline/tests/tier"
)

// masqAgent are the rules of ip-masq-agent, as GKE runs it, and of Azure's: what leaves the cluster's networks
// has the node's address.
const masqAgent = `
	for i in "iptables-nft 10.2.0.0/16 10.244.0.0/16" "ip6tables-nft fd02::/64 fd44::/48"; do
		set -- $i
		$1 -w -t nat -N IP-MASQ-AGENT
		$1 -w -t nat -A POSTROUTING -m comment --comment "ip-masq-agent" -m addrtype ! --dst-type LOCAL -j IP-MASQ-AGENT
		$1 -w -t nat -A IP-MASQ-AGENT -d $2 -j RETURN
		$1 -w -t nat -A IP-MASQ-AGENT -d $3 -j RETURN
		$1 -w -t nat -A IP-MASQ-AGENT -j MASQUERADE --random-fully
	done
`

// newAzure makes a cluster with Azure's CNI in mode transparent, as its sources lay it (azure-container-networking,
// network/transparent_endpointclient_linux.go): pods have addresses of the nodes' subnet in IPv4, and of a range of their own in
// IPv6; all devices of pods have one MAC address at the node, and answer ARP for all.
func newAzure(t *testing.T) *cloudCluster {
	t.Helper()
	c := newCloudCluster(t, []string{"4", "6"}, parseAddrs("10.2.0.41", "fd44:0:0:2::41"),
		parseAddrs("10.2.0.31", "fd44:0:0:1::31"), parseAddrs("10.2.0.32", "fd44:0:0:1::32"))
	c.plug(c.nodes[0].Namespace, "eth0", "10.2.0.11", "10.2.0.31", "10.2.0.32", "fd02::11", "fd44:0:0:1::/64",
		externalRanges[0], balancerRanges[0], externalRanges[1], balancerRanges[1])
	c.plug(c.nodes[1].Namespace, "eth0", "10.2.0.12", "10.2.0.41", "fd02::12", "fd44:0:0:2::/64")
	for _, s := range []site{c.host, c.farHost} {
		c.address(s.n, "eth0", s.at)
		c.nodes[s.node-1].shell(t, masqAgent)
	}
	gateway := parseAddrs("169.254.1.1", "fe80::1234:5678:9abc")
	for device, p := range map[string]site{"azv1": c.pods[0], "azv2": c.pods[1], "azv3": c.far} {
		n := c.nodes[p.node-1]
		c.addCloudPod(p, device, gateway)
		n.shell(t, "ip link set "+device+" address aa:aa:aa:aa:aa:aa")
		n.SetSysctl("ipv4/conf/"+device+"/proxy_arp", "1")
		run(t, p.n, "ip", "neigh", "replace", gateway[0].String(), "lladdr", "aa:aa:aa:aa:aa:aa", "dev", "eth0", "nud", "probe")
		run(t, p.n, "ip", "-6", "neigh", "replace", gateway[1].String(), "lladdr", "aa:aa:aa:aa:aa:aa", "dev", "eth0", "nud", "permanent")
	}
	return c
}

// TestAzure: beside Azure's CNI clients in the cloud, elsewhere, in pods and on the node reach endpoints on the node and on
// another one by every frontend, and the masquerading of what leaves the cluster's networks stays right.
func TestAzure(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"sockets": nil,
		"packets": {"--socket-lb", "host-namespace-only", "--pod-devices", "azv*"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, name == "packets")
			c := newAzure(t)
			c.serve(flags...)
			c.wantDevices([2]string{"eth0", "default route"})
			c.check()
			c.checkSNAT(func(site) addrs { return c.host.at })
		})
	}
}
