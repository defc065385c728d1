package netns_test

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// serviceRanges hold every cluster IP of these tests.
var serviceRanges = []string{"10.96.0.0/16", "fd96::/112"}

// wantSendFailure sends a datagram without a connection and compares the error.
func wantSendFailure(t *testing.T, n *lab.Namespace, network string, to netip.AddrPort, want error) {
	t.Helper()
	s := n.Socket(network)
	defer s.Close()
	if err := s.SendTo("who", to); err != want {
		t.Errorf("%s: sendto %s: %v, want %v", network, to, err, want)
	}
}

// TestNoEndpoint: connections to a Service without usable endpoints are refused.
func TestNoEndpoint(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	a.Apply(dual, lab.Slice("dual", "web:8080/TCP,dns:8080/UDP"))
	for network, to := range map[string][]netip.AddrPort{
		"tcp4": {dualTCP4}, "tcp6": {dualTCP6, dualTCP4}, "udp4": {dualUDP4}, "udp6": {dualUDP6, dualUDP4},
	} {
		for _, to := range to {
			wantFailure(t, h.Namespace, network, to, unix.ECONNREFUSED)
			if network[:3] == "udp" {
				wantSendFailure(t, h.Namespace, network, to, unix.ECONNREFUSED)
			}
		}
	}
}

// TestInternalTrafficPolicyLocal: the ClusterIP selects endpoints on the node only; without one,
// connect() fails with EHOSTUNREACH and no packet leaves.
func TestInternalTrafficPolicyLocal(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	a.Apply(lab.Service("local", `{clusterIPs: [10.96.0.6, "fd96::6"], internalTrafficPolicy: Local, ports: [`+
		`{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}]}`))
	const ports = "web:8080/TCP,dns:8080/UDP"
	web4, web6, dns4, dns6 := ap("10.96.0.6:80"), ap("[fd96::6]:80"), ap("10.96.0.6:53"), ap("[fd96::6]:53")

	t.Run("some", func(t *testing.T) {
		a.Apply(lab.SliceOf("local", ports, "{addresses: [10.77.0.1], nodeName: node-1}",
			"{addresses: [10.77.0.2], nodeName: node-2}", "{addresses: [10.77.0.3], nodeName: node-1}"),
			lab.SliceOf("local", ports, `{addresses: ["fd77::1"], nodeName: node-2}`, `{addresses: ["fd77::2"], nodeName: node-1}`))
		wantBalanced(t, h.Namespace, "tcp4", web4, lab.Backend4(1), lab.Backend4(3))
		wantBalanced(t, h.Namespace, "udp6", dns6, lab.Backend6(2))
	})
	t.Run("none", func(t *testing.T) {
		a.Apply(lab.SliceOf("local", ports, "{addresses: [10.77.0.2], nodeName: node-2}"),
			lab.SliceOf("local", ports, `{addresses: ["fd77::2"], nodeName: node-2}`))
		capture := h.Capture()
		for network, to := range map[string][2]netip.AddrPort{"4": {web4, dns4}, "6": {web6, dns6}} {
			wantFailure(t, h.Namespace, "tcp"+network, to[0], unix.EHOSTUNREACH)
			wantFailure(t, h.Namespace, "udp"+network, to[1], unix.EHOSTUNREACH)
			wantSendFailure(t, h.Namespace, "udp"+network, to[1], unix.EHOSTUNREACH)
		}
		// What is sent later is seen, and so would be what was sent before.
		other, socket := ap("203.0.113.77:53"), h.Socket("udp4")
		lab.Eventually(t, "the capture sees what leaves", func() bool {
			if err := socket.SendTo("x", other); err != nil {
				t.Fatal(err)
			}
			return capture.Saw(other.Addr(), "")
		})
		for _, addr := range []netip.Addr{web4.Addr(), web6.Addr(), lab.Backend4(2), lab.Backend6(2)} {
			if capture.Saw(addr, "") {
				t.Errorf("a packet with %s left", addr)
			}
		}
	})
}

