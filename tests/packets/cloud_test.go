package packets_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/tests/lab"
)

// cloud is a network as clouds have them: it takes packets from network card to network card by the addresses that
// it has given to them, answers ARP and NDP for all, and drops what comes from a card with an address of another one
// (the source check of AWS, Azure's and Google's check for IP forwarding).
//
//	client ── fabric ─┬── eth0 ─┐
//	                  ├── eth1 ─┴ node1 ── pods
//	                  └── eth0 ── node2 ── pods
type cloud struct {
	t              *testing.T
	fabric, client *lab.Namespace
	cards          int
	portOf         map[*lab.Namespace]string // of the last card
}

// The gateway of each card; AWS has that of IPv6 in each subnet.
var fabricAddrs = parseAddrs("10.2.0.1", "fe80:ec2::1")

func newCloud(t *testing.T) *cloud {
	t.Helper()
	lab.Need(t, "nft", "iptables-nft")
	c := &cloud{t: t, fabric: lab.NewNamespace(t), client: lab.NewNamespace(t), portOf: make(map[*lab.Namespace]string)}
	withoutDAD(c.fabric, c.client)
	forward(c.fabric)
	c.fabric.SetSysctl("ipv4/conf/all/rp_filter", "0") // it has a check of its own
	run(t, c.fabric, "nft", "table inet cards { counter foreign { }; chain forward { type filter hook forward priority filter; }; }")
	c.fabric.AddDevice("client", c.client, uplink)
	addAddrs(c.fabric, "client", parseAddrs("10.1.0.1", "fd01::1"))
	addAddrs(c.client, uplink, clientAddrs)
	c.client.AddDefaultRoute("10.1.0.1")
	c.client.AddDefaultRoute("fd01::1")
	return c
}

// plug gives a namespace a network card with these addresses, of which it is told none. Ranges and addresses are
// led to it whether its device has them or not.
func (c *cloud) plug(n *lab.Namespace, device string, own ...string) {
	c.t.Helper()
	c.cards++
	port := fmt.Sprintf("card%d", c.cards)
	c.fabric.AddDevice(port, n, device)
	c.portOf[n] = port
	for name, value := range map[string]string{
		"ipv4/conf/" + port + "/proxy_arp": "1", "ipv4/neigh/" + port + "/proxy_delay": "0",
	} {
		c.fabric.SetSysctl(name, value)
	}
	c.fabric.AddAddr(port, fabricAddrs[0].String()+"/32")
	c.fabric.AddAddr(port, fabricAddrs[1].String()+"/64")
	mac := macOf(c.t, n, device)
	for family, flag := range []string{"-4", "-6"} {
		// A hop of its own for each card, which never has to answer.
		hop := parseAddrs("169.254.255.1", "fe80::255:1")[family].String()
		run(c.t, c.fabric, "ip", flag, "neigh", "replace", hop, "lladdr", mac, "dev", port, "nud", "permanent")
		var all []string
		for _, to := range own {
			if strings.Contains(to, ":") != (family == 1) {
				continue
			}
			all = append(all, to)
			run(c.t, c.fabric, "ip", flag, "route", "replace", to, "via", hop, "dev", port, "onlink")
		}
		word := []string{"ip", "ip6"}[family]
		check := fmt.Sprintf("add rule inet cards forward iifname %s meta nfproto ipv%s", port, flag[1:])
		if all != nil {
			check += fmt.Sprintf(" %s saddr != { %s }", word, strings.Join(all, ", "))
		}
		run(c.t, c.fabric, "nft", check+" counter name foreign drop")
	}
}

