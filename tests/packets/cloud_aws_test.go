package packets_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/tests/tier"
)

// awsPods are of the nodes' own subnet: one of node 1's first card, one of its second, one of node 2.
var (
	awsPods = []addrs{{netip.MustParseAddr("10.2.0.31")}, {netip.MustParseAddr("10.2.0.32")}}
	awsFar  = addrs{netip.MustParseAddr("10.2.0.41")}

	// awsBranch is that of a pod with a branch ENI.
	awsBranch = addrs{netip.MustParseAddr("10.2.0.33")}

	awsGateway = parseAddrs("169.254.1.1", "fe80::1")
)

// newVPC makes a cluster in a VPC of AWS with the VPC CNI, as its sources lay it (amazon-vpc-cni-k8s v1.21,
// pkg/networkutils and cmd/routed-eni-cni-plugin): what a pod with an address of the second card sends leaves by that.
func newVPC(t *testing.T, connmark string, more ...addrs) *cloudCluster {
	t.Helper()
	c := newCloudCluster(t, []string{"4"}, awsFar, append(awsPods, more...)...)
	c.plug(c.nodes[0].Namespace, "eth0", "10.2.0.11", "10.2.0.31", externalRanges[0], balancerRanges[0])
	c.nic(c.nodes[0].Namespace, "eth1", "10.2.0.21", "10.2.0.32")
	c.plug(c.nodes[1].Namespace, "eth0", "10.2.0.12", "10.2.0.41")
	for _, s := range []site{c.host, c.farHost} {
		s.n.SetSysctl("ipv4/conf/eth0/rp_filter", "2")
		c.address(s.n, "eth0", s.at)
		c.nodes[s.node-1].shell(t, "primary="+s.at[0].String()+"\n"+awsRules+connmark)
	}
	c.nodes[0].shell(t, `
		ip addr add 10.2.0.21/24 dev eth1
		ip route add 10.2.0.1 dev eth1 scope link table 2
		ip route add default via 10.2.0.1 dev eth1 table 2
		ip route del 10.2.0.0/24 dev eth1
		ip rule add from 10.2.0.21 lookup 2 priority 32765`)
	c.addAWSPod(c.pods[0], "eni1", "")
	c.addAWSPod(c.pods[1], "eni2", "2")
	c.addAWSPod(c.far, "eni3", "")
	return c
}

// addAWSPod connects a pod as the plugin does. What it sends takes a table of routes, "" is the main one.
func (c *cloudCluster) addAWSPod(p site, device, table string) {
	c.t.Helper()
	n := c.nodes[p.node-1]
	c.addCloudPod(p, device, awsGateway)
	for name, value := range map[string]string{"accept_ra": "0", "accept_redirects": "1", "forwarding": "0"} {
		n.SetSysctl("ipv6/conf/"+device+"/"+name, value)
	}
	for family, at := range p.at {
		if at.IsValid() {
			n.shell(c.t, fmt.Sprintf("ip %s rule add to %s lookup main priority 512", []string{"-4", "-6"}[family], at))
		}
	}
	if table != "" {
		n.shell(c.t, fmt.Sprintf("ip rule add from %s lookup %s priority 1536", p.at[0], table))
	}
}

// awsRules are those of a node with the address $primary, in the VPC 10.2.0.0/16.
const awsRules = `
	ip rule add fwmark 0x80/0x80 lookup main priority 1024
	i="iptables-nft -w"
	$i -t mangle -A PREROUTING -m comment --comment "AWS, primary ENI" -i eth0 -m addrtype --dst-type LOCAL --limit-iface-in -j CONNMARK --set-mark 0x80/0x80
	$i -t mangle -A PREROUTING -m comment --comment "AWS, primary ENI" -i eni+ -j CONNMARK --restore-mark --mask 0x80
	$i -t mangle -A PREROUTING -m comment --comment "AWS, primary ENI" -i vlan+ -j CONNMARK --restore-mark --mask 0x80
`

