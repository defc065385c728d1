package differential

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxServices is how many Services a cluster has at most.
const maxServices = 4

var zones = []string{"a", "b", "c"}

// generator makes clusters that an API server would take, in which no two Services want the
// same address, port and protocol.
type generator struct{ *rand.Rand }

// generate returns a cluster: a new one where before is nil, else that one with some changes.
// The same numbers make the same cluster.
func generate(seed, number uint64, before *cluster) *cluster {
	g := &generator{rand.New(rand.NewPCG(seed, number))}
	if before == nil {
		return g.fresh()
	}
	c := before.clone()
	for range 1 + g.IntN(4) {
		g.mutate(c)
	}
	return c
}

func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

func one[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }

func (g *generator) fresh() *cluster {
	c := &cluster{zone: one(g, zones...)}
	for i := range maxServices {
		if i == 0 || g.chance(60) {
			g.addService(c, i)
		}
	}
	g.changeAddrs(c)
	return c
}

// mutate changes one thing.
func (g *generator) mutate(c *cluster) {
	i := g.IntN(maxServices)
	name := serviceName(i)
	s := c.service(name)
	switch what := g.IntN(10); {
	case what == 0:
		c.zone = one(g, zones...)
	case what == 1:
		g.changeAddrs(c)
	case s == nil:
		g.addService(c, i)
	case what == 2:
		c.remove(name)
	case what <= 5: // another Service, with the same endpoints
		ports := s.Spec.Ports
		if n := g.service(i); samePorts(n.Spec.Ports, ports) || g.chance(50) {
			*s = *n
		} else {
			n.Spec.Ports = slices.Clone(ports)
			if len(ports) > 0 && ports[0].NodePort == 0 || n.Spec.Type == corev1.ServiceTypeClusterIP {
				g.numberPorts(n, i)
			}
			*s = *n
		}
	default: // the same Service, with other endpoints
		c.slices = slices.DeleteFunc(c.slices, func(e *discoveryv1.EndpointSlice) bool {
			return e.Labels[discoveryv1.LabelServiceName] == name
		})
		c.slices = append(c.slices, g.slices(s)...)
	}
}

func samePorts(a, b []corev1.ServicePort) bool {
	return slices.EqualFunc(a, b, func(a, b corev1.ServicePort) bool { return a.Name == b.Name && a.Protocol == b.Protocol })
}

// remove removes a Service with its slices.
func (c *cluster) remove(name string) {
	c.services = slices.DeleteFunc(c.services, func(s *corev1.Service) bool { return s.Name == name })
	c.slices = slices.DeleteFunc(c.slices, func(e *discoveryv1.EndpointSlice) bool {
		return e.Labels[discoveryv1.LabelServiceName] == name
	})
}

func (g *generator) changeAddrs(c *cluster) {
	c.addrs = nil
	for _, a := range extraAddrs {
		for _, addr := range a {
			if g.chance(30) {
				c.addrs = append(c.addrs, addr)
			}
		}
	}
}

func serviceName(i int) string { return fmt.Sprintf("svc-%d", i) }

func (g *generator) addService(c *cluster, i int) {
	s := g.service(i)
	c.services = append(c.services, s)
	c.slices = append(c.slices, g.slices(s)...)
}

// service returns the i-th Service, whose addresses and NodePorts are its own.
func (g *generator) service(i int) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: serviceName(i), Namespace: "default"}}
	s.Spec.Type = one(g, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer)
	g.families(s, i)
	s.Spec.InternalTrafficPolicy = new(one(g, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal))
	if g.chance(30) {
		s.Spec.ExternalIPs = familyStrings(externalIP(i), g.chance(70), g.chance(70))
	}
	if i == 0 && g.chance(30) { // of one Service, for their ports are the same
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, familyStrings(nodeAddrs, g.chance(70), g.chance(70))...)
	}
	if s.Spec.Type != corev1.ServiceTypeClusterIP || len(s.Spec.ExternalIPs) > 0 {
		s.Spec.ExternalTrafficPolicy = one(g, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
	}
	if g.chance(25) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(one[int32](g, 3600, 10800, 86400))}}
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		g.balancer(s, i)
	}
	s.Spec.Ports = one(g,
		[]corev1.ServicePort{{Protocol: corev1.ProtocolTCP}},
		[]corev1.ServicePort{{Protocol: corev1.ProtocolUDP}},
		[]corev1.ServicePort{{Name: "t", Protocol: corev1.ProtocolTCP}, {Name: "u", Protocol: corev1.ProtocolUDP}},
		[]corev1.ServicePort{{Name: "t", Protocol: corev1.ProtocolTCP}, {Name: "x", Protocol: corev1.ProtocolTCP}},
	)
	g.numberPorts(s, i)
	if g.chance(3) {
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	}
	return s
}

// families gives a Service its addresses.
func (g *generator) families(s *corev1.Service, i int) {
	ip := clusterIP(i)
	order := one(g, []int{0}, []int{1}, []int{0, 1}, []int{0, 1}, []int{1, 0})
	for _, f := range order {
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, ip[f].String())
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, [...]corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}[f])
	}
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	s.Spec.IPFamilyPolicy = new([...]corev1.IPFamilyPolicy{corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyRequireDualStack}[len(order)-1])
}

