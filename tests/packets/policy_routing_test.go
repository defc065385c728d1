package packets_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// vpn is a device of node 1 without Ethernet, as one of WireGuard.
const vpn = "vpn0"

func vpnAddrs() addrs { return parseAddrs("10.4.0.11", "fd04::11") }

// routing is what node 1 has beside the main table of routes. In its lines UPLINK and UPLINK2 stand for
// the node's address at that device, GW and GW2 for the gateway there, PODS, PODS2 and CLIENTS for the ranges
// of all pods, of node 2's and of clients, OTHER for the other client, SERVICES, EXTERNALS and BALANCERS for the
// ranges of frontends, POD for each pod of node 1, all of the line's family.
type routing struct {
	name string
	// lines are arguments of ip.
	lines []string
	// marks keep replies of pods at the device that the request came in by: the configuration's
	// documentation has the same rules.
	marks bool
	// strict routers let nobody send from addresses of another uplink, and know no pods.
	strict bool
	// far is the device by which pods of node 2 are reached; their endpoints see its address.
	far string
	// reached are the devices at whose addresses clients ask for NodePorts.
	reached []string
	// variant are rules for which others stand, see [tier.Variant].
	variant bool
}

var routings = []routing{
	{
		name: "egress gateway",
		lines: []string{
			"rule add from PODS to PODS lookup main priority 100",
			"rule add from PODS lookup 100 priority 101",
			"route add default via GW2 dev uplink2 table 100",
		},
		far: uplink, reached: []string{uplink}, variant: true,
	},
	{
		name: "egress gateway, replies by the uplink",
		lines: []string{
			"rule add from PODS to PODS lookup main priority 100",
			"rule add from PODS lookup 100 priority 101",
			"route add default via GW2 dev uplink2 table 100",
			"rule add fwmark 1 lookup main priority 50",
		},
		marks: true, strict: true, far: uplink, reached: []string{uplink}, variant: true,
	},
	{
		name: "addresses of pods at a second interface",
		lines: []string{
			"rule add to POD lookup main priority 512",
			"rule add fwmark 1 lookup main priority 1024",
			"rule add from POD to PODS lookup main priority 1535",
			"rule add from POD lookup 2 priority 1536",
			"route add default via GW2 dev uplink2 table 2",
		},
		marks: true, strict: true, far: uplink, reached: []string{uplink},
	},
	{
		name: "VPN",
		lines: []string{
			"rule add lookup main suppress_prefixlength 0 priority 200",
			"rule add not fwmark 0xca6c lookup 51820 priority 201",
			"route add default dev vpn0 table 51820",
		},
		far: uplink, reached: []string{uplink},
	},
	{
		name: "VPN, replies by the uplink",
		lines: []string{
			"rule add fwmark 1 lookup main priority 50",
			"rule add from UPLINK lookup main priority 51",
			"rule add from BALANCERS lookup main priority 52",
			"rule add from EXTERNALS lookup main priority 53",
			"rule add from SERVICES lookup main priority 54",
			"rule add lookup main suppress_prefixlength 0 priority 200",
			"rule add not fwmark 0xca6c lookup 51820 priority 201",
			"route add default dev vpn0 table 51820",
		},
		marks: true, strict: true, far: uplink, reached: []string{uplink}, variant: true,
	},
	{
		name: "a range of destinations",
		lines: []string{
			"rule add to PODS2 lookup 100 priority 100",
			"route add default via GW2 dev uplink2 table 100",
		},
		far: otherUplink, reached: []string{uplink, otherUplink},
	},
	{
		name: "a range of clients",
		lines: []string{
			"rule add from CLIENTS to PODS2 lookup 100 priority 100",
			"route add default via GW2 dev uplink2 table 100",
		},
		far: otherUplink, reached: []string{uplink}, variant: true, // no pod is such a client
	},
	{
		name: "uplinks with tables of their own",
		lines: []string{
			"rule add fwmark 1 lookup 101 priority 50",
			"rule add fwmark 2 lookup 100 priority 51",
			"rule add from UPLINK2 lookup 100 priority 100",
			"rule add from UPLINK lookup 101 priority 101",
			"route add default via GW2 dev uplink2 table 100",
			"route add default via GW dev uplink table 101",
		},
		marks: true, strict: true, far: uplink, reached: []string{uplink, otherUplink},
	},
}

