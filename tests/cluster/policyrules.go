package main

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// policySource is whose address a packet comes from.
type policySource string

// The values of policySource.
const (
	fromFriend   policySource = "the pod"
	fromStranger policySource = "the pod of another namespace"
	fromNear     policySource = "the server's node"
	fromFar      policySource = "the other node"
	fromOutside  policySource = "the client outside"
	fromUnknown  policySource = "an unknown address"
)

// The clients. Near ones are on the server's node, far ones on the other.
const (
	friendNear   = "pod, same node"
	friendFar    = "pod, other node"
	strangerNear = "pod of another namespace, same node"
	strangerFar  = "pod of another namespace, other node"
	hostNear     = "host network, same node"
	hostFar      = "host network, other node"
	outside      = "outside"
)

// The frontends. Of NodePorts the name says whose address is asked, of load balancers to which
// node it leads clients outside.
const (
	toClusterIP     = "ClusterIP"
	toOther         = "ClusterIP of another server"
	toNodePortNear  = "NodePort, server's node"
	toNodePortFar   = "NodePort, other node"
	toNodePortLocal = "NodePort, server's node, Local"
	toBalancer      = "load balancer, other node"
	toBalancerLocal = "load balancer, server's node, Local"
)

// policyFlow is a way from a client to a server.
type policyFlow struct {
	client, frontend string
	// seen is whose address the policy and the server see behind Beeline, at the server's
	// node. Behind kube-proxy policySeen is what the policy sees, serverSeen what the server.
	seen, policySeen, serverSeen policySource
}

func (f policyFlow) String() string { return f.client + " → " + f.frontend }

// wanted returns what has to come of a request under a policy. Behind kube-proxy, the node that a
// client asks passes packets to another node by hooks of netfilter, before it masquerades them. There
// kube-network-policies looks at them for the first time, kube-router does not.
func (f policyFlow) wanted(rule policyRule, s settings) policyAnswer {
	policySeen, serverSeen := f.seen, f.seen
	if s.Proxy == proxyKubeProxy {
		policySeen, serverSeen = f.policySeen, f.serverSeen
	}
	allowed := rule.allows(f, policySeen)
	if s.Proxy == proxyKubeProxy && s.Policy == policyKubeNetworkPolicies && policySeen == fromFar {
		allowed = allowed && (f.client == hostFar || rule.allows(f, clientSources[f.client]))
	}
	if !allowed {
		return policyAnswer{}
	}
	return policyAnswer{Allowed: true, Source: serverSeen}
}

// clientSources are the clients' own addresses.
var clientSources = map[string]policySource{
	friendNear: fromFriend, friendFar: fromFriend, strangerNear: fromStranger, strangerFar: fromStranger,
	hostNear: fromNear, hostFar: fromFar, outside: fromOutside,
}

// policyFlows are all that are tried. kube-proxy masquerades what comes by NodePorts and load
// balancers, the policy of that node has seen it before.
var policyFlows = []policyFlow{
	{friendNear, toClusterIP, fromFriend, fromFriend, fromFriend},
	{friendFar, toClusterIP, fromFriend, fromFriend, fromFriend},
	{strangerNear, toClusterIP, fromStranger, fromStranger, fromStranger},
	{strangerFar, toClusterIP, fromStranger, fromStranger, fromStranger},
	{hostNear, toClusterIP, fromNear, fromNear, fromNear},
	{hostFar, toClusterIP, fromFar, fromFar, fromFar},
	{friendNear, toNodePortNear, fromFriend, fromFriend, fromNear},
	{friendFar, toNodePortFar, fromFriend, fromFar, fromFar},
	{friendNear, toBalancer, fromFriend, fromFriend, fromNear},
	{friendFar, toBalancer, fromFriend, fromFar, fromFar},
	{hostFar, toBalancer, fromFar, fromFar, fromFar},
	{outside, toNodePortNear, fromOutside, fromOutside, fromNear},
	{outside, toNodePortFar, fromFar, fromFar, fromFar},
	{outside, toNodePortLocal, fromOutside, fromOutside, fromOutside},
	{outside, toBalancer, fromFar, fromFar, fromFar},
	{outside, toBalancerLocal, fromOutside, fromOutside, fromOutside},
	{friendFar, toOther, fromFriend, fromFriend, fromFriend},
}

// What each flow is tried with.
var (
	policyProtocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}
	policyFamilies  = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
)

// policyNamespace is where the servers, their clients and the policies are, and
// strangeNamespace where the clients of another namespace are.
const (
	policyNamespace  = "policy"
	strangeNamespace = "strangers"
)

