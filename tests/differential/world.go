package differential

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/memoryapi"
	"github.com/beeline-lb/beeline/tests/wait"
)

type tester = testing.TB

// world is a node that a proxy serves, with its pods and API server, and the machines around
// it. Two worlds have the same addresses.
//
//	outside (clients, and the router) ──┬── node (the proxy) ── pod 0, pod 1
//	                                    └── other (endpoints on another node)
type world struct {
	t     tester
	name  string
	host  *lab.Host
	api   *memoryapi.Server
	at    map[string]*machine // by the name of a client
	round int
	addrs []netip.Addr // of the node, beside its own
	ended func() bool
	// everywhere is set when NodePorts answer at all addresses of the node.
	everywhere bool
	// batched is set when a change may be seen in part before all of it is.
	batched bool
	// alter changes what the proxy gets to see, for a planted fault.
	alter func(*cluster)
}

// The machines of a world.
const (
	fromOutside = "outside"
	fromOther   = "other node"
	fromNode    = "node"
	fromPod0    = "pod 0"
	fromPod1    = "pod 1"
)

var apiAddr = netip.MustParseAddrPort("127.0.0.1:6443")

// newWorld makes all but the proxy.
func newWorld(t tester, name string) *world {
	t.Helper()
	w := &world{t: t, name: name, host: lab.NewNode(t), api: memoryapi.New(), at: make(map[string]*machine)}
	outside, other := lab.NewNamespace(t), lab.NewNamespace(t)
	pods := [2]*lab.Namespace{w.host.NewBarePod(), w.host.NewBarePod()}
	all := []*lab.Namespace{outside, other, w.host.Namespace, pods[0], pods[1]}
	for _, n := range all {
		quieten(n)
	}
	link(outside, "node", gatewayAddrs, w.host.Namespace, nodeAddrs)
	link(outside, "other", otherGateway, other, otherAddrs)
	for i, pod := range pods {
		w.addPod(pod, i)
	}
	w.host.AddLink(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "balancer"}})
	for f, bits := range []int{32, 128} {
		for _, r := range [][]string{{"10.244.1.0/24", "fd44:0:0:1::/64"}, serviceRanges, {"198.51.100.0/24", "fd98::/112"}, {"203.0.113.0/24", "fd97::/112"}} {
			outside.AddRoute(netip.MustParsePrefix(r[f]), nodeAddrs[f], "node")
		}
		outside.AddRoute(netip.MustParsePrefix([]string{"10.244.2.0/24", "fd44:0:0:2::/64"}[f]), otherAddrs[f], "other")
		for group := range outsideGroups {
			for i := range clientsOfGroup {
				outside.AddAddr("lo", netip.PrefixFrom(outsideAddrs(group, i)[f], bits).String())
			}
		}
		for _, p := range otherPods {
			other.AddAddr("lo", netip.PrefixFrom(p[f], bits).String())
		}
		w.host.AddAddr("balancer", netip.PrefixFrom(balancerIP(localBalancer)[f], bits).String())
	}
	for i, name := range []string{fromOutside, fromOther, fromNode, fromPod0, fromPod1} {
		w.at[name] = &machine{Namespace: all[i], ephemeral: name == fromNode}
	}
	w.serve(pods[0], pods[1], w.host.Namespace, other, other, other, other)
	w.serveAPI()
	return w
}

// quieten makes a namespace a router that answers each packet at once, however many.
func quieten(n *lab.Namespace) {
	for name, value := range map[string]string{
		"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv6/conf/default/accept_dad": "0",
		"ipv4/icmp_ratelimit": "0", "ipv6/icmp/ratelimit": "0",
		"ipv4/icmp_msgs_per_sec": "1000000", "ipv4/icmp_msgs_burst": "100000",
	} {
		n.SetSysctl(name, value)
	}
}

// link connects a machine to the router, which is its default route.
func link(router *lab.Namespace, port string, gateway addrs, n *lab.Namespace, a addrs) {
	router.AddDevice(port, n, "uplink")
	for f, bits := range []int{24, 64} {
		router.AddAddr(port, netip.PrefixFrom(gateway[f], bits).String())
		n.AddAddr("uplink", netip.PrefixFrom(a[f], bits).String())
		n.AddDefaultRoute(gateway[f].String())
	}
}

