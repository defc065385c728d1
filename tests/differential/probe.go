package differential

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// frontendKind is what an address of a Service is.
type frontendKind string

const (
	kindClusterIP   frontendKind = "ClusterIP"
	kindNodePort    frontendKind = "NodePort"
	kindExternalIP  frontendKind = "external IP"
	kindBalancer    frontendKind = "load-balancer IP"
	kindUndeclared  frontendKind = "undeclared port of a ClusterIP"
	kindUnallocated frontendKind = "unallocated ClusterIP"
	kindLoopback    frontendKind = "NodePort at loopback"
)

// probe is a client and what it asks for.
type probe struct {
	machine string
	// group is of clients outside.
	group   int
	udp     bool
	kind    frontendKind
	service string // the Service's name, if it is of one
	port    string // its name
	to      netip.AddrPort
}

func (p probe) family() int { return map[bool]int{true: 0, false: 1}[p.to.Addr().Is4()] }

func (p probe) String() string {
	protocol := map[bool]string{false: "TCP", true: "UDP"}[p.udp]
	from := p.machine
	if from == fromOutside {
		from = fmt.Sprintf("clients in %s", outsideGroups[p.group][p.family()])
	}
	return fmt.Sprintf("%s from %s to %s, %s of %s port %q", protocol, from, p.to, p.kind, p.service, p.port)
}

// clients are those of the matrix. The last group of clients is outside of most source ranges.
var clients = []probe{
	{machine: fromOutside, group: 0}, {machine: fromOutside, group: 1}, {machine: fromOther},
	{machine: fromNode}, {machine: fromPod0}, {machine: fromPod1},
}

// matrix returns all probes of a cluster: each client to each frontend of each Service.
func matrix(c *cluster) (all []probe) {
	for _, s := range c.services {
		for _, f := range frontends(c, s) {
			for _, client := range clients {
				if f.kind == kindLoopback && client.machine != fromNode {
					continue
				}
				p := f
				p.machine, p.group = client.machine, client.group
				all = append(all, p)
			}
		}
	}
	return all
}

// frontends returns the frontends of a Service, without clients.
func frontends(c *cluster, s *corev1.Service) (all []probe) {
	add := func(kind frontendKind, port corev1.ServicePort, number int32, ips ...string) {
		for _, ip := range ips {
			if addr, err := netip.ParseAddr(ip); err == nil && number != 0 {
				all = append(all, probe{
					udp: port.Protocol == corev1.ProtocolUDP, kind: kind, service: s.Name, port: port.Name,
					to: netip.AddrPortFrom(addr, uint16(number)),
				})
			}
		}
	}
	nodes := []string{nodeAddrs[0].String(), nodeAddrs[1].String()}
	for _, a := range c.addrs {
		nodes = append(nodes, a.String())
	}
	for _, port := range s.Spec.Ports {
		add(kindClusterIP, port, port.Port, s.Spec.ClusterIPs...)
		add(kindNodePort, port, port.NodePort, nodes...)
		add(kindLoopback, port, port.NodePort, "127.0.0.1", "::1")
		add(kindExternalIP, port, port.Port, s.Spec.ExternalIPs...)
		for _, in := range s.Status.LoadBalancer.Ingress {
			if in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP {
				add(kindBalancer, port, port.Port, in.IP)
			}
		}
	}
	port := s.Spec.Ports[0]
	add(kindUndeclared, port, 81, s.Spec.ClusterIPs...)
	unallocated := clusterIP(100)
	add(kindUnallocated, port, 80, unallocated[0].String(), unallocated[1].String())
	return all
}

// sample returns n probes of the matrix, or all of them.
func sample(c *cluster, n int, seed, number uint64) []probe {
	all := matrix(c)
	rand.New(rand.NewPCG(seed, number)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(n, len(all))]
}

// candidates returns the servers that the probe's Service port has in the cluster, usable or
// not, and those that the traffic policies leave to clients of the cluster and to others.
func candidates(c *cluster, p probe) (all, inside, outside []netip.AddrPort) {
	s := c.service(p.service)
	if s == nil {
		return nil, nil, nil
	}
	endpoints := endpointsOf(c, s, p)
	for _, e := range endpoints {
		if !slices.Contains(all, e.server) {
			all = append(all, e.server)
		}
	}
	inside, outside = clusterSet(endpoints, c.zone), localSet(endpoints)
	if p.kind == kindClusterIP {
		if s.Spec.InternalTrafficPolicy == nil || *s.Spec.InternalTrafficPolicy != corev1.ServiceInternalTrafficPolicyLocal {
			return all, inside, inside
		}
		return all, outside, outside
	}
	if s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		outside = inside
	}
	return all, inside, outside
}

// endpoint is an endpoint at a target port.
type endpoint struct {
	server                      netip.AddrPort
	ready, serving, terminating bool
	local                       bool
	hints                       discoveryv1.EndpointHints
}