// nic is plug of a card whose device is none that pods may be behind, as a veth is. The test is skipped where the kernel has none.
func (c *cloud) nic(n *lab.Namespace, device string, own ...string) {
	c.t.Helper()
	cable := device + "-cable"
	c.plug(n, cable, own...)
	err := n.Run(func() error {
		link, err := netlink.LinkByName(cable)
		if err != nil {
			return err
		}
		nic := &netlink.Macvlan{Mode: netlink.MACVLAN_MODE_PASSTHRU, LinkAttrs: netlink.LinkAttrs{Name: device, ParentIndex: link.Attrs().Index}}
		if err := netlink.LinkAdd(nic); err != nil {
			return err
		}
		return netlink.LinkSetUp(nic)
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		c.t.Skip("the kernel has no macvlan devices: they need the module macvlan")
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// foreign returns how many packets cards have sent with addresses of others.
func (c *cloud) foreign() int {
	c.t.Helper()
	return countOf(c.t, c.fabric, "inet cards foreign")
}

// countOf returns the packets of a named counter: "FAMILY TABLE NAME".
func countOf(t *testing.T, n *lab.Namespace, counter string) int {
	t.Helper()
	said, err := n.Output("nft", append([]string{"list", "counter"}, strings.Fields(counter)...)...)
	if err != nil {
		t.Fatal(failure(err))
	}
	_, rest, _ := strings.Cut(said, "packets ")
	count, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return count
}

// macOf returns a device's address.
func macOf(t *testing.T, n *lab.Namespace, device string) (mac string) {
	t.Helper()
	err := n.Run(func() error {
		link, err := netlink.LinkByName(device)
		if err == nil {
			mac = link.Attrs().HardwareAddr.String()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

// site is where a process is that asks or serves: a pod, a node, or a host outside.
type site struct {
	name string
	n    *lab.Namespace
	at   addrs // an invalid one: it has none of the family
	node int   // 0: outside
	// beyond says of a pod of node 1 that the node reaches it by the network, as one of another node.
	beyond bool
	// shared says that the node's device to the pod leads to pods of other nodes, too: clients outside reach it
	// with another address than their own, unless the policy is to show them.
	shared bool
}

// far reports whether node 1 reaches the site by the network.
func (s site) far() bool { return s.node != 1 || s.beyond }

// serveSites starts a server at each site.
func serveSites(t *testing.T, sites ...site) {
	t.Helper()
	for _, s := range sites {
		serve(t, s.n, s.name, s.at)
	}
}

// siteService returns the manifests of the i-th Service, which has every kind of frontend, with these endpoints.
func siteService(i int, fields string, endpoints ...site) []string {
	name := fmt.Sprintf("svc-%d", i)
	families := [2]string{"IPv4", "IPv6"}
	var ips, externals, balancers, has, slices []string
	for family := range families {
		var list []string
		for _, e := range endpoints {
			if !e.at[family].IsValid() {
				continue
			}
			where := ""
			if e.node > 0 {
				where = fmt.Sprintf(", nodeName: node%d", e.node)
			}
			list = append(list, fmt.Sprintf("{addresses: [%q]%s}", e.at[family], where))
		}
		if list == nil {
			continue
		}
		has = append(has, families[family])
		ips = append(ips, strconv.Quote(clusterIP(i)[family].String()))
		externals = append(externals, strconv.Quote(externalIP(i)[family].String()))
		balancers = append(balancers, fmt.Sprintf("{ip: %q}", balancerIP(i)[family]))
		slices = append(slices, lab.SliceOf(name, fmt.Sprintf("t:%d/TCP,u:%d/UDP", backendPort, backendPort), list...))
	}
	policy := "SingleStack"
	if len(has) == 2 {
		policy = "RequireDualStack"
	}
	spec := fmt.Sprintf("{type: LoadBalancer, clusterIPs: [%s], ipFamilies: [%s], ipFamilyPolicy: %s, externalIPs: [%s], %s"+
		" ports: [{name: t, port: 80, nodePort: %d}, {name: u, port: 80, protocol: UDP, nodePort: %d}]}",
		strings.Join(ips, ", "), strings.Join(has, ", "), policy, strings.Join(externals, ", "), fields, 30100+i, 30100+i)
	status := fmt.Sprintf("status: {loadBalancer: {ingress: [%s]}}", strings.Join(balancers, ", "))
	return append([]string{lab.Service(name, spec, status)}, slices...)
}

// frontendOf is where a kind of frontend of the i-th Service answers.
func frontendOf(kind string, i int, network string) netip.AddrPort {
	for _, f := range frontends {
		if f.name == kind {
			return netip.AddrPortFrom(f.address(i).of(network), uint16(f.port(i)))
		}
	}
	panic(kind)
}

// cloudCluster are two nodes in a cloud, the first with two pods, and a machine beside them.
type cloudCluster struct {
	*cloud
	nodes         [2]*node
	pods          []site // of node 1
	far           site   // a pod of node 2
	host, farHost site
	peer, outside site // in the cloud's network, and elsewhere
	networks      []string
	podSNAT       addrs // where packets of node 1 to pods of others come from, unless it is the node's own address
	farClient     addrs // where packets of the pod of node 2 to node 1 come from, unless it is the pod's address
}

// newCloudCluster makes the nodes, and pods with these addresses, without a network card and a network of pods. Of other
// families than these, "4" and "6", nothing has an address.
func newCloudCluster(t *testing.T, families []string, far addrs, pods ...addrs) *cloudCluster {
	t.Helper()
	c := &cloudCluster{cloud: newCloud(t)}
	known := func(all addrs) (a addrs) {
		for _, family := range families {
			a[map[string]int{"4": 0, "6": 1}[family]] = all.of("tcp" + family)
		}
		return a
	}
	for _, network := range networks {
		if slices.Contains(families, network[3:]) {
			c.networks = append(c.networks, network)
		}
	}
	for i := range c.nodes {
		listed := nodeAddrs(i + 1)
		c.nodes[i] = &node{Host: lab.NewNode(t), index: i + 1, listed: listed[:]}
		withoutDAD(c.nodes[i].Namespace)
		forward(c.nodes[i].Namespace)
	}
	for i, at := range pods {
		c.pods = append(c.pods, site{fmt.Sprintf("pod-%d", i+1), c.nodes[0].NewBarePod(), known(at), 1, false, false})
	}
	c.far = site{"far-pod", c.nodes[1].NewBarePod(), known(far), 2, false, false}
	c.host = site{"host", c.nodes[0].Namespace, known(nodeAddrs(1)), 1, false, false}
	c.farHost = site{"far-host", c.nodes[1].Namespace, known(nodeAddrs(2)), 2, false, false}
	c.outside = site{"outside", c.client, known(clientAddrs), 0, false, false}
	c.peer = site{"peer", lab.NewNamespace(t), known(parseAddrs("10.2.0.99", "fd02::99")), 0, false, false}
	withoutDAD(c.peer.n)
	for _, s := range append(c.pods, c.far) {
		withoutDAD(s.n)
	}
	c.plug(c.peer.n, "eth0", "10.2.0.99", "fd02::99")
	c.address(c.peer.n, "eth0", c.peer.at)
	return c
}

// address gives a card of a machine its addresses, and the machine the routes by it.
func (c *cloudCluster) address(n *lab.Namespace, device string, at addrs) {
	c.t.Helper()
	if at[0].IsValid() {
		n.AddAddr(device, at[0].String()+"/24")
		run(c.t, n, "ip", "route", "add", "default", "via", fabricAddrs[0].String(), "dev", device)
	}
	if at[1].IsValid() {
		n.AddAddr(device, at[1].String()+"/128")
		run(c.t, n, "ip", "-6", "route", "add", "default", "via", fabricAddrs[1].String(), "dev", device)
	}
}

func (c *cloudCluster) endpoints() []site {
	return append(slices.Clone(c.pods), c.far, c.host, c.farHost)
}

// addCloudPod connects a pod with all its addresses to its node by a veth, at which the node has no address. The
// pod knows the node by a gateway that nobody has, whose MAC address it is told.
func (c *cloudCluster) addCloudPod(p site, device string, gateway addrs) {
	c.t.Helper()
	n := c.nodes[p.node-1]
	n.AddDevice(device, p.n, "eth0")
	mac := macOf(c.t, n.Namespace, device)
	for family, flag := range []string{"-4", "-6"} {
		at := p.at[family]
		if !at.IsValid() {
			continue
		}
		p.n.AddAddr("eth0", netip.PrefixFrom(at, at.BitLen()).String())
		run(c.t, p.n, "ip", flag, "neigh", "add", gateway[family].String(), "lladdr", mac, "dev", "eth0", "nud", "permanent")
		run(c.t, p.n, "ip", flag, "route", "add", gateway[family].String(), "dev", "eth0")
		run(c.t, p.n, "ip", flag, "route", "add", "default", "via", gateway[family].String(), "dev", "eth0")
		run(c.t, n.Namespace, "ip", flag, "route", "add", at.String(), "dev", device)
	}
}

// The Services whose endpoint is no machine of the cluster, and one for few clients; those of each endpoint come before.
const (
	cloudOutside = 20 + iota
	cloudPeer
	cloudRanges
)

func (c *cloudCluster) services() (manifests []string) {
	for i, e := range c.endpoints() {
		manifests = append(manifests, siteService(2*i+1, "externalTrafficPolicy: Cluster,", e)...)
		manifests = append(manifests, siteService(2*i+2, "externalTrafficPolicy: Local,", e)...)
	}
	manifests = append(manifests, siteService(cloudOutside, "", c.outside)...)
	manifests = append(manifests, siteService(cloudPeer, "", c.peer)...)
	return append(manifests, siteService(cloudRanges, `loadBalancerSourceRanges: ["10.1.0.0/24", "fd01::/64"],`, c.pods[0], c.pods[1])...)
}

// serve starts the servers and the agent of node 1, which is told no range of pods unless by a flag.
func (c *cloudCluster) serve(flags ...string) *agent {
	c.t.Helper()
	c.serveSites()
	var ips []string
	for _, a := range c.host.at {
		if a.IsValid() {
			ips = append(ips, a.String())
		}
	}
	return startAgent(c.t, c.nodes[0], c.services(), append([]string{"--node-ip", strings.Join(ips, ","), "--cluster-cidr="}, flags...)...)
}

// wantDevices fails the test unless the agent of node 1 serves these devices, with these reasons, and no others.
func (c *cloudCluster) wantDevices(want ...[2]string) {
	c.t.Helper()
	d, err := inspect.Open(c.nodes[0].BPFFS)
	if err != nil {
		c.t.Fatal(err)
	}
	defer d.Close()
	status, err := d.Status()
	if err != nil {
		c.t.Fatal(err)
	}
	var got [][2]string
	for _, device := range status.Devices {
		got = append(got, [2]string{device.Name, device.Reason})
	}
	if !slices.Equal(got, want) {
		c.t.Errorf("the agent serves %q, want %q", got, want)
	}
}

func (c *cloudCluster) serveSites() {
	c.t.Helper()
	serveSites(c.t, append(c.endpoints(), c.outside, c.peer)...)
}

// asked are the kinds of frontends that a client asks for, of a Service with that externalTrafficPolicy.
func (c *cloudCluster) asked(from site, policy string) []string {
	switch {
	case from.node == 2:
		return []string{"NodePort"} // its node has no agent
	case policy == "Local":
		return []string{"NodePort", "load balancer"}
	case from.node == 1:
		return []string{"ClusterIP"}
	}
	return []string{"NodePort", "external IP"}
}

// check asks for every Service of an endpoint from everywhere. The endpoint is to see a client of node 1 as if it had been asked
// itself, one outside as it is, or by the node's address where the endpoint is elsewhere.
func (c *cloudCluster) check() {
	c.t.Helper()
	for i, e := range c.endpoints() {
		for p, policy := range []string{"Cluster", "Local"} {
			for _, network := range c.networks {
				for _, from := range append(c.endpoints(), c.outside, c.peer) {
					if from.node != 1 && policy == "Local" && e.far() {
						continue // is dropped
					}
					want := c.seen(from, e, network, policy)
					for _, f := range c.asked(from, policy) {
						got, err := askSoon(from.n, network, frontendOf(f, 2*i+1+p, network))
						if err != nil || got.name != e.name || got.client.Addr() != want && from.name != e.name {
							c.t.Errorf("%s from %s to the %s of %s with policy %s: reached %q, which sees %s, error %v; want %s to see %s",
								network, from.name, f, e.name, policy, got.name, got.client, err, e.name, want)
						}
					}
				}
			}
		}
	}
	c.checkRanges()
	if n := c.foreign(); n > 0 {
		c.t.Errorf("%d packets left by a card with an address that is not the card's", n)
	}
}

// seen returns which address an endpoint is to see of a client that asks node 1 for a Service.
func (c *cloudCluster) seen(from, e site, network, policy string) netip.Addr {
	c.t.Helper()
	switch {
	case from.node == 1:
		got, err := askSoon(from.n, network, netip.AddrPortFrom(e.at.of(network), backendPort))
		if err != nil {
			c.t.Errorf("%s from %s to %s itself: %v", network, from.name, e.name, err)
		}
		return got.client.Addr()
	case (e.far() || e.shared && policy == "Cluster") && e.n != c.farHost.n && c.podSNAT.of(network).IsValid():
		return c.podSNAT.of(network)
	case e.far():
		return c.host.at.of(network)
	case from.n == c.far.n && c.farClient.of(network).IsValid():
		return c.farClient.of(network)
	}
	return from.at.of(network)
}

// checkRanges: clients outside of the given ranges do not reach the load-balancer IP.
func (c *cloudCluster) checkRanges() {
	t := c.t
	t.Helper()
	for _, network := range c.networks {
		to := frontendOf("load balancer", cloudRanges, network)
		if got, err := askSoon(c.outside.n, network, to); err != nil || !c.pods[0].shared && got.client.Addr() != c.outside.at.of(network) {
			t.Errorf("%s from a source range: %v, %v", network, got, err)
		}
		s := c.peer.n.Socket(network)
		defer s.Close()
		_ = s.StartConnect(to)
		_ = s.Send("x") // nothing is to come of it, later than what follows
		if got, err := askSoon(c.peer.n, network, frontendOf("NodePort", cloudRanges, network)); err != nil {
			t.Errorf("%s to the NodePort of a Service with source ranges: %v, %v", network, got, err)
		}
		if s.Ready(0) {
			t.Errorf("%s from outside of the source ranges is answered", network)
		}
	}
}

// checkSNAT asks machines that are not of the cluster, by their own addresses and as endpoints of a Service, which are to
// see the same: elsewhere whom sees returns.
func (c *cloudCluster) checkSNAT(sees func(from site) addrs) {
	t := c.t
	t.Helper()
	for _, network := range c.networks {
		for _, from := range append(c.pods, c.host) {
			for service, to := range map[int]site{cloudOutside: c.outside, cloudPeer: c.peer} {
				want := c.seen(from, to, network, "Cluster")
				if to.name == c.outside.name && want != sees(from).of(network) {
					t.Errorf("%s from %s to %s itself: it sees %s, want %s", network, from.name, to.name, want, sees(from).of(network))
				}
				got, err := askSoon(from.n, network, frontendOf("ClusterIP", service, network))
				if err != nil || got.name != to.name || got.client.Addr() != want {
					t.Errorf("%s from %s to the Service of %s: %q sees %s, error %v; want %s", network, from.name, to.name, got.name, got.client, err, want)
				}
			}
		}
	}
}

// askSoon is ask for tests that ask much: who is not there is given up sooner. A datagram is sent again each second.
func askSoon(n *lab.Namespace, network string, to netip.AddrPort) (got answer, err error) {
	const tries = 4
	s := n.Socket(network)
	defer s.Close()
	if err := s.ConnectWithin(to, tries*time.Second); err != nil {
		return got, err
	}
	if got.self, err = s.Local(); err != nil {
		return got, err
	}
	datagrams := strings.HasPrefix(network, "udp")
	for range tries {
		if datagrams {
			if err := s.Send("x"); err != nil {
				return got, err
			}
		}
		if s.Ready(time.Second) {
			text, _, err := s.Receive()
			if err != nil {
				return got, err
			}
			got.greeting, err = parseGreeting(strings.TrimSuffix(text, " x"))
			return got, err
		}
	}
	return got, lab.ErrNothing
}
