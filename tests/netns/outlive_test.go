package netns_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// stays are UDP sockets that have sent to a Service, connected and not, of each kind: one that is not
// has asked for another Service before, so that the entry of this one is in bl_udp_peer.
type stays struct {
	network string
	to      netip.AddrPort
	who     netip.AddrPort
	once    *lab.Socket // not connected
	further *lab.Socket // likewise, after another Service
	kept    *lab.Socket // connected
}

// stayAt opens sockets to the UDP port of the Service gone, which has one endpoint.
func stayAt(t *testing.T, n *lab.Namespace) (all []*stays) {
	t.Helper()
	for _, c := range udpCases {
		to := goneUDP4
		if c.to == dualUDP6 {
			to = goneUDP6
		}
		s := &stays{network: c.network, to: to, once: n.Socket(c.network), further: n.Socket(c.network)}
		s.who = send(t, s.once, c.network, to)
		send(t, s.further, c.network, c.to)
		send(t, s.further, c.network, to)
		s.kept = connected(t, n, c.network, to)
		all = append(all, s)
	}
	return all
}

// stay checks that the sockets have the endpoint that they had.
func (s *stays) stay(t *testing.T, what string) {
	t.Helper()
	for name, unconnected := range map[string]*lab.Socket{"a socket": s.once, "a socket with several Services": s.further} {
		if got := send(t, unconnected, s.network, s.to); got != s.who {
			t.Errorf("%s: %s of %s went from %s to %s", what, name, s.network, s.who, got)
		}
	}
	wantKept(t, what, s.kept)
}

// moves checks that the sockets go from one endpoint to another, or are destroyed.
func (s *stays) moves(t *testing.T, what string, to netip.Addr) {
	t.Helper()
	for name, unconnected := range map[string]*lab.Socket{"a socket": s.once, "a socket with several Services": s.further} {
		if got := send(t, unconnected, s.network, s.to); got != backendPort(to) {
			t.Errorf("%s: %s of %s is at %s, want %s", what, name, s.network, got, to)
		}
	}
	wantDestroyed(t, what, s.kept)
}

// of returns the address of the socket's family, as endpoints have it.
func (s *stays) of(v4, v6 netip.Addr) netip.Addr {
	if s.to.Addr().Is6() {
		return v6
	}
	return v4
}

// goneAs makes the Service gone with these endpoints of IPv4 and IPv6, in YAML but for their addresses.
func goneAs(a *lab.Agent, one, two string) {
	endpoint := func(addr netip.Addr, more string) string {
		return fmt.Sprintf("{addresses: [%q], nodeName: there, %s}", addr, more)
	}
	const ports = "web:8080/TCP,dns:8080/UDP"
	a.Apply(lab.SliceOf("gone", ports, endpoint(lab.Backend4(1), one), endpoint(lab.Backend4(2), two)),
		lab.SliceOf("gone", ports, endpoint(lab.Backend6(1), one), endpoint(lab.Backend6(2), two)))
}

// TestSocketsStay: UDP sockets stay with an endpoint that serves: one that terminates beside others that
// are ready, that topology hints or a policy leave out, and when it is ready again. New ones
// go elsewhere. They move when it serves no more.
func TestSocketsStay(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	h.Populate()
	applyDual(a)
	applyGone(a, 1)
	all := stayAt(t, h.Namespace)
	const ready, terminating = "conditions: {ready: true}", "conditions: {ready: false, serving: true, terminating: true}"
	here := fmt.Sprintf("conditions: {ready: true}, hints: {forNodes: [{name: %q}]}", lab.NodeName)
	const there = "conditions: {ready: true}, hints: {forNodes: [{name: elsewhere}]}"
	for _, step := range []struct{ what, one, two string }{
		{"terminating", terminating, ready},
		{"ready again", ready, ready},
		{"hints to another node", there, here},
		{"no hints", ready, ready},
		{"hints again", there, here},
		{"terminating again", terminating, ready},
	} {
		goneAs(a, step.one, step.two)
		wantDestroys(t, step.what, a, 0)
		for _, s := range all {
			s.stay(t, step.what)
			if step.one == ready {
				continue
			}
			fresh := h.Socket(s.network)
			if got, want := send(t, fresh, s.network, s.to), backendPort(s.of(lab.Backend4(2), lab.Backend6(2))); got != want {
				t.Errorf("%s: a new socket of %s reaches %s, want %s", step.what, s.network, got, want)
			}
		}
	}
	goneAs(a, "conditions: {ready: false, serving: false, terminating: true}", ready)
	for _, s := range all {
		s.moves(t, "serves no more", s.of(lab.Backend4(2), lab.Backend6(2)))
	}
}

// TestSocketsHandedOver: UDP sockets follow an address that another Service gets, while their endpoint
// goes on to serve the former one. Those that asked for another address of it stay.
func TestSocketsHandedOver(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	h.Populate()
	applyDual(a)
	const ports = `ports: [{name: dns, port: 53, protocol: UDP}]}`
	service := func(name, spec string) string { return lab.Service(name, spec+ports) }
	const with = `externalIPs: [10.96.0.9, "fd96::9"], `
	const blue, green = `{clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, "fd96::10"], `, `{clusterIP: 10.96.0.11, clusterIPs: [10.96.0.11, "fd96::11"], `
	for i, name := range []string{"blue", "green"} {
		a.Apply(lab.Slice(name, "dns:8080/UDP", lab.Backend4(i+1)), lab.Slice(name, "dns:8080/UDP", lab.Backend6(i+1)))
	}
	a.Apply(service("blue", blue+with), service("green", green))
	all := stayAt(t, h.Namespace)
	kept := connected(t, h.Namespace, "udp4", ap("10.96.0.10:53"))
	a.Apply(service("blue", blue))
	wantDestroys(t, "the address is gone", a, 0)
	for _, s := range all {
		wantKept(t, "the address is gone", s.kept)
	}
	a.Apply(service("green", green+with))
	for _, s := range all {
		s.moves(t, "handed over", s.of(lab.Backend4(2), lab.Backend6(2)))
	}
	wantKept(t, "by another address", kept)
}