// routedSets are the endpoints of Services; the i-th set is of Service i+1.
var routedSets = []struct {
	policy string
	at     endpoint
}{
	{"Cluster", local},
	{"Cluster", otherLocal},
	{"Cluster", remote},
	{"Local", local},
	{"Local", otherLocal},
}

// routedServices are the Services of routedSets.
func (c *cluster) routedServices() (manifests []string) {
	for i, set := range routedSets {
		manifests = append(manifests, c.service(i+1, fmt.Sprintf("routed-%d", i+1),
			"externalTrafficPolicy: "+set.policy+",", []endpoint{set.at})...)
	}
	return manifests
}

// TestPolicyRouting: with rules that select another table of routes, as of an egress gateway, of pods with addresses
// at a second interface, a VPN or a host with several uplinks, a client outside reaches endpoints on both nodes, at
// each address of the node, and is answered; and so does a pod.
func TestPolicyRouting(t *testing.T) {
	t.Parallel()
	lab.Need(t, "nft")
	for _, r := range routings {
		for _, mode := range []string{"off", "native"} {
			t.Run(r.name+", XDP "+mode, func(t *testing.T) {
				t.Parallel()
				tier.Variant(t, mode == "off" && r.strict && !r.variant)
				c := newClusterFor(t, mode)
				c.addUplink(mode != "off")
				c.addVPN()
				c.route(t, r)
				c.serve(t, c.routedServices(), "--xdp", mode, "--devices", uplink+","+otherUplink+","+vpn)
				c.checkRouted(t, r)
				for _, pod := range []endpoint{local, otherLocal} {
					c.checkRoutedPod(t, pod)
				}
			})
		}
	}
}

// TestPolicyRoutingOfPackets: the same for a pod's packets. make test has a set of rules in one of the two tests at most.
func TestPolicyRoutingOfPackets(t *testing.T) {
	t.Parallel()
	lab.Need(t, "nft")
	for _, r := range routings {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, !r.strict && !r.variant)
			c := newCluster(t, false)
			c.addUplink(false)
			c.addVPN()
			c.route(t, r)
			c.serve(t, c.routedServices(), append([]string{"--devices", uplink + "," + otherUplink + "," + vpn}, podFlags...)...)
			for _, pod := range []endpoint{local, otherLocal} {
				c.checkRoutedPod(t, pod)
			}
		})
	}
}

// TestPolicyRoutingByClient: a rule for the address of one client chooses the gateway of its packets to an endpoint
// on another node, and of no other client's, however they take turns.
func TestPolicyRoutingByClient(t *testing.T) {
	t.Parallel()
	lab.Need(t, "nft")
	c := newCluster(t, false)
	c.route(t, routing{lines: []string{
		"rule add iif uplink from OTHER to PODS2 lookup 100 priority 100",
		"route add default via GW dev uplink table 100",
	}})
	// Packets of others go straight to node 2, and have a hop more to live there.
	run(t, c.nodes[1].Namespace, "nft", `table inet ways {
	counter long { }
	counter short { }
	chain late {
		meta l4proto udp udp length > 200 counter name long return
		counter name short
	}
	chain prerouting {
		type filter hook prerouting priority filter
		iifname "uplink" ip ttl < 62 jump late
		iifname "uplink" ip6 hoplimit < 62 jump late
	}
}`)
	c.serve(t, c.service(1, "far", "", []endpoint{remote}))
	for _, network := range networks {
		by, to := "udp"+network[3:], nodePort(network, 1)
		for from, gateway := range map[netip.Addr]netip.Addr{
			otherClientAddrs.of(network): parseAddrs("10.2.0.1", "fd02::1").of(network), clientAddrs.of(network): nodeAddrs(2).of(network),
		} {
			said := c.explainNode(t, inspect.ExplainOptions{From: from.String(), To: to, Protocol: model.TCP})
			if said.Path == nil || said.Path.Gateway != gateway || said.Path.Device != uplink {
				t.Errorf("%s of %s is explained as by %+v, want the gateway %s", network, from, said.Path, gateway)
			}
		}
		s, _ := connect(t, c.client, network, to)
		other, _ := connect(t, c.other, by, nodePort(by, 1))
		long, short := wayPackets(t, c.nodes[1].Namespace, "long"), wayPackets(t, c.nodes[1].Namespace, "short")
		const turns = 50
		for range turns {
			if _, err := other.Ask(longPayload); err != nil {
				t.Fatalf("%s of the client with a rule: %v", by, err)
			}
			if _, err := s.Ask("short"); err != nil {
				t.Fatalf("%s of the client without: %v", network, err)
			}
		}
		if n := wayPackets(t, c.nodes[1].Namespace, "long") - long; n < turns {
			t.Errorf("%s: %d of %d datagrams went by the rule's gateway", by, n, turns)
		}
		if n := wayPackets(t, c.nodes[1].Namespace, "short") - short; n != 0 {
			t.Errorf("%s of the client without a rule: %d packets went by the gateway of the other one's", network, n)
		}
		got, err := ask(c.other, network, to, "x")
		if err != nil || got.client.Addr() != nodeAddrs(1).of(network) {
			t.Errorf("%s of the client with a rule: the endpoint has seen %s, %v", network, got.client, err)
		}
	}
}