func endpointsOf(c *cluster, s *corev1.Service, p probe) (out []endpoint) {
	for _, slice := range c.slices {
		if _, headless := slice.Labels[corev1.IsHeadlessService]; headless {
			continue
		}
		if slice.Labels[discoveryv1.LabelServiceName] != s.Name || (slice.AddressType == discoveryv1.AddressTypeIPv4) != p.to.Addr().Is4() {
			continue
		}
		for _, port := range slice.Ports {
			if (port.Name != nil && *port.Name != p.port) || (port.Name == nil && p.port != "") || (*port.Protocol == corev1.ProtocolUDP) != p.udp {
				continue
			}
			for _, e := range slice.Endpoints {
				is := endpoint{
					server: netip.AddrPortFrom(netip.MustParseAddr(e.Addresses[0]), uint16(*port.Port)),
					ready:  or(e.Conditions.Ready, true), serving: or(e.Conditions.Serving, true), terminating: or(e.Conditions.Terminating, false),
					local: or(e.NodeName, "") == nodeName,
					hints: or(e.Hints, discoveryv1.EndpointHints{}),
				}
				out = append(out, is)
			}
		}
	}
	return out
}

func or[T any](value *T, otherwise T) T {
	if value != nil {
		return *value
	}
	return otherwise
}

func serversOf(endpoints []endpoint, which func(endpoint) bool) (out []netip.AddrPort) {
	for _, e := range endpoints {
		if which(e) {
			out = append(out, e.server)
		}
	}
	return out
}

// clusterSet returns the ready endpoints, by the hints, else those that terminate and serve.
func clusterSet(endpoints []endpoint, zone string) []netip.AddrPort {
	forNode := func(e endpoint) bool {
		return slices.ContainsFunc(e.hints.ForNodes, func(h discoveryv1.ForNode) bool { return h.Name == nodeName })
	}
	forZone := func(e endpoint) bool {
		return slices.ContainsFunc(e.hints.ForZones, func(h discoveryv1.ForZone) bool { return h.Name == zone })
	}
	everyReady := func(hinted func(endpoint) bool) bool {
		return !slices.ContainsFunc(endpoints, func(e endpoint) bool { return e.ready && !hinted(e) })
	}
	ready := func(which func(endpoint) bool) []netip.AddrPort {
		return serversOf(endpoints, func(e endpoint) bool { return e.ready && which(e) })
	}
	if set := ready(forNode); len(set) > 0 && everyReady(func(e endpoint) bool { return len(e.hints.ForNodes) > 0 }) {
		return set
	}
	if set := ready(forZone); len(set) > 0 && everyReady(func(e endpoint) bool { return len(e.hints.ForZones) > 0 }) {
		return set
	}
	if set := ready(func(endpoint) bool { return true }); len(set) > 0 {
		return set
	}
	return serversOf(endpoints, func(e endpoint) bool { return e.serving && e.terminating })
}

// localSet returns the ready endpoints of the node, else those that terminate and serve.
func localSet(endpoints []endpoint) []netip.AddrPort {
	if set := serversOf(endpoints, func(e endpoint) bool { return e.local && e.ready }); len(set) > 0 {
		return set
	}
	return serversOf(endpoints, func(e endpoint) bool { return e.local && e.serving && e.terminating })
}

// affinity says whether the probe's Service keeps clients at their endpoint.
func affinity(c *cluster, p probe) bool {
	s := c.service(p.service)
	return s != nil && s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP
}

// outcome is what a probe's attempts came to.
type outcome struct {
	verdicts []verdict                          // other than reached
	sources  map[netip.AddrPort]map[string]bool // of each server that was reached
	strayed  bool                               // a client with session affinity reached two servers
}

// The sources of attempts that are told apart by name.
const ownSource = "its own"

// judge sums up results. own says whether an address is the client's.
func judge(attempts []attempt, results []result, own func(attempt, netip.Addr) bool) outcome {
	o := outcome{sources: make(map[netip.AddrPort]map[string]bool)}
	first := make(map[netip.Addr]netip.AddrPort)
	for i, r := range results {
		if r.verdict != reached {
			if !slices.Contains(o.verdicts, r.verdict) {
				o.verdicts = append(o.verdicts, r.verdict)
			}
			continue
		}
		source := r.source.String()
		if own(attempts[i], r.source) {
			source = ownSource
		}
		if o.sources[r.server] == nil {
			o.sources[r.server] = make(map[string]bool)
		}
		o.sources[r.server][source] = true
		from := attempts[i].from
		if before, ok := first[from]; ok && before != r.server {
			o.strayed = true
		}
		first[from] = r.server
	}
	slices.Sort(o.verdicts)
	return o
}

// servers returns those that were reached, in order.
func (o outcome) servers() (out []netip.AddrPort) {
	for s := range o.sources {
		out = append(out, s)
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

func (o outcome) String() string {
	var parts []string
	for _, v := range o.verdicts {
		parts = append(parts, string(v))
	}
	for _, s := range o.servers() {
		var from []string
		for a := range o.sources[s] {
			from = append(from, a)
		}
		slices.Sort(from)
		parts = append(parts, fmt.Sprintf("%s from %s", s, strings.Join(from, " and ")))
	}
	return strings.Join(parts, ", ")
}
