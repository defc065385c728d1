package packets_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// bridged are settings of the plugin bridge, and of the kernel for bridges.
type bridged struct {
	name string
	// hairpin sends frames back by the port that they came in by (hairpinMode), promiscuous has the bridge take
	// all of them instead (promiscMode).
	hairpin, promiscuous bool
	// nf has netfilter see what passes a bridge (br_netfilter, bridge-nf-call-iptables).
	nf string
	// masquerade are its rules for what pods send out of their range (ipMasq).
	masquerade bool
}

// newBridged makes a cluster with the plugin bridge (containernetworking/plugins, plugins/main/bridge): pods of a node are ports
// of cni0 and reach each other without the node.
func newBridged(t *testing.T, b bridged) *cloudCluster {
	t.Helper()
	c := newCloudCluster(t, []string{"4", "6"}, parseAddrs("10.244.2.41", "fd44:0:0:2::41"),
		parseAddrs("10.244.1.31", "fd44:0:0:1::31"), parseAddrs("10.244.1.32", "fd44:0:0:1::32"))
	for i, s := range []site{c.host, c.farHost} {
		n := c.nodes[i]
		own := []string{s.at[0].String(), s.at[1].String(), podRangesOf(i + 1)[0].String(), podRangesOf(i + 1)[1].String()}
		if i == 0 {
			own = append(own, externalRanges[0], balancerRanges[0], externalRanges[1], balancerRanges[1])
		}
		c.plug(s.n, "eth0", own...)
		c.address(s.n, "eth0", s.at)
		n.AddLink(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0", HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 2, byte(i)}}})
		n.AddAddr("cni0", fmt.Sprintf("10.244.%d.1/24", i+1))
		n.AddAddr("cni0", fmt.Sprintf("fd44:0:0:%d::1/64", i+1))
		for _, family := range []string{"iptables", "ip6tables"} {
			n.SetSysctl("bridge/bridge-nf-call-"+family, b.nf)
		}
		if b.promiscuous {
			n.shell(t, "ip link set cni0 promisc on")
		}
	}
	for device, p := range map[string]site{"veth1": c.pods[0], "veth2": c.pods[1], "veth3": c.far} {
		n := c.nodes[p.node-1]
		n.AddDevice(device, p.n, "eth0")
		n.AddPort("cni0", device)
		if b.hairpin {
			n.shell(t, "ip link set "+device+" type bridge_slave hairpin on")
		}
		for family, at := range p.at {
			gateway := []string{"10.244.%d.1", "fd44:0:0:%d::1"}[family]
			p.n.AddAddr("eth0", netip.PrefixFrom(at, []int{24, 64}[family]).String())
			p.n.AddDefaultRoute(fmt.Sprintf(gateway, p.node))
			if b.masquerade && p.node == 1 {
				n.shell(t, fmt.Sprintf(`i="%[1]s -w -t nat"
					$i -N CNI-%[2]s
					$i -A CNI-%[2]s -d %[3]s -j ACCEPT
					$i -A CNI-%[2]s ! -d %[4]s -j MASQUERADE
					$i -A POSTROUTING -s %[5]s -j CNI-%[2]s`,
					[]string{"iptables-nft", "ip6tables-nft"}[family], device, podRangesOf(1)[family], []string{"224.0.0.0/4", "ff00::/8"}[family], at))
			}
		}
	}
	return c
}

// TestBridgePlugin: pods that are ports of a bridge, and answer each other past the node, are served whatever the bridge does
// with frames for the port that they come from, and whether netfilter sees them or not.
func TestBridgePlugin(t *testing.T) {
	t.Parallel()
	lab.Need(t, "ip6tables-nft")
	for _, b := range []bridged{
		{name: "plain", nf: "0"},
		{name: "netfilter", nf: "1", masquerade: true},
		{name: "hairpin", nf: "1", hairpin: true},
		{name: "hairpin without netfilter", nf: "0", hairpin: true},
		{name: "promiscuous", nf: "1", promiscuous: true, masquerade: true},
	} {
		for name, flags := range map[string][]string{"sockets": nil, "packets": podFlags} {
			t.Run(b.name+" "+name, func(t *testing.T) {
				t.Parallel()
				tier.Variant(t, b.promiscuous && flags == nil || b.name == "netfilter" && flags != nil)
				c := newBridged(t, b)
				c.serve(flags...)
				c.wantDevices([2]string{"eth0", "default route"})
				c.check()
				c.checkSNAT(func(from site) addrs {
					if b.masquerade {
						return c.host.at
					}
					return from.at
				})
			})
		}
	}
}