// TestPolicyRoutingByClientsDevice: a rule for the address of one client chooses the device of its packets to an endpoint
// on another node, and of no other client's, in whatever order flows of both begin.
func TestPolicyRoutingByClientsDevice(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	c.addUplink(false)
	c.serve(t, c.service(1, "far", "", []endpoint{remote}), "--devices", uplink+","+otherUplink)
	// While the agent runs, which has to see it.
	c.route(t, routing{lines: []string{
		"rule add from OTHER to PODS2 lookup 100 priority 100",
		"route add default via GW2 dev uplink2 table 100",
	}})
	for _, network := range networks {
		lab.Eventually(t, network+" of the client with a rule goes by the other uplink", func() bool {
			got, err := ask(c.other, network, nodePort(network, 1), "x")
			if err != nil {
				t.Fatal(err)
			}
			return got.client.Addr() == otherUplinkAddrs().of(network)
		})
	}
	lab.Eventually(t, "the agent has seen the rule", func() bool { return routesByClient(t, c.nodes[0]) })
	for _, network := range networks {
		for by, wrong := range c.beginInTurns(t, network, 100) {
			if wrong > 0 {
				t.Errorf("%s: %d of 100 flows of the client %s left by the other's device", network, wrong, by)
			}
		}
	}
}

// routesByClient reports whether the node's programs look up the route for each new flow.
func routesByClient(t *testing.T, n *node) bool {
	t.Helper()
	var tracking struct{ NoneUntil, NoRulesUntil uint32 }
	if err := pinned(t, n.BPFFS, "bl_tracking").Lookup(uint32(0), &tracking); err != nil {
		t.Fatal(err)
	}
	return tracking.NoRulesUntil == 0
}