// policyRule is a NetworkPolicy and what it allows.
type policyRule struct {
	name string
	spec *networkingv1.NetworkPolicySpec // nil: there is no policy
	// allows reports whether a flow is allowed when the policy sees it come from an address.
	allows func(f policyFlow, seen policySource) bool
}

// noPolicy is what is tried before and after each policy.
const noPolicy = "no policy"

// policyRules returns what is tried, in this order. A node may always reach its own pods.
func policyRules(nodes int) []policyRule {
	return []policyRule{
		{noPolicy, nil, func(policyFlow, policySource) bool { return true }},
		{"deny all ingress", ingressFrom(), allowSources()},
		{"allow by podSelector", ingressFrom(podPeer("role", "friend")), allowSources(fromFriend)},
		{"allow by namespaceSelector", ingressFrom(networkingv1.NetworkPolicyPeer{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": strangeNamespace}},
		}), allowSources(fromStranger)},
		{"allow the client's ipBlock", ingressFrom(blockPeers(routerAddr4, routerAddr6, clientAddr4, clientAddr6)...), allowSources(fromOutside)},
		{"allow the nodes' ipBlocks", ingressFrom(blockPeers(allNodeAddrs(nodes)...)...), allowSources(fromFar)},
		{"allow the endpoint's port", ingressTo(8080), func(policyFlow, policySource) bool { return true }},
		{"allow the Service's port", ingressTo(80), allowSources()},
		{"egress to the server's pods", egressTo(podPeer("app", "server")), func(f policyFlow, _ policySource) bool {
			return f.frontend != toOther
		}},
		{"egress to the Services' addresses", egressTo(servicePeers()...), func(f policyFlow, _ policySource) bool {
			return f.client != friendNear && f.client != friendFar
		}},
	}
}

// allowSources is of policies for the server: all but the other server is restricted.
func allowSources(sources ...policySource) func(policyFlow, policySource) bool {
	return func(f policyFlow, seen policySource) bool {
		return f.frontend == toOther || seen == fromNear || slices.Contains(sources, seen)
	}
}

func podPeer(label, value string) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{label: value}}}
}

// blockPeers returns the peers of addresses.
func blockPeers(addrs ...string) []networkingv1.NetworkPolicyPeer {
	var all []networkingv1.NetworkPolicyPeer
	for _, a := range addrs {
		addr := netip.MustParseAddr(a)
		block := netip.PrefixFrom(addr, addr.BitLen()).String()
		all = append(all, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: block}})
	}
	return all
}

// servicePeers returns peers of all addresses of Services.
func servicePeers() []networkingv1.NetworkPolicyPeer {
	var all []networkingv1.NetworkPolicyPeer
	blocks := strings.Split(serviceCIDRs, ",")
	for _, family := range policyFamilies {
		blocks = append(blocks, balancerRange(family).String())
	}
	for _, block := range blocks {
		all = append(all, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: block}})
	}
	return all
}

func allNodeAddrs(nodes int) []string {
	var all []string
	for i := 1; i <= nodes; i++ {
		for _, p := range nodeAddrs(i) {
			all = append(all, p.Addr().String())
		}
	}
	return all
}

// ofServer is the server's pod.
var ofServer = metav1.LabelSelector{MatchLabels: map[string]string{"app": "server"}}

// ingressFrom lets nobody but the peers in to the server.
func ingressFrom(peers ...networkingv1.NetworkPolicyPeer) *networkingv1.NetworkPolicySpec {
	spec := &networkingv1.NetworkPolicySpec{PodSelector: ofServer, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}}
	if len(peers) > 0 {
		spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: peers}}
	}
	return spec
}

// ingressTo lets everybody in to one port of the server.
func ingressTo(port int) *networkingv1.NetworkPolicySpec {
	spec := ingressFrom()
	spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{Ports: policyPorts(port)}}
	return spec
}

// egressTo lets the friends out to the peers, and to the control.
func egressTo(peers ...networkingv1.NetworkPolicyPeer) *networkingv1.NetworkPolicySpec {
	return &networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"role": "friend"}},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		Egress:      []networkingv1.NetworkPolicyEgressRule{{To: append(peers, podPeer("app", "control"))}},
	}
}

func policyPorts(port int) []networkingv1.NetworkPolicyPort {
	number := intstr.FromInt(port)
	var all []networkingv1.NetworkPolicyPort
	for _, p := range policyProtocols {
		all = append(all, networkingv1.NetworkPolicyPort{Protocol: &p, Port: &number})
	}
	return all
}
