package packets_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// gatewayDevice is a network of pods in which one device of the node leads to the pods of all nodes. A namespace
// for each node stands for Open vSwitch behind it.
type gatewayDevice struct {
	name, device string
	// at is the device's address on a node, with its network's length; gateway is the next hop to pods of other nodes,
	// and own that to pods of the node, "" where they are on the device's network. %d is the number of the node.
	at, gateway, own [2]string
	// rules are of netfilter, on the node with the number $node.
	rules string
	route string // by which the device is chosen
}

// Of Antrea in mode encap (antrea, pkg/agent/route/route_linux.go) and of Kube-OVN with distributed gateways (kube-ovn, pkg/daemon). Kube-OVN's
// sets are written as the ranges in them.
var gatewayDevices = []gatewayDevice{
	{
		name: "Antrea", device: "antrea-gw0",
		at:      [2]string{"10.244.%d.1/24", "fd44:0:0:%d::1/64"},
		gateway: [2]string{"10.244.%d.1", "fd44:0:0:%d::1"},
		route:   "route to pods in 10.244.2.0/24",
		rules: `for i in "iptables-nft 10.244.$node.0/24 10.244.0.0/16" "ip6tables-nft fd44:0:0:$node::/64 fd44::/48"; do
			set -- $i
			$1 -w -t nat -N ANTREA-POSTROUTING
			$1 -w -t nat -A POSTROUTING -j ANTREA-POSTROUTING
			$1 -w -t nat -A ANTREA-POSTROUTING -s $2 ! -d $3 ! -o antrea-gw0 -j MASQUERADE
			$1 -w -t nat -A ANTREA-POSTROUTING -o antrea-gw0 -m addrtype ! --src-type LOCAL --limit-iface-out -m addrtype --src-type LOCAL -j MASQUERADE --random-fully
		done`,
	},
	{
		name: "Kube-OVN", device: "ovn0",
		at:      [2]string{"100.64.0.1%d/16", "fd64::1%d/64"},
		gateway: [2]string{"100.64.0.1", "fd64::1"},
		own:     [2]string{"100.64.0.1", "fd64::1"},
		route:   "route to pods in 10.244.0.0/16",
		rules: `for i in "iptables-nft 10.244.0.0/16,100.64.0.0/16 10.244.0.0/16 100.64.0.0/16 10.2.0.1$((3-node)) 10.96.0.0/16" "ip6tables-nft fd44::/48,fd64::/64 fd44::/48 fd64::/64 fd02::1$((3-node)) fd96::/112"; do
			set -- $i
			n="$1 -w -t nat"
			$n -N OVN-PREROUTING
			$n -A PREROUTING -j OVN-PREROUTING
			$n -A OVN-PREROUTING -i ovn0 -s $2 -d $6 -j MARK --set-xmark 0x4000/0x4000
			$n -N OVN-MASQUERADE
			$n -A OVN-MASQUERADE -j MARK --set-xmark 0x0/0xffffffff
			$n -A OVN-MASQUERADE -j MASQUERADE
			$n -N OVN-POSTROUTING
			$n -A POSTROUTING -j OVN-POSTROUTING
			$n -A OVN-POSTROUTING -m mark --mark 0x4000/0x4000 -j OVN-MASQUERADE
			$n -A OVN-POSTROUTING -s $2 -d $2 -j OVN-MASQUERADE
			$n -A OVN-POSTROUTING -p tcp -m tcp --tcp-flags SYN NONE -m conntrack --ctstate NEW -j RETURN
			for other in $3 $4 $5; do $n -A OVN-POSTROUTING -s $other -d $3 -j ACCEPT; done # not others
			$n -A OVN-POSTROUTING -d $3 -j RETURN
			$n -A OVN-POSTROUTING -s $3 -j OVN-MASQUERADE
			$1 -w -A FORWARD -s $2 -j ACCEPT
			$1 -w -A FORWARD -d $2 -j ACCEPT
		done`,
	},
}

// addrs are those of the device on a node.
func (g gatewayDevice) addrs(node int) (at addrs) {
	for family, cidr := range g.at {
		at[family] = netip.MustParsePrefix(fmt.Sprintf(cidr, node)).Addr()
	}
	return at
}

