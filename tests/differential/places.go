package differential

import (
	"fmt"
	"net/netip"
)

// addrs is an address of each family: IPv4, IPv6.
type addrs [2]netip.Addr

func parse(v4, v6 string) addrs { return addrs{netip.MustParseAddr(v4), netip.MustParseAddr(v6)} }

// The names of the node that proxies serve, and of the other one.
const (
	nodeName  = "node-1"
	otherName = "node-2"
)

// Ranges of the cluster. The pod ranges are those of the node alone, so that a proxy which
// goes by the device and one which goes by the address take the same clients for pods.
var (
	podRanges     = []string{"10.244.1.0/24", "fd44:0:0:1::/64"}
	serviceRanges = []string{"10.96.0.0/16", "fd96::/112"}
)

// The addresses of machines and pods.
var (
	nodeAddrs    = parse("10.2.0.11", "fd02::11")
	gatewayAddrs = parse("10.2.0.1", "fd02::1") // of the node
	otherAddrs   = parse("10.3.0.2", "fd03::2")
	otherGateway = parse("10.3.0.1", "fd03::1")
	podGateway   = parse("10.244.1.1", "fd44:0:0:1::1")
	hairpinAddrs = parse("192.0.0.8", "100:0:0:1::8")
	podAddrs     = [2]addrs{
		parse("10.244.1.10", "fd44:0:0:1::10"),
		parse("10.244.1.20", "fd44:0:0:1::20"),
	}
	otherPods = [3]addrs{
		parse("10.244.2.10", "fd44:0:0:2::10"),
		parse("10.244.2.20", "fd44:0:0:2::20"),
		parse("10.244.2.30", "fd44:0:0:2::30"),
	}
	// extraAddrs come and go at the node's uplink.
	extraAddrs = [2]addrs{parse("10.2.0.21", "fd02::21"), parse("10.2.0.22", "fd02::22")}
)

// The addresses of Services.
func clusterIP(i int) addrs {
	return parse(fmt.Sprintf("10.96.0.%d", 10+i), fmt.Sprintf("fd96::%x", 0x10+i))
}

func externalIP(i int) addrs {
	return parse(fmt.Sprintf("198.51.100.%d", 1+i), fmt.Sprintf("fd98::%x", 1+i))
}

func balancerIP(i int) addrs {
	return parse(fmt.Sprintf("203.0.113.%d", 1+i), fmt.Sprintf("fd97::%x", 1+i))
}

// localBalancer is the load-balancer IP that the node has at a device, as in some clouds.
const localBalancer = 0

// clientsOfGroup is how many addresses each group of clients outside has.
const clientsOfGroup = 48

// Groups of clients outside, by their ranges.
var outsideGroups = [2][2]string{{"10.1.0.0/25", "fd01::/112"}, {"10.1.0.128/25", "fd01::1:0/112"}}

// outsideAddrs returns an address of a client.
func outsideAddrs(group, i int) addrs {
	return parse(fmt.Sprintf("10.1.0.%d", 128*group+2+i), fmt.Sprintf("fd01::%x:%x", group, 2+i))
}

// place is where an endpoint may be.
type place struct {
	addrs
	node string
}

var places = []place{
	{podAddrs[0], nodeName},
	{podAddrs[1], nodeName},
	{nodeAddrs, nodeName},
	{otherPods[0], otherName},
	{otherPods[1], otherName},
	{otherPods[2], otherName},
	{otherAddrs, otherName},
}

// targetPorts are those that servers have at each place, TCP and UDP.
var targetPorts = []uint16{8080, 8081}
