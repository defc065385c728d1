package differential

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/tests/wait"
)

// udpService is a Service of UDP with an endpoint list of its own. Its addresses are those of number,
// the NodePort is of number, too.
func udpService(name string, number int, kind corev1.ServiceType, endpoints ...udpEndpoint) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	ip := clusterIP(number)
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.ServiceSpec{
			Type: kind, ClusterIP: ip[0].String(), ClusterIPs: familyStrings(ip, true, true),
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports:      []corev1.ServicePort{{Protocol: corev1.ProtocolUDP, Port: 80}},
		},
	}
	if kind == corev1.ServiceTypeNodePort {
		s.Spec.Ports[0].NodePort = outliveNodePort
		s.Spec.ExternalIPs = familyStrings(externalIP(0), true, true)
	}
	var slices []*discoveryv1.EndpointSlice
	for f, addressType := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("%s-%d", name, f), Namespace: "default",
				Labels: map[string]string{discoveryv1.LabelServiceName: name},
			},
			AddressType: addressType,
			Ports:       []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolUDP), Port: new(int32(targetPorts[0]))}},
		}
		for _, e := range endpoints {
			at := discoveryv1.Endpoint{
				Addresses: []string{places[e.place].addrs[f].String()}, NodeName: new(places[e.place].node),
				Conditions: discoveryv1.EndpointConditions{Ready: new(!e.terminates), Serving: new(!e.ended), Terminating: new(e.terminates)},
			}
			if e.zone != "" {
				at.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: e.zone}}}
			}
			slice.Endpoints = append(slice.Endpoints, at)
		}
		slices = append(slices, slice)
	}
	return s, slices
}

const outliveNodePort = 30150

// udpEndpoint is an endpoint at a place.
type udpEndpoint struct {
	place             int
	zone              string // hint
	terminates, ended bool   // ended: it serves no more
}

// TestFlowsOutlive: flows of UDP from outside stay with their endpoint, or leave it, at the same changes
// as with kube-proxy. In each step only one endpoint is right for a flow that is under way. Those whose
// address becomes another Service's follow it in any case, as with kube-proxy in some.
func TestFlowsOutlive(t *testing.T) {
	for _, s := range allSettings {
		if s.name == "packets" || s.name == "primary" {
			continue // packets from outside take the way of the others
		}
		for _, former := range []int{0, 3} { // on the node, and on the other one
			t.Run(fmt.Sprintf("%s from place %d", s.name, former), func(t *testing.T) {
				t.Parallel()
				newPair(t, s).outlive(former)
			})
		}
	}
}

// outlive has flows begin at an endpoint and looks where their datagrams go after each change.
func (p *pair) outlive(former int) {
	const next, other = 4, 5 // places
	ready, leaves := udpEndpoint{place: former}, udpEndpoint{place: former, terminates: true}
	gone := udpEndpoint{place: former, terminates: true, ended: true}
	beside := udpEndpoint{place: next}
	here, elsewhere := zones[0], zones[1]
	node, own := corev1.ServiceTypeNodePort, corev1.ServiceTypeClusterIP
	for i, step := range []struct {
		what      string
		kind      corev1.ServiceType
		endpoints []udpEndpoint
		handed    bool // the addresses are another Service's
		want      int  // place
	}{
		{what: "begin", kind: node, endpoints: []udpEndpoint{ready}, want: former},
		{what: "another endpoint", kind: node, endpoints: []udpEndpoint{ready, beside}, want: former},
		{what: "it terminates beside a ready one", kind: node, endpoints: []udpEndpoint{leaves, beside}, want: former},
		{what: "hints that leave it out", kind: node, endpoints: []udpEndpoint{{place: former, zone: elsewhere}, {place: next, zone: here}}, want: former},
		{what: "no NodePort and external IP", kind: own, endpoints: []udpEndpoint{ready, beside}, want: former},
		{what: "both back", kind: node, endpoints: []udpEndpoint{leaves, beside}, want: former},
		{what: "it serves no more", kind: node, endpoints: []udpEndpoint{gone, beside}, want: next},
		{what: "the next one alone", kind: node, endpoints: []udpEndpoint{beside}, want: next},
		{what: "the addresses are another Service's", handed: true, endpoints: []udpEndpoint{beside}, want: other},
	} {
		c := &cluster{zone: here}
		kind := step.kind
		if step.handed {
			kind = own
			green, slices := udpService("green", 1, node, udpEndpoint{place: other})
			c.services, c.slices = append(c.services, green), append(c.slices, slices...)
		}
		blue, slices := udpService("blue", 0, kind, step.endpoints...)
		c.services, c.slices = append(c.services, blue), append(c.slices, slices...)
		p.must(p.apply(c))
		p.must(p.apply(c)) // kube-proxy has ended the sync that made its rules, and with it what it removes from conntrack
		for _, w := range []*world{p.beeline, p.kubeProxy} {
			if step.handed && w == p.kubeProxy {
				continue // it looks for such flows only when a sync has endpoints that changed, too
			}
			w.goOn(fmt.Sprintf("step %d, %s", i, step.what), step.want)
		}
	}
}

// goOn sends a datagram of each flow until all have come to the place, in a little more than a second:
// Beeline looks once a second whose an address is.
func (w *world) goOn(what string, place int) {
	w.t.Helper()
	var attempts []attempt
	for f := range 2 {
		for i, to := range []netip.Addr{nodeAddrs[f], externalIP(0)[f]} {
			port := uint16(80)
			if i == 0 {
				port = outliveNodePort
			}
			attempts = append(attempts, attempt{
				udp: true, from: outsideAddrs(0, 0)[f], port: uint16(9000 + i), to: netip.AddrPortFrom(to, port),
			})
		}
	}
	var results []result
	for begin := time.Now(); time.Since(begin) < wait.Limit; time.Sleep(100 * time.Millisecond) {
		var err error
		if results, err = w.at[fromOutside].try(attempts, 0); err != nil {
			w.t.Fatal(err)
		}
		there := true
		for i, a := range attempts {
			f := map[bool]int{true: 0, false: 1}[a.to.Addr().Is4()]
			there = there && results[i].verdict == reached && results[i].server.Addr() == places[place].addrs[f]
		}
		if there {
			return
		}
	}
	for i, a := range attempts {
		w.t.Errorf("%s: %s: the flow %s:%d to %s: %s, %s, want place %d", w.name, what, a.from, a.port, a.to, results[i].verdict, results[i].server, place)
	}
}
