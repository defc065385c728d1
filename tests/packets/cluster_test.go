package packets_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/tests/lab"
)

// The ranges of a cluster. Those of frontends lead from the client to node 1.
var (
	podRanges      = []string{"10.244.0.0/16", "fd44::/48"}
	serviceRanges  = []string{"10.96.0.0/16", "fd96::/112"}
	externalRanges = []string{"198.51.100.0/24", "fd98::/112"}
	balancerRanges = []string{"203.0.113.0/24", "fd97::/112"}
)

// The names of a node's devices.
const (
	uplink  = "uplink"
	overlay = "overlay"
)

// addrs is an address of each family: IPv4, IPv6.
type addrs [2]netip.Addr

func parseAddrs(v4, v6 string) addrs {
	return addrs{netip.MustParseAddr(v4), netip.MustParseAddr(v6)}
}

// of returns the address of the family of network, such as "tcp6".
func (a addrs) of(network string) netip.Addr {
	if network[3] == '6' {
		return a[1]
	}
	return a[0]
}

var (
	clientAddrs = parseAddrs("10.1.0.2", "fd01::2")
	// otherClientAddrs are those of a second machine beside the client.
	otherClientAddrs = parseAddrs("10.1.0.3", "fd01::3")
)

func nodeAddrs(i int) addrs {
	return parseAddrs(fmt.Sprintf("10.2.0.1%d", i), fmt.Sprintf("fd02::1%d", i))
}

func overlayAddrs(i int) addrs {
	return parseAddrs(fmt.Sprintf("10.243.0.%d", i), fmt.Sprintf("fd43::%d", i))
}

// podRangesOf returns the ranges of a node's pods.
func podRangesOf(i int) [2]netip.Prefix {
	return [2]netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i)),
		netip.MustParsePrefix(fmt.Sprintf("fd44:0:0:%d::/64", i)),
	}
}

// cluster is two nodes, or more, and two clients, each behind its own side of a router:
//
//	client ──┐          ┌── node1 ── pods
//	         router ────┤
//	other ───┘          └── node2 ── pods
type cluster struct {
	router, client, other *lab.Namespace
	nodes                 []*node
	overlay               bool
	agents                []*agent // of the nodes
	direct                bool     // backends on the other node answer the client themselves
}

// node is a host with a pod behind a routed veth device, one behind a bridge, and
// perhaps a tunnel to the other node.
type node struct {
	*lab.Host
	index           int
	routed, bridged *lab.Namespace
	listed          []netip.Addr    // the addresses in its Node object
	podCIDRs        [2]netip.Prefix // those in its Node object, unless not valid
}

func (n *node) name() string { return fmt.Sprintf("node%d", n.index) }

// routedAddrs and bridgedAddrs are those of the node's pods.
func (n *node) routedAddrs() addrs {
	return parseAddrs(fmt.Sprintf("10.244.%d.10", n.index), fmt.Sprintf("fd44:0:0:%d::10", n.index))
}

func (n *node) bridgedAddrs() addrs {
	return parseAddrs(fmt.Sprintf("10.244.%d.130", n.index), fmt.Sprintf("fd44:0:0:%d:1::10", n.index))
}

// snat returns where packets of node 1 to a backend on node 2 come from.
func (c *cluster) snat(hostNetwork bool) addrs {
	if c.overlay && !hostNetwork {
		return overlayAddrs(1)
	}
	return nodeAddrs(1)
}

// newCluster makes a cluster without agents. With an overlay, packets to the other
// node's pods go through a tunnel.
func newCluster(t *testing.T, withOverlay bool) *cluster {
	t.Helper()
	return newClusterOf(t, 2, withOverlay)
}

// newClusterOf makes a cluster of some nodes, which is two when there is an overlay.
func newClusterOf(t *testing.T, nodes int, withOverlay bool) *cluster {
	t.Helper()
	c := &cluster{router: lab.NewNamespace(t), client: lab.NewNamespace(t), other: lab.NewNamespace(t), overlay: withOverlay}
	withoutDAD(c.router, c.client, c.other)
	forward(c.router)
	c.router.AddLink(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "clients"}})
	c.router.AddLink(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "nodes"}})
	addAddrs(c.router, "clients", parseAddrs("10.1.0.1", "fd01::1"))
	addAddrs(c.router, "nodes", parseAddrs("10.2.0.1", "fd02::1"))
	c.plug(c.client, "clients", "client", clientAddrs)
	c.plug(c.other, "clients", "other", otherClientAddrs)
	c.nodes = make([]*node, nodes)
	for i := range c.nodes {
		c.nodes[i] = newNode(t, i+1)
		c.plug(c.nodes[i].Namespace, "nodes", c.nodes[i].name(), nodeAddrs(i+1))
	}
	for _, n := range c.nodes {
		for _, other := range c.nodes {
			if n != other {
				n.connect(other.index, withOverlay)
			}
		}
	}
	for i := range c.nodes {
		for family, r := range podRangesOf(i + 1) {
			c.router.AddRoute(r, nodeAddrs(i + 1)[family], "nodes")
		}
	}
	for _, ranges := range [][]string{serviceRanges, externalRanges, balancerRanges} {
		for family, r := range ranges {
			c.router.AddRoute(netip.MustParsePrefix(r), nodeAddrs(1)[family], "nodes")
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			c.logLosses()
		}
	})
	return c
}