func newGatewayDevice(t *testing.T, g gatewayDevice) *cloudCluster {
	t.Helper()
	c := newCloudCluster(t, []string{"4", "6"}, parseAddrs("10.244.2.41", "fd44:0:0:2::41"),
		parseAddrs("10.244.1.31", "fd44:0:0:1::31"), parseAddrs("10.244.1.32", "fd44:0:0:1::32"))
	var switches [2]*lab.Namespace
	for i, s := range []site{c.host, c.farHost} {
		own := []string{s.at[0].String(), s.at[1].String()}
		if i == 0 {
			own = append(own, externalRanges[0], balancerRanges[0], externalRanges[1], balancerRanges[1])
		}
		c.plug(s.n, "eth0", own...)
		c.address(s.n, "eth0", s.at)
		switches[i] = lab.NewNamespace(t)
		withoutDAD(switches[i])
		forward(switches[i])
		switches[i].SetSysctl("ipv4/conf/all/rp_filter", "0")
	}
	switches[0].AddDevice("tunnel", switches[1], "tunnel")
	for i, n := range c.nodes {
		g.connect(t, n, switches[i])
		n.shell(t, fmt.Sprintf("node=%d\n", i+1)+g.rules)
	}
	for i, p := range append(c.pods, c.far) {
		// At the switch, by a gateway that the pod takes for the node.
		sw, device := switches[p.node-1], fmt.Sprintf("pod%d", i)
		sw.AddDevice(device, p.n, "eth0")
		for family, flag := range []string{"-4", "-6"} {
			gateway := parseAddrs("169.254.1.1", "fe80::1")[family].String()
			p.n.AddAddr("eth0", fmt.Sprintf("%s/%d", p.at[family], p.at[family].BitLen()))
			run(t, p.n, "sh", "-euc", fmt.Sprintf("ip %[1]s neigh add %[2]s lladdr %[3]s dev eth0; ip %[1]s route add %[2]s dev eth0; ip %[1]s route add default via %[2]s dev eth0",
				flag, gateway, macOf(t, sw, device)))
			run(t, sw, "sh", "-euc", fmt.Sprintf("ip %[1]s route add %[2]s dev %[3]s; ip %[1]s neigh add %[2]s lladdr %[4]s dev %[3]s",
				flag, p.at[family], device, macOf(t, p.n, "eth0")))
		}
		if i < len(c.pods) {
			c.pods[i].shared = true
		}
	}
	c.podSNAT, c.farClient = g.addrs(1), c.farHost.at
	return c
}

// connect makes the device of a node, and the switch behind it.
func (g gatewayDevice) connect(t *testing.T, n *node, sw *lab.Namespace) {
	t.Helper()
	other := 3 - n.index
	n.AddDevice(g.device, sw, "gw")
	n.SetSysctl("ipv4/conf/"+g.device+"/arp_announce", "1")
	here, there := macOf(t, n.Namespace, g.device), macOf(t, sw, "gw")
	for family, flag := range []string{"-4", "-6"} {
		at := fmt.Sprintf(g.at[family], n.index)
		far := podRangesOf(other)[family].String()
		gateway := g.gateway[family]
		script := fmt.Sprintf("ip %s addr add %s dev %s nodad\n", flag, at, g.device)
		if g.own[family] == "" {
			gateway = fmt.Sprintf(gateway, other)
			// All addresses of the network are behind one MAC address.
			for _, pod := range []string{"31", "32", "41"} {
				script += fmt.Sprintf("ip %s neigh add %s lladdr %s dev %s\n", flag, []string{
					fmt.Sprintf("10.244.%d.%s", n.index, pod), fmt.Sprintf("fd44:0:0:%d::%s", n.index, pod)}[family], there, g.device)
			}
		} else {
			far = podRanges[family]
		}
		script += fmt.Sprintf("ip %[1]s neigh add %[2]s lladdr %[3]s dev %[4]s; ip %[1]s route add %[5]s via %[2]s dev %[4]s onlink\n",
			flag, gateway, there, g.device, far)
		n.shell(t, script)
		// The switch knows the node by its own address, and the other one behind the tunnel.
		own, away := g.addrs(n.index)[family].String(), g.addrs(other)[family].String()
		hop := parseAddrs(fmt.Sprintf("169.254.2.%d", other), fmt.Sprintf("fe80::2:%d", other))[family].String()
		self := parseAddrs(fmt.Sprintf("169.254.2.%d", n.index), fmt.Sprintf("fe80::2:%d", n.index))[family].String()
		run(t, sw, "sh", "-euc", fmt.Sprintf(`
			ip %[1]s addr add %[2]s/%[8]d dev tunnel nodad
			ip %[1]s neigh add %[3]s lladdr %[4]s dev gw
			ip %[1]s route add %[3]s dev gw
			ip %[1]s route add default via %[3]s dev gw onlink
			ip %[1]s route add %[5]s via %[6]s dev tunnel onlink
			ip %[1]s route add %[7]s via %[6]s dev tunnel onlink`,
			flag, self, own, here, podRangesOf(other)[family], hop, away, []int{24, 64}[family]))
	}
}

// TestGatewayDevice: where one device leads to the pods of this node and of others, endpoints behind it are reached, and see
// clients outside where the policy is Local. With the policy Cluster they see the device's address, as those of other nodes do.
func TestGatewayDevice(t *testing.T) {
	t.Parallel()
	lab.Need(t, "ip6tables-nft")
	for _, g := range gatewayDevices {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, g.name == "Antrea")
			c := newGatewayDevice(t, g)
			c.serve("--cluster-cidr", podRanges[0]+","+podRanges[1])
			c.wantDevices([2]string{"eth0", "default route"}, [2]string{g.device, g.route})
			c.check()
			c.checkSNAT(func(site) addrs { return c.host.at })
		})
	}
}