// awsSNAT are those by which what leaves the VPC has the address of the first card.
const awsSNAT = `
	$i -t nat -N AWS-SNAT-CHAIN-0
	$i -t nat -A POSTROUTING -m comment --comment "AWS SNAT CHAIN" -j AWS-SNAT-CHAIN-0
	$i -t nat -A AWS-SNAT-CHAIN-0 -d 10.2.0.0/16 -m comment --comment "AWS SNAT CHAIN" -j RETURN
	$i -t nat -A AWS-SNAT-CHAIN-0 ! -o vlan+ -m comment --comment "AWS, SNAT" -m addrtype ! --dst-type LOCAL -j SNAT --to-source $primary --random-fully
`

// awsConnmarks have it leave by the first card.
var awsConnmarks = []struct{ name, rules string }{
	{"iptables", awsSNAT + `
		$i -t nat -N AWS-CONNMARK-CHAIN-0
		$i -t nat -A PREROUTING -i eni+ -m comment --comment "AWS, outbound connections" -j AWS-CONNMARK-CHAIN-0
		$i -t nat -A AWS-CONNMARK-CHAIN-0 -d 10.2.0.0/16 -m comment --comment "AWS CONNMARK CHAIN" -j RETURN
		$i -t nat -A PREROUTING -m comment --comment "AWS, CONNMARK" -j CONNMARK --restore-mark --mask 0x80
		$i -t nat -A AWS-CONNMARK-CHAIN-0 -m comment --comment "AWS, CONNMARK" -j CONNMARK --set-xmark 0x80/0x80`},
	{"nftables", awsSNAT + `
		nft -f - <<'END'
		table ip aws-cni {
			chain snat-mark {
				counter ip daddr 10.2.0.0/16 return
				counter ct mark set ct mark | 0x80
			}
			chain nat-prerouting {
				type nat hook prerouting priority -90; policy accept;
				fib daddr type local return
				iifname "eni*" counter jump snat-mark
				counter ct mark & 0x80 != 0 meta mark set ct mark & 0x80
			}
		}
END`},
	{"external SNAT", ""}, // AWS_VPC_K8S_CNI_EXTERNALSNAT
}

// awsReplies keeps the replies of pods at the first card by the VPC CNI's own mark, which it gives to what comes to the
// node's own addresses: packets to Services have an endpoint's where netfilter sees them.
const awsReplies = `iptables-nft -w -t mangle -A PREROUTING -i eth0 -m conntrack --ctstate NEW -j CONNMARK --set-xmark 0x80/0x80`

// TestAWS: beside the AWS VPC CNI clients in the VPC, elsewhere, in pods and on the node reach endpoints behind both cards,
// on the node and on another one, by every frontend, no packet leaves by a card with an address that is not the card's, and what
// leaves the VPC has the first card's address, whether a Service led there or not. With the second card served, which is found by its address, or not.
func TestAWS(t *testing.T) {
	t.Parallel()
	for _, way := range awsConnmarks {
		for name, flags := range map[string][]string{
			"sockets": nil,
			"packets": {"--devices", "eth0", "--socket-lb", "host-namespace-only", "--pod-devices", "eni*"},
		} {
			t.Run(way.name+" "+name, func(t *testing.T) {
				t.Parallel()
				tier.Variant(t, way.name == "iptables" && name == "sockets" || way.name == "nftables" && name == "packets")
				c := newVPC(t, way.rules)
				c.nodes[0].shell(t, awsReplies)
				c.serve(flags...)
				if flags == nil {
					c.wantDevices([2]string{"eth0", "default route"}, [2]string{"eth1", "has address 10.2.0.21"})
				}
				c.check()
				c.checkSNAT(func(from site) addrs {
					if way.rules == "" {
						return from.at
					}
					return c.host.at
				})
			})
		}
	}
}