// plug connects a machine to a network of the router, which is its route to all
// others.
func (c *cluster) plug(n *lab.Namespace, network, port string, a addrs) {
	c.router.AddDevice(port, n, uplink)
	c.router.AddPort(network, port)
	addAddrs(n, uplink, a)
	for _, gateway := range map[string][]string{
		"clients": {"10.1.0.1", "fd01::1"},
		"nodes":   {"10.2.0.1", "fd02::1"},
	}[network] {
		n.AddDefaultRoute(gateway)
	}
}

func addAddrs(n *lab.Namespace, device string, a addrs) {
	n.AddAddr(device, a[0].String()+"/24")
	n.AddAddr(device, a[1].String()+"/64")
}

// withoutDAD lets IPv6 addresses of devices to come serve at once.
func withoutDAD(namespaces ...*lab.Namespace) {
	for _, n := range namespaces {
		n.SetSysctl("ipv6/conf/default/accept_dad", "0")
	}
}

// forward makes a namespace a router, which is strict about where packets come
// from.
func forward(n *lab.Namespace) {
	n.SetSysctl("ipv4/ip_forward", "1")
	n.SetSysctl("ipv6/conf/all/forwarding", "1")
	n.SetSysctl("ipv4/conf/all/rp_filter", "1")
}

func newNode(t *testing.T, index int) *node {
	t.Helper()
	known := nodeAddrs(index)
	n := &node{Host: lab.NewNode(t), index: index, listed: known[:]}
	forward(n.Namespace)
	n.routed, n.bridged = n.NewBarePod(), n.NewBarePod()
	withoutDAD(n.Namespace, n.routed, n.bridged)
	n.AddDevice("vethrouted", n.routed, "eth0")
	n.addPod(n.routed, "vethrouted", parseAddrs(fmt.Sprintf("10.244.%d.1", index), fmt.Sprintf("fd44:0:0:%d::1", index)), n.routedAddrs())
	// Of several pods' devices a bridge has the MAC address of one at most.
	n.AddLink(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0", HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 1, byte(index)}}})
	n.AddDevice("vethbridged", n.bridged, "eth0")
	n.AddPort("cni0", "vethbridged")
	n.addPod(n.bridged, "cni0", parseAddrs(fmt.Sprintf("10.244.%d.129", index), fmt.Sprintf("fd44:0:0:%d:1::1", index)), n.bridgedAddrs())
	return n
}

// addPod gives a pod its addresses and routes, by a gateway at a device of the
// node.
func (n *node) addPod(pod *lab.Namespace, device string, gateway, a addrs) {
	for family, addr := range a {
		host := netip.PrefixFrom(addr, addr.BitLen())
		link := netip.PrefixFrom(gateway[family], addr.BitLen())
		n.AddAddr(device, link.String())
		n.AddRoute(host, netip.Addr{}, device)
		pod.AddAddr("eth0", host.String())
		pod.AddRoute(link, netip.Addr{}, "eth0")
		pod.AddDefaultRoute(gateway[family].String())
	}
}

// connect makes the routes to the other node's pods.
func (n *node) connect(other int, withOverlay bool) {
	via, device := nodeAddrs(other), uplink
	if withOverlay {
		n.AddLink(&netlink.Vxlan{
			LinkAttrs: netlink.LinkAttrs{Name: overlay, MTU: 1450},
			VxlanId:   1,
			Port:      4789,
			SrcAddr:   nodeAddrs(n.index)[0].AsSlice(),
			Group:     nodeAddrs(other)[0].AsSlice(),
			Learning:  true,
		})
		addAddrs(n.Namespace, overlay, overlayAddrs(n.index))
		via, device = overlayAddrs(other), overlay
	}
	for family, r := range podRangesOf(other) {
		n.AddRoute(r, via[family], device)
	}
}

// logLosses logs what the kernel of each namespace counts as lost.
func (c *cluster) logLosses() {
	for i, name := range c.names() {
		c.namespaces()[i].LogLosses(name)
	}
}

// names are those of the namespaces.
func (c *cluster) names() []string {
	all := []string{"router", "client", "other client"}
	for _, n := range c.nodes {
		all = append(all, n.name(), n.name()+"/routed", n.name()+"/bridged")
	}
	return all
}

// namespaces lists all of the cluster.
func (c *cluster) namespaces() []*lab.Namespace {
	all := []*lab.Namespace{c.router, c.client, c.other}
	for _, n := range c.nodes {
		all = append(all, n.Namespace, n.routed, n.bridged)
	}
	return all
}
