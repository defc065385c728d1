package netns_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// The Service gone, whose endpoints go.
const gone = `{clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9, "fd96::9"], ports: [{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}]}`

var (
	goneTCP4 = ap("10.96.0.9:80")
	goneUDP4 = ap("10.96.0.9:53")
	goneUDP6 = ap("[fd96::9]:53")
)

// applyGone makes the Service with the i-th backends as its endpoints.
func applyGone(a *lab.Agent, i int) {
	a.Apply(lab.Service("gone", gone),
		lab.Slice("gone", "web:8080/TCP,dns:8080/UDP", lab.Backend4(i)),
		lab.Slice("gone", "web:8080/TCP,dns:8080/UDP", lab.Backend6(i)))
}

func backendPort(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, lab.BackendPort) }

// connected returns a UDP socket that is connected and gets answers.
func connected(t *testing.T, n *lab.Namespace, network string, to netip.AddrPort) *lab.Socket {
	t.Helper()
	s := n.Socket(network)
	connect(t, s, to)
	return s
}

func connect(t *testing.T, s *lab.Socket, to netip.AddrPort) {
	t.Helper()
	if err := s.Connect(to); err != nil {
		t.Fatalf("connect to %s: %v", to, err)
	}
	wantKept(t, "just connected", s)
}

// wantDestroyed checks that whoever waits for an answer gets an error.
func wantDestroyed(t *testing.T, what string, s *lab.Socket) {
	t.Helper()
	s.Ready(wait.Limit) // a slow machine pauses for long after a search
	if _, _, err := s.Receive(); !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("%s: who waits for an answer gets %v, want %v", what, err, unix.ECONNABORTED)
	}
}

// wantKept checks that a socket gets answers.
func wantKept(t *testing.T, what string, s *lab.Socket) {
	t.Helper()
	if answer, err := s.Ask("still there?"); err != nil {
		t.Errorf("%s: %q, %v", what, answer, err)
	}
}

// wantDestroys checks how many sockets a search destroys.
func wantDestroys(t *testing.T, what string, a *lab.Agent, want int) {
	t.Helper()
	if got := a.DestroySockets(); got != want {
		t.Errorf("%s: %d sockets are destroyed, want %d", what, got, want)
	}
}

// TestEndpointGone: sockets connected to an endpoint by its Service are destroyed soon after it is
// removed, in every network namespace, and no others. They reach another endpoint when they
// reconnect.
func TestEndpointGone(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	namespaces := []*lab.Namespace{h.Namespace, h.Pod, h.NewPod()}
	for _, n := range namespaces {
		n.Populate()
	}
	for _, c := range []struct {
		name, network     string
		to, direct, other netip.AddrPort
		moved             netip.Addr
	}{
		{"IPv4", "udp4", goneUDP4, backendPort(lab.Backend4(1)), dualUDP4, lab.Backend4(2)},
		{"IPv6", "udp6", goneUDP6, backendPort(lab.Backend6(1)), dualUDP6, lab.Backend6(2)},
		{"mapped", "udp6", goneUDP4, backendPort(lab.Backend4(1)), dualUDP4, lab.Backend4(2)},
	} {
		t.Run(c.name, func(t *testing.T) {
			applyGone(a, 1)
			var through []*lab.Socket
			kept := make(map[string][]*lab.Socket)
			keep := func(what string, s *lab.Socket) { kept[what] = append(kept[what], s) }
			for _, n := range namespaces {
				through = append(through, connected(t, n, c.network, c.to))
				keep("to the endpoint itself", connected(t, n, c.network, c.direct))
				keep("to another Service", connected(t, n, c.network, c.other))
				once := connected(t, n, c.network, c.to)
				connect(t, once, c.direct)
				keep("to the endpoint itself after the Service", once)
				tcp := n.Socket("tcp4")
				if err := tcp.Connect(goneTCP4); err != nil {
					t.Fatal(err)
				}
				keep("TCP", tcp)
			}
			applyGone(a, 2)
			for _, s := range through {
				wantDestroyed(t, "through the Service", s)
			}
			wantDestroys(t, "another search", a, 0)
			for _, s := range through {
				connect(t, s, c.to)
				if answer, err := s.Ask("who"); err != nil || ap(answer) != backendPort(c.moved) {
					t.Errorf("connected anew: %s answers, %v, want %s", answer, err, c.moved)
				}
			}
			for what, sockets := range kept {
				for _, s := range sockets {
					wantKept(t, what, s)
				}
			}
		})
	}
}

// TestSenderGetsError: a sender that reads no replies gets an error, too.
func TestSenderGetsError(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	h.Populate()
	applyGone(a, 1)
	s := connected(t, h.Namespace, "udp4", goneUDP4)
	applyGone(a, 2)
	lab.Eventually(t, "send() fails", func() bool {
		a.DestroySockets()
		return errors.Is(s.Send("hello"), unix.EDESTADDRREQ)
	})
}