// TestAWSBranch: likewise with a pod that has a security group of its own, and so a card of its own without an address at the
// node, in both modes of POD_SECURITY_GROUP_ENFORCING_MODE. A veth stands for the VLAN's device. In mode strict the node reaches the pod
// by the network, so endpoints there do not see clients outside; behind kube-proxy neither.
func TestAWSBranch(t *testing.T) {
	t.Parallel()
	const card, device, table = "vlan.eth.1", "eni4", "101"
	for _, strict := range []bool{false, true} {
		for name, flags := range map[string][]string{"sockets": nil, "packets": {"--socket-lb", "host-namespace-only", "--pod-devices", "eni*"}} {
			t.Run(fmt.Sprintf("strict %t %s", strict, name), func(t *testing.T) {
				t.Parallel()
				tier.Variant(t, strict == (flags == nil))
				c := newVPC(t, awsConnmarks[0].rules, awsBranch)
				n, pod := c.nodes[0], &c.pods[2]
				n.shell(t, awsReplies)
				// Else the node takes what comes from the pod past the rules, and answers to itself do not come. AWS has the first.
				n.SetSysctl("ipv4/tcp_early_demux", "0")
				n.SetSysctl("ipv4/udp_early_demux", "0")
				c.plug(n.Namespace, card, awsBranch[0].String())
				n.shell(t, "ip route add 10.2.0.1 dev "+card+" scope link table 101; ip route add default via 10.2.0.1 dev "+card+" table 101")
				if strict {
					pod.beyond = true
					c.addCloudPod(*pod, device, awsGateway)
					n.shell(t, `
						ip rule add lookup local priority 20
						ip rule del lookup local priority 0
						ip route del 10.2.0.33 dev eni4
						ip route add 10.2.0.33 dev eni4 scope link table 101
						ip rule add iif vlan.eth.1 lookup 101 priority 10
						ip rule add iif eni4 lookup 101 priority 10`)
				} else {
					c.addAWSPod(*pod, device, table)
				}
				c.serve(flags...)
				c.wantDevices([2]string{"eth0", "default route"}, [2]string{"eth1", "has address 10.2.0.21"})
				c.check()
				c.checkSNAT(func(from site) addrs {
					if from.beyond {
						return from.at // by its own card
					}
					return c.host.at
				})
			})
		}
	}
}

// TestAWSIPv6: in a cluster of IPv6 all pods are behind the first card, and there are no rules of netfilter.
func TestAWSIPv6(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"sockets": nil, "packets": {"--socket-lb", "host-namespace-only", "--pod-devices", "eni*"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, name == "packets")
			pod := func(addr string) addrs { return addrs{1: netip.MustParseAddr(addr)} }
			c := newCloudCluster(t, []string{"6"}, pod("fd44:0:0:2::41"), pod("fd44:0:0:1::31"), pod("fd44:0:0:1::32"))
			c.plug(c.host.n, "eth0", "fd02::11", "fd44:0:0:1::/80", externalRanges[1], balancerRanges[1])
			c.plug(c.farHost.n, "eth0", "fd02::12", "fd44:0:0:2::/80")
			for _, s := range []site{c.host, c.farHost} {
				s.n.SetSysctl("ipv6/conf/eth0/accept_ra", "2")
				c.address(s.n, "eth0", s.at)
				run(t, s.n, "ip", "-6", "rule", "add", "fwmark", "0x80/0x80", "lookup", "main", "priority", "1024")
			}
			c.addAWSPod(c.pods[0], "eni1", "")
			c.addAWSPod(c.pods[1], "eni2", "")
			c.addAWSPod(c.far, "eni3", "")
			c.serve(flags...)
			c.wantDevices([2]string{"eth0", "default route"})
			c.check()
			c.checkSNAT(func(from site) addrs { return from.at })
		})
	}
}

// TestAWSAlone: without a rule of the administrator's, and the second card served, what the pods behind that answer to clients of
// Services leaves by the route for the Service's address.
func TestAWSAlone(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"sockets": nil, "packets": {"--socket-lb", "host-namespace-only", "--pod-devices", "eni*"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newVPC(t, awsConnmarks[0].rules)
			c.serve(flags...)
			c.check()
			c.checkSNAT(func(site) addrs { return c.host.at })
		})
	}
}