// TestTerminating: terminating endpoints are used only when no ready one is left.
func TestTerminating(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	const terminating = "conditions: {ready: false, serving: true, terminating: true}"
	a.Apply(lab.Service("web", `{clusterIP: 10.96.0.7, ports: [{port: 80}]}`))
	a.Apply(lab.SliceOf("web", "8080/TCP", "{addresses: [10.77.0.1]}", "{addresses: [10.77.0.2], "+terminating+"}"))
	wantBalanced(t, h.Namespace, "tcp4", ap("10.96.0.7:80"), lab.Backend4(1))
	a.Apply(lab.SliceOf("web", "8080/TCP", "{addresses: [10.77.0.1], conditions: {ready: false, serving: false}}",
		"{addresses: [10.77.0.2], "+terminating+"}"))
	wantBalanced(t, h.Namespace, "tcp4", ap("10.96.0.7:80"), lab.Backend4(2))
}

// TestConnectionOutlivesBackend: an established connection goes on after its
// endpoint left the Service.
func TestConnectionOutlivesBackend(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	s := h.Socket("tcp4")
	if err := s.Connect(dualTCP4); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Receive(); err != nil {
		t.Fatal(err)
	}
	a.DeleteService("dual")
	wantEcho(t, s)
	if peer, err := s.Peer(); err != nil || peer != dualTCP4 {
		t.Errorf("getpeername() shows %v, %v, want %v", peer, err, dualTCP4)
	}
}

// wantEcho exchanges data on an established connection.
func wantEcho(t *testing.T, s *lab.Socket) {
	t.Helper()
	if got, err := s.Ask("still there"); err != nil || got != "still there" {
		t.Errorf("the connection answers %q, %v", got, err)
	}
}

// TestUndeclaredPort: connections to ports of a ClusterIP that the Service does not have are refused.
func TestUndeclaredPort(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	for network, to := range map[string]netip.AddrPort{"4": ap("10.96.0.1:81"), "6": ap("[fd96::1]:81")} {
		wantFailure(t, h.Namespace, "tcp"+network, to, unix.ECONNREFUSED)
		wantSendFailure(t, h.Namespace, "udp"+network, to, unix.ECONNREFUSED)
		s := h.Socket("udp" + network)
		if err := s.Connect(to); err != nil {
			t.Errorf("connect() of a UDP socket to %s, which sends nothing: %v", to, err)
		}
		if peer, err := s.Peer(); err != nil || peer != to {
			t.Errorf("getpeername() shows %v, %v, want %v", peer, err, to)
		}
	}
	wantFailure(t, h.Namespace, "tcp6", ap("10.96.0.1:81"), unix.ECONNREFUSED)
	// The port of one protocol is none of the other.
	wantFailure(t, h.Namespace, "tcp4", dualUDP4, unix.ECONNREFUSED)
	wantSendFailure(t, h.Namespace, "udp4", dualTCP4, unix.ECONNREFUSED)
}

// TestUnallocatedAddress: connect() to an address of the Service range without a Service fails with
// EHOSTUNREACH, and no packet leaves.
func TestUnallocatedAddress(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges})
	applyDual(a)
	capture := h.Capture()
	for network, to := range map[string]netip.AddrPort{"4": ap("10.96.200.1:80"), "6": ap("[fd96::200]:80")} {
		wantFailure(t, h.Namespace, "tcp"+network, to, unix.EHOSTUNREACH)
		wantSendFailure(t, h.Namespace, "udp"+network, to, unix.EHOSTUNREACH)
		if err := h.Socket("udp" + network).Connect(to); err != nil {
			t.Errorf("connect() of a UDP socket to %s, which sends nothing: %v", to, err)
		}
		if capture.Saw(to.Addr(), "") {
			t.Errorf("a packet with %s left", to.Addr())
		}
	}
	wantBalanced(t, h.Namespace, "tcp4", dualTCP4, backends4(3)...)
	a.DeleteService("dual")
	wantFailure(t, h.Namespace, "tcp4", dualTCP4, unix.EHOSTUNREACH)
}