func (w *world) addPod(pod *lab.Namespace, i int) {
	device := fmt.Sprintf("vethpod%d", i)
	w.host.AddDevice(device, pod, "eth0")
	for f, bits := range []int{32, 128} {
		own, gateway := netip.PrefixFrom(podAddrs[i][f], bits), netip.PrefixFrom(podGateway[f], bits)
		w.host.AddAddr(device, gateway.String())
		w.host.AddRoute(own, netip.Addr{}, device)
		pod.AddAddr("eth0", own.String())
		pod.AddRoute(gateway, netip.Addr{}, "eth0")
		pod.AddDefaultRoute(gateway.Addr().String())
	}
}

// serve starts the servers, of which each place is in one namespace.
func (w *world) serve(at ...*lab.Namespace) {
	for i, p := range places {
		for _, addr := range p.addrs {
			for _, port := range targetPorts {
				server := netip.AddrPortFrom(addr, port)
				serve(w.t, at[i], server)
				for _, m := range w.at {
					m.servers = append(m.servers, server)
				}
			}
		}
	}
}

// serveAPI starts the API server in the node's namespace.
func (w *world) serveAPI() {
	w.t.Helper()
	w.host.ServeHTTP(apiAddr, w.api)
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: serviceRanges}}
	memoryapi.Replace(w.api, "servicecidrs", []*networkingv1.ServiceCIDR{cidr}, func(a, b *networkingv1.ServiceCIDR) bool { return true })
	w.put(&cluster{zone: zones[0]})
}

// config writes the configuration, which is the same for both proxies, and returns its path.
func (w *world) config(more string) string {
	w.t.Helper()
	dir := w.t.TempDir()
	kubeconfig, config := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "config.yaml")
	for path, text := range map[string]string{
		kubeconfig: memoryapi.Kubeconfig(apiAddr),
		config: "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n" +
			"hostnameOverride: " + nodeName + "\n" +
			"clientConnection: {kubeconfig: " + kubeconfig + ", contentType: application/json, qps: 1000, burst: 1000}\n" +
			"clusterCIDR: \"" + strings.Join(podRanges, ",") + "\"\n" +
			"conntrack: {maxPerCore: 0, min: 0, udpTimeout: 10s, udpStreamTimeout: 10s}\n" +
			"oomScoreAdj: 0\n" + more,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	return config
}

// startBeeline runs beeline-agent.
func (w *world) startBeeline(more string, flags ...string) {
	w.t.Helper()
	agent := w.host.Start(lab.AgentBinary(w.t), append([]string{
		"--config", w.config(more), "--cgroup-root", w.host.Cgroup, "--bpffs", w.host.BPFFS,
		"--max-flows", fmt.Sprint(lab.Sizes.Flows), "--max-clients", fmt.Sprint(lab.Sizes.Clients),
		"--max-affinity-entries", fmt.Sprint(lab.Sizes.Affinity), "--max-udp-peers", fmt.Sprint(lab.Sizes.UDPPeers),
	}, flags...)...)
	w.ended, w.batched = agent.Ended, true
}

// startKubeProxy runs kube-proxy.
func (w *world) startKubeProxy(more string) {
	w.t.Helper()
	bin, err := apiserver.Build(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.ended = w.host.Start(filepath.Join(bin, "kube-proxy"), "--config="+w.config(more)).Ended
}

// apply makes the cluster what the proxy sees and returns when it serves that. The change of
// a marker, a Service that ends what each watch brings, says when. A proxy that shows a batch
// of changes bit by bit has ended it when it serves the next one.
func (w *world) apply(c *cluster) error {
	if w.alter != nil {
		c = c.clone()
		w.alter(c)
	}
	w.changeAddrs(c.addrs)
	rounds := 1
	if w.batched {
		rounds = 2
	}
	for range rounds {
		w.round++
		w.put(c)
		if err := w.awaitMarker(c); err != nil {
			return err
		}
	}
	return nil
}

// The marker's addresses and NodePort, out of reach of the clusters'.
const (
	markerIP       = 200
	markerNodePort = 30001
)

// put writes a cluster and the marker of this round.
func (w *world) put(c *cluster) {
	name := fmt.Sprintf("r%d", w.round)
	ip := clusterIP(markerIP)
	marker := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "zz-marker", Namespace: "default"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ClusterIP: ip[0].String(), ClusterIPs: []string{ip[0].String(), ip[1].String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports:      []corev1.ServicePort{{Name: name, Protocol: corev1.ProtocolTCP, Port: w.markerPort(), NodePort: markerNodePort}},
		},
	}
	var slices []*discoveryv1.EndpointSlice
	for f, addressType := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("zz-marker-%d", f), Namespace: "default",
				Labels: map[string]string{discoveryv1.LabelServiceName: marker.Name},
			},
			AddressType: addressType,
			Ports:       []discoveryv1.EndpointPort{{Name: new(name), Protocol: new(corev1.ProtocolTCP), Port: new(int32(targetPorts[0]))}},
		}
		for i, zone := range zones {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{otherPods[i][f].String()},
				Hints:     &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
			})
		}
		slices = append(slices, slice)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{corev1.LabelTopologyZone: c.zone}}}
	for _, addr := range nodeAddrs {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: addr.String()})
	}
	memoryapi.Replace(w.api, "nodes", []*corev1.Node{node}, func(a, b *corev1.Node) bool { return reflect.DeepEqual(a.Labels, b.Labels) })
	memoryapi.Replace(w.api, "endpointslices", append(c.clone().slices, slices...), func(a, b *discoveryv1.EndpointSlice) bool {
		return equality.Semantic.DeepEqual(a.Labels, b.Labels) && a.AddressType == b.AddressType &&
			equality.Semantic.DeepEqual(a.Ports, b.Ports) && equality.Semantic.DeepEqual(a.Endpoints, b.Endpoints)
	})
	memoryapi.Replace(w.api, "services", append(c.clone().services, marker), func(a, b *corev1.Service) bool {
		return equality.Semantic.DeepEqual(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.Spec, b.Spec) &&
			equality.Semantic.DeepEqual(a.Status, b.Status)
	})
}