// TestSocketOfDevice: sockets bound to a device (SO_BINDTODEVICE) are destroyed, too.
func TestSocketOfDevice(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	h.Pod.Populate()
	applyGone(a, 1)
	s := h.Pod.Socket("udp4")
	err := h.Pod.Run(func() error {
		device, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		return s.SetOption(unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, device.Index)
	})
	if err != nil {
		t.Fatal(err)
	}
	connect(t, s, goneUDP4)
	applyGone(a, 2)
	wantDestroyed(t, "of a device", s)
}

// TestSocketOfGoneDevice: sockets bound to a device that is gone by now are destroyed, and keep no others from being.
func TestSocketOfGoneDevice(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	h.Pod.Populate()
	h.Pod.AddDevice("leaves", h.Namespace, "leavestoo")
	var device netlink.Link
	err := h.Pod.Run(func() (err error) {
		if device, err = netlink.LinkByName("leaves"); err != nil {
			return err
		}
		// After those of other devices. Nobody answers by it.
		return netlink.RouteAdd(&netlink.Route{LinkIndex: device.Attrs().Index, Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}, Priority: 9999})
	})
	if err != nil {
		t.Fatal(err)
	}
	applyGone(a, 1)
	sockets := make(map[*lab.Socket]string)
	for network, to := range map[string]netip.AddrPort{"udp4": goneUDP4, "udp6": goneUDP6} {
		bound := h.Pod.Socket(network)
		if err := bound.SetOption(unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, device.Attrs().Index); err != nil {
			t.Fatal(err)
		}
		if err := bound.Connect(to); err != nil {
			t.Fatal(err)
		}
		sockets[bound] = network + ", bound to the device"
		for range 8 {
			sockets[connected(t, h.Pod, network, to)] = network
		}
	}
	if err := h.Pod.Run(func() error { return netlink.LinkDel(device) }); err != nil {
		t.Fatal(err)
	}
	applyGone(a, 2)
	for s, what := range sockets {
		wantDestroyed(t, what, s)
	}
	wantDestroys(t, "another search", a, 0)
}

// TestSocketsOfOneAddress: of two sockets with the same addresses and ports, the one that
// its process has connected to the endpoint stays, whichever the kernel finds.
func TestSocketsOfOneAddress(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	h.Populate()
	applyGone(a, 1)
	direct, through := h.Socket("udp4"), h.Socket("udp4")
	for i, s := range []*lab.Socket{direct, through} {
		if err := s.SetOption(unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
			t.Fatal(err)
		}
		if err := s.Bind(netip.AddrPortFrom(lab.Backend4(8), 4000)); err != nil {
			t.Fatal(err)
		}
		if err := s.Connect([]netip.AddrPort{backendPort(lab.Backend4(1)), goneUDP4}[i]); err != nil {
			t.Fatal(err)
		}
	}
	applyGone(a, 2)
	a.DestroySockets()
	through.Close()
	wantKept(t, "to the endpoint itself", direct)
}

// TestEndpointStillServes: a terminating endpoint keeps its sockets while it is serving.
func TestEndpointStillServes(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	h.Populate()
	applyGone(a, 1)
	s := connected(t, h.Namespace, "udp4", goneUDP4)
	leave := func(serving bool) {
		a.Apply(lab.SliceOf("gone", "dns:8080/UDP", `{addresses: ["10.77.0.2"]}`,
			fmt.Sprintf(`{addresses: ["10.77.0.1"], conditions: {ready: false, serving: %t, terminating: true}}`, serving)))
	}
	leave(true)
	wantDestroys(t, "serving", a, 0)
	wantKept(t, "serving", s)
	leave(false)
	wantDestroyed(t, "not serving", s)
}

// TestServiceGone: sockets are destroyed when the Service, its port's protocol or its endpoint is
// gone, not when the port's number changes.
func TestServiceGone(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	h.Populate()
	for what, change := range map[string]func(){
		"deleted":       func() { a.DeleteService("gone") },
		"without UDP":   func() { a.Apply(lab.Service("gone", `{clusterIP: 10.96.0.9, ports: [{name: web, port: 80}]}`)) },
		"scaled to 0":   func() { a.Apply(lab.SliceOf("gone", "dns:8080/UDP")) },
		"at other port": func() { a.Apply(lab.Slice("gone", "dns:8081/UDP", lab.Backend4(1))) },
	} {
		t.Run(what, func(t *testing.T) {
			applyGone(a, 1)
			s := connected(t, h.Namespace, "udp4", goneUDP4)
			change()
			wantDestroyed(t, what, s)
		})
	}
	applyGone(a, 1)
	s := connected(t, h.Namespace, "udp4", goneUDP4)
	a.Apply(lab.Service("gone", `{clusterIP: 10.96.0.9, ports: [{name: dns, port: 54, protocol: UDP}]}`))
	wantDestroys(t, "at another port of the Service", a, 0)
	wantKept(t, "at another port of the Service", s)
}
