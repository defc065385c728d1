package differential

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// modelCluster has one Service of one port, with the endpoints at the places, as far as given.
func modelCluster(endpoints map[int]discoveryv1.Endpoint) *cluster {
	s := &corev1.Service{}
	s.Name = "svc-0"
	s.Spec.ClusterIPs = []string{clusterIP(0)[0].String()}
	s.Spec.Type = corev1.ServiceTypeNodePort
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	s.Spec.Ports = []corev1.ServicePort{{Port: 80, NodePort: 30100, Protocol: corev1.ProtocolTCP}}
	e := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	e.Labels = map[string]string{discoveryv1.LabelServiceName: s.Name}
	e.Ports = []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}}
	for i := range places {
		if is, ok := endpoints[i]; ok {
			is.Addresses, is.NodeName = []string{places[i].addrs[0].String()}, new(places[i].node)
			e.Endpoints = append(e.Endpoints, is)
		}
	}
	return &cluster{zone: "a", services: []*corev1.Service{s}, slices: []*discoveryv1.EndpointSlice{e}}
}

// TestCandidates: the sets of the traffic policies, as the contract of kube-proxy has them.
func TestCandidates(t *testing.T) {
	ready := discoveryv1.Endpoint{}
	draining := discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}}
	gone := discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false)}}
	zone := func(name string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: name}}}}
	}
	node := func(name string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Hints: &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: name}}}}
	}
	for name, c := range map[string]struct {
		endpoints      map[int]discoveryv1.Endpoint
		inside, beyond []int
	}{
		"ready":                         {map[int]discoveryv1.Endpoint{0: ready, 3: ready}, []int{0, 3}, []int{0}},
		"none on the node":              {map[int]discoveryv1.Endpoint{3: ready}, []int{3}, nil},
		"terminating beside ready":      {map[int]discoveryv1.Endpoint{0: draining, 3: ready}, []int{3}, []int{0}},
		"terminating alone":             {map[int]discoveryv1.Endpoint{0: draining, 3: draining}, []int{0, 3}, []int{0}},
		"not serving":                   {map[int]discoveryv1.Endpoint{0: gone}, nil, nil},
		"hints of zones":                {map[int]discoveryv1.Endpoint{0: zone("b"), 3: zone("a")}, []int{3}, []int{0}},
		"hints of another zone":         {map[int]discoveryv1.Endpoint{0: zone("b"), 3: zone("c")}, []int{0, 3}, []int{0}},
		"a ready one without hints":     {map[int]discoveryv1.Endpoint{0: ready, 3: zone("a")}, []int{0, 3}, []int{0}},
		"hints of nodes":                {map[int]discoveryv1.Endpoint{0: node(nodeName), 3: node(otherName)}, []int{0}, []int{0}},
		"an unready one without a hint": {map[int]discoveryv1.Endpoint{0: gone, 3: zone("a"), 4: zone("b")}, []int{3}, nil},
	} {
		p := probe{kind: kindNodePort, service: "svc-0", to: netip.AddrPortFrom(nodeAddrs[0], 30100)}
		all, inside, beyond := candidates(modelCluster(c.endpoints), p)
		if len(all) != len(c.endpoints) {
			t.Errorf("%s: %v of %d endpoints", name, all, len(c.endpoints))
		}
		for what, got := range map[string][2][]netip.AddrPort{"inside": {inside, at(c.inside)}, "outside": {beyond, at(c.beyond)}} {
			if !slices.Equal(got[0], got[1]) {
				t.Errorf("%s: clients %s reach %v, want %v", name, what, got[0], got[1])
			}
		}
	}
}

// TestCandidatesOfHeadless: a slice of a headless Service has none.
func TestCandidatesOfHeadless(t *testing.T) {
	c := modelCluster(map[int]discoveryv1.Endpoint{0: {}})
	c.slices[0].Labels[corev1.IsHeadlessService] = ""
	if all, _, _ := candidates(c, probe{kind: kindNodePort, service: "svc-0", to: netip.AddrPortFrom(nodeAddrs[0], 30100)}); len(all) > 0 {
		t.Errorf("it has %v", all)
	}
}

func at(indexes []int) (out []netip.AddrPort) {
	for _, i := range indexes {
		out = append(out, netip.AddrPortFrom(places[i].addrs[0], 8080))
	}
	return out
}

// TestAttempts: so many attempts miss one of the endpoints with the probability at most.
func TestAttempts(t *testing.T) {
	for n := 2; n < 8; n++ {
		miss := float64(n)
		for range attemptsFor(n, missed) {
			miss *= 1 - 1/float64(n)
		}
		if miss > missed {
			t.Errorf("%d endpoints: %d attempts miss one with probability %g", n, attemptsFor(n, missed), miss)
		}
	}
}

// TestMatrix: every client asks for every frontend, once.
func TestMatrix(t *testing.T) {
	c := modelCluster(nil)
	c.addrs = []netip.Addr{extraAddrs[0][0]}
	all := matrix(c)
	seen := make(map[probe]bool)
	for _, p := range all {
		if seen[p] {
			t.Errorf("%s: twice", p)
		}
		seen[p] = true
	}
	// A ClusterIP, NodePorts at three addresses, an undeclared port and two unallocated
	// addresses from each client, and two loopback addresses from the node.
	if want := 7*len(clients) + 2; len(all) != want {
		t.Errorf("%d probes, want %d", len(all), want)
	}
	if some := sample(c, 5, 1, 1); len(some) != 5 || !slices.Equal(some, sample(c, 5, 1, 1)) {
		t.Errorf("a sample of 5 is %v", some)
	}
}

// TestAttemptsLetIn: where a Service lets in few of the clients, these make enough attempts to be shown
// all endpoints.
func TestAttemptsLetIn(t *testing.T) {
	c := modelCluster(map[int]discoveryv1.Endpoint{0: {}, 3: {}, 4: {}})
	s := c.services[0]
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: balancerIP(1)[0].String()}}
	p := probe{kind: kindBalancer, service: s.Name, machine: fromOutside, to: netip.AddrPortFrom(balancerIP(1)[0], 80)}
	for name, tt := range map[string]struct {
		ranges       []string
		clients, let int
	}{
		"one":      {[]string{"10.1.0.5/32"}, 1, attemptsFor(3, missed)},
		"two":      {[]string{"10.1.0.4/31", "fd01::5/128"}, 2, attemptsFor(3, missed)},
		"all":      {[]string{"0.0.0.0/0"}, clientsOfGroup, 0},
		"nobody":   {[]string{"fd01::5/128"}, 0, 0},
		"no range": {nil, 0, 0},
	} {
		s.Spec.LoadBalancerSourceRanges = tt.ranges
		let := make(map[netip.Addr]int)
		attempts := 0
		for _, a := range attemptsOf(c, p, missed)[attemptsFor(3, missed):] {
			let[a.from]++
			attempts++
		}
		if attempts != tt.let || tt.let > 0 && len(let) != tt.clients {
			t.Errorf("%s: %d more attempts of %v", name, attempts, let)
		}
	}
}