// markerPort is the marker's port in this round.
func (w *world) markerPort() int32 { return int32(10000 + w.round%50000) }

// awaitMarker waits until the marker of this round leads to the endpoint of the node's zone,
// and its NodePort answers at each address of the node.
func (w *world) awaitMarker(c *cluster) error {
	zone := slices.Index(zones, c.zone)
	var open []string
	for begin := time.Now(); time.Since(begin) < wait.Limit; time.Sleep(4 * time.Millisecond) {
		open = nil
		if w.ended() {
			return fmt.Errorf("%s has ended", w.name)
		}
		for f := range 2 {
			to := netip.AddrPortFrom(clusterIP(markerIP)[f], uint16(w.markerPort()))
			if !w.leads(fromNode, to, otherPods[zone][f]) {
				open = append(open, to.String())
			}
		}
		for _, addr := range c.addrs {
			if len(open) == 0 && w.everywhere {
				f := map[bool]int{true: 0, false: 1}[addr.Is4()]
				if to := netip.AddrPortFrom(addr, markerNodePort); !w.leads(fromOutside, to, otherPods[zone][f]) {
					open = append(open, to.String())
				}
			}
		}
		if len(open) == 0 {
			return nil
		}
	}
	return fmt.Errorf("%s does not serve %s after %s", w.name, strings.Join(open, " and "), wait.Limit)
}

// leads says whether a connection reaches a server.
func (w *world) leads(from string, to netip.AddrPort, server netip.Addr) bool {
	m := w.at[from]
	a := attempt{to: to}
	if from == fromOutside {
		a.from = outsideAddrs(0, 0)[map[bool]int{true: 0, false: 1}[to.Addr().Is4()]]
	}
	var r result
	err := m.Run(func() (err error) {
		r, err = m.once(a, time.Second)
		return err
	})
	return err == nil && r.verdict == reached && r.server.Addr() == server
}

// forever is INFINITY_LIFE_TIME of linux/if_addr.h.
const forever = 0xffffffff

// changeAddrs makes the addresses of the node's uplink, beside its own, those given.
func (w *world) changeAddrs(want []netip.Addr) {
	change := func(addr netip.Addr, how func(netlink.Link, *netlink.Addr) error) {
		bits := 64
		if addr.Is4() {
			bits = 24
		}
		err := w.host.Run(func() error {
			link, err := netlink.LinkByName("uplink")
			if err != nil {
				return err
			}
			a, err := netlink.ParseAddr(netip.PrefixFrom(addr, bits).String())
			if err != nil {
				return err
			}
			// Preferred for nothing: the address that packets leave with stays.
			a.Flags, a.PreferedLft, a.ValidLft = unix.IFA_F_NODAD|unix.IFA_F_NOPREFIXROUTE, 0, forever
			return how(link, a)
		})
		if err != nil && !errors.Is(err, unix.EEXIST) {
			w.t.Fatalf("change address %s: %v", addr, err)
		}
	}
	for _, addr := range w.addrs {
		if !slices.Contains(want, addr) {
			change(addr, netlink.AddrDel)
		}
	}
	for _, addr := range want {
		if !slices.Contains(w.addrs, addr) {
			change(addr, netlink.AddrAdd)
			w.host.AwaitLocal(addr)
		}
	}
	w.addrs = slices.Clone(want)
}