// beginInTurns begins flows of both clients, one of each in turn and without a pause. It returns of how many each time the
// endpoint has seen the address of another device than [TestPolicyRoutingByClientsDevice] wants.
func (c *cluster) beginInTurns(t *testing.T, network string, flows int) map[string]int {
	t.Helper()
	clients := []struct {
		name string
		at   *lab.Namespace
		want netip.Addr
	}{
		{"without a rule", c.client, nodeAddrs(1).of(network)},
		{"with a rule", c.other, otherUplinkAddrs().of(network)},
	}
	sockets := make([][]*lab.Socket, len(clients))
	for i, client := range clients {
		for range flows {
			sockets[i] = append(sockets[i], client.at.Socket(network))
		}
	}
	for at := range flows {
		for i := range clients {
			s := sockets[i][at]
			err := s.StartConnect(nodePort(network, 1))
			if err == nil && strings.HasPrefix(network, "udp") {
				err = s.Send("x")
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	wrong := make(map[string]int)
	for i, client := range clients {
		for _, s := range sockets[i] {
			if strings.HasPrefix(network, "udp") { // which the network may lose
				lab.Eventually(t, network+" of the client "+client.name+" is answered", func() bool {
					return s.Ready(time.Second) || s.Send("x") != nil
				})
			}
			text, _, err := s.Receive()
			if err != nil {
				t.Fatalf("%s of the client %s: %v", network, client.name, err)
			}
			hello, err := parseGreeting(strings.TrimSuffix(text, " x"))
			if err != nil {
				t.Fatal(err)
			}
			if hello.client.Addr() != client.want {
				wrong[client.name]++
			}
			s.Close()
		}
	}
	return wrong
}

// addVPN connects node 1 to the router by a device without Ethernet.
func (c *cluster) addVPN() {
	node := c.nodes[0].Namespace
	node.AddTUN(vpn, c.router, 0)
	addAddrs(node, vpn, vpnAddrs())
	addAddrs(c.router, vpn, parseAddrs("10.4.0.1", "fd04::1"))
}

// route gives node 1 rules and tables.
func (c *cluster) route(t *testing.T, r routing) {
	t.Helper()
	node := c.nodes[0]
	node.SetSysctl("ipv4/conf/all/rp_filter", "2")
	for family, flag := range []string{"-4", "-6"} {
		words := map[string]string{
			"UPLINK": nodeAddrs(1)[family].String(), "UPLINK2": otherUplinkAddrs()[family].String(),
			"GW": []string{"10.2.0.1", "fd02::1"}[family], "GW2": []string{"10.3.0.1", "fd03::1"}[family],
			"PODS": podRanges[family], "PODS2": podRangesOf(2)[family].String(), "CLIENTS": []string{"10.1.0.0/24", "fd01::/64"}[family],
			"OTHER":    otherClientAddrs[family].String(),
			"SERVICES": serviceRanges[family], "EXTERNALS": externalRanges[family], "BALANCERS": balancerRanges[family],
		}
		for _, line := range r.lines {
			places := []string{""}
			if strings.Contains(line, "POD ") {
				places = []string{node.routedAddrs()[family].String(), node.bridgedAddrs()[family].String()}
			}
			for _, pod := range places {
				words["POD"] = pod
				args := append([]string{flag}, strings.Fields(line)...)
				for i, word := range args {
					if value, ok := words[word]; ok {
						args[i] = value
					}
				}
				run(t, node.Namespace, "ip", args...)
			}
		}
	}
	if r.marks {
		run(t, node.Namespace, "nft", `table inet replies {
	chain prerouting {
		type filter hook prerouting priority mangle
		iifname "uplink" ct state new ct mark set 1
		iifname { "uplink2", "vpn0" } ct state new ct mark set 2
		iifname != { "uplink", "uplink2", "vpn0" } meta mark set ct mark
	}
}
`)
	}
	if r.strict {
		run(t, c.router, "nft", `table inet strict {
	chain forward {
		type filter hook forward priority filter
		iifname "nodes" ip saddr { 10.3.0.0/24, 10.4.0.0/24 } counter drop
		iifname "nodes" ip6 saddr { fd03::/64, fd04::/64 } counter drop
		iifname "wayin" ip saddr != 10.3.0.0/24 counter drop
		iifname "wayin" ip6 saddr != fd03::/64 counter drop
		iifname "vpn0" ip saddr != 10.4.0.0/24 counter drop
		iifname "vpn0" ip6 saddr != fd04::/64 counter drop
	}
}
`)
		for i := range c.nodes {
			for _, pods := range podRangesOf(i + 1) {
				run(t, c.router, "ip", "route", "replace", "blackhole", pods.String())
			}
		}
	}
}

// checkRouted asks for every Service from outside, by every frontend and at the node's other addresses.
func (c *cluster) checkRouted(t *testing.T, r routing) {
	t.Helper()
	own := map[string]addrs{uplink: nodeAddrs(1), otherUplink: otherUplinkAddrs()}
	for i, set := range routedSets {
		for _, network := range networks {
			ways := map[string]netip.AddrPort{}
			for _, f := range frontends {
				ways[f.name] = netip.AddrPortFrom(f.address(i+1).of(network), uint16(f.port(i+1)))
			}
			for _, device := range r.reached {
				ways["NodePort at "+device] = netip.AddrPortFrom(own[device].of(network), nodePort(network, i+1).Port())
			}
			for way, to := range ways {
				got, err := ask(c.client, network, to, "payload")
				if err != nil || got.name != set.at.server() {
					t.Fatalf("%s to the %s of %v: %v, %v", network, way, set, got.greeting, err)
				}
				want := got.self.Addr()
				if set.at.node != 1 {
					want = own[r.far].of(network)
				}
				if got.client.Addr() != want {
					t.Errorf("%s to the %s of %v: it has seen %s, want %s", network, way, set, got.client, want)
				}
			}
		}
	}
}

// checkRoutedPod asks for every Service from a pod of node 1.
func (c *cluster) checkRoutedPod(t *testing.T, pod endpoint) {
	t.Helper()
	for i, set := range routedSets {
		for _, network := range networks {
			for _, f := range frontends {
				to := netip.AddrPortFrom(f.address(i+1).of(network), uint16(f.port(i+1)))
				got, err := ask(c.podOf(pod), network, to, "payload")
				if err != nil || got.name != set.at.server() {
					t.Fatalf("%s from %s to the %s of %v: %v, %v", network, pod.server(), f.name, set, got.greeting, err)
				}
			}
		}
	}
}