// numberPorts numbers the ports of a Service. Two of one number have different protocols.
func (g *generator) numberPorts(s *corev1.Service, i int) {
	balanced := s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.AllocateLoadBalancerNodePorts != nil
	for j := range s.Spec.Ports {
		p := &s.Spec.Ports[j]
		p.Port, p.NodePort = 80, 0
		if j > 0 && p.Protocol == s.Spec.Ports[0].Protocol || j > 0 && g.chance(50) {
			p.Port = 443
		}
		if s.Spec.Type != corev1.ServiceTypeClusterIP && !balanced {
			p.NodePort = int32(30100 + 10*i + j)
		}
	}
}

// balancer makes a Service one with load-balancer IPs.
func (g *generator) balancer(s *corev1.Service, i int) {
	if g.chance(25) {
		s.Spec.AllocateLoadBalancerNodePorts = new(false)
	}
	for _, ip := range familyStrings(balancerIP(i), g.chance(80), g.chance(80)) {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{
			IP:     ip,
			IPMode: one(g, nil, new(corev1.LoadBalancerIPModeVIP), new(corev1.LoadBalancerIPModeVIP), new(corev1.LoadBalancerIPModeProxy)),
		})
	}
	if g.chance(20) { // an address of both kinds
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, familyStrings(balancerIP(i), g.chance(70), g.chance(70))...)
	}
	if g.chance(10) {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{Hostname: "lb.example.org"})
	}
	if !g.chance(50) {
		return
	}
	ranges := []string{
		outsideGroups[0][0], outsideGroups[0][1], outsideGroups[1][0], " " + outsideGroups[1][1] + " ",
		outsideAddrs(0, 3)[0].String() + "/32", outsideAddrs(0, 3)[1].String() + "/128",
		podRanges[0], podRanges[1], "10.2.0.0/24", "fd02::/64", "0.0.0.0/0", "::/0", "192.0.2.0/24", "fd44::/48",
		nodeAddrs[0].String() + "/32", nodeAddrs[1].String() + "/128", "10.1.0.0/26", "10.1.0.16/28",
	}
	for range 1 + g.IntN(3) {
		s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, one(g, ranges...))
	}
}

// familyStrings returns the addresses of the families asked for.
func familyStrings(a addrs, v4, v6 bool) (out []string) {
	for f, wanted := range []bool{v4, v6} {
		if wanted {
			out = append(out, a[f].String())
		}
	}
	return out
}

// slices returns one or two slices of each family of a Service, of a family at times none.
func (g *generator) slices(s *corev1.Service) (out []*discoveryv1.EndpointSlice) {
	hints := one(g, "none", "none", "zones", "nodes", "both", "some")
	for f, addressType := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		at := g.Perm(len(places))[:one(g, 0, 1, 1, 2, 2, 3, 4, 5)]
		cut := len(at)
		if g.chance(30) && cut > 0 {
			cut = g.IntN(cut)
		}
		for half, of := range [][]int{at[:cut], at[cut:]} {
			if len(of) == 0 && (half == 1 || g.chance(50)) {
				continue
			}
			e := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Name: fmt.Sprintf("%s-%d-%d", s.Name, f, half), Namespace: s.Namespace,
					Labels: map[string]string{discoveryv1.LabelServiceName: s.Name},
				},
				AddressType: addressType,
				Ports:       g.slicePorts(s),
			}
			if g.chance(3) {
				e.Labels[corev1.IsHeadlessService] = ""
			}
			for _, p := range of {
				e.Endpoints = append(e.Endpoints, g.endpoint(places[p], places[p].addrs[f], hints))
			}
			out = append(out, e)
		}
	}
	return out
}

// slicePorts returns the target ports of a Service's ports, of which one may be missing.
func (g *generator) slicePorts(s *corev1.Service) (out []discoveryv1.EndpointPort) {
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		port := discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(p.Protocol), Port: new(int32(one(g, targetPorts...)))}
		if !g.chance(3) {
			out = append(out, port)
		}
	}
	return out
}

func (g *generator) endpoint(p place, addr netip.Addr, hints string) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{addr.String()}, NodeName: new(p.node), Conditions: g.conditions()}
	if p.node != nodeName && g.chance(5) {
		e.NodeName = nil
	}
	if hints == "none" || hints == "some" && g.chance(50) {
		return e
	}
	e.Hints = new(discoveryv1.EndpointHints)
	if hints != "nodes" {
		e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: one(g, zones...)})
		if g.chance(20) {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: one(g, zones...)})
		}
	}
	if hints != "zones" {
		e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: p.node})
	}
	return e
}

// conditions are of endpoints that are ready, most of them, that terminate and serve or not,
// that are not ready, and of a few without any meaning.
func (g *generator) conditions() discoveryv1.EndpointConditions {
	of := func(ready, serving, terminating bool) discoveryv1.EndpointConditions {
		return discoveryv1.EndpointConditions{Ready: new(ready), Serving: new(serving), Terminating: new(terminating)}
	}
	switch n := g.IntN(20); {
	case n < 9:
		return of(true, true, false)
	case n < 11:
		return discoveryv1.EndpointConditions{}
	case n < 15:
		return of(false, true, true)
	case n < 17:
		return of(false, false, true)
	case n < 18:
		return of(false, false, false)
	}
	maybe := func() *bool { return one(g, nil, new(true), new(false)) }
	return discoveryv1.EndpointConditions{Ready: maybe(), Serving: maybe(), Terminating: maybe()}
}
