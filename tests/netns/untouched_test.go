package netns_test

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestNotServed: connections to Services of another proxy, and to addresses that are no Service's, are
// not changed.
func TestNotServed(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{})
	served := []string{"203.0.113.1", "203.0.113.2", "203.0.113.3"}
	for _, addr := range served {
		h.Outside.AddAddr("lo", addr+"/32")
		h.Outside.ServeTCP(ap(addr + ":80"))
		h.Outside.ServeUDP(ap(addr + ":80"))
	}
	ports := "ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]"
	named := strings.Replace(lab.Service("proxied", "{clusterIP: 203.0.113.1, "+ports+"}"),
		"metadata: {", "metadata: {labels: {service.kubernetes.io/service-proxy-name: other}, ", 1)
	a.Apply(named,
		lab.Service("headless", "{clusterIP: None, externalIPs: [203.0.113.2], "+ports+"}"),
		lab.Service("external", "{type: ExternalName, externalName: example.org, externalIPs: [203.0.113.3], "+ports+"}"))
	for _, name := range []string{"proxied", "headless", "external"} {
		a.Apply(lab.Slice(name, "t:8080/TCP,u:8080/UDP", lab.Backend4(1)))
	}
	applyDual(a)
	for _, addr := range served {
		to := ap(addr + ":80")
		for _, network := range []string{"tcp4", "tcp6", "udp4", "udp6"} {
			if got := mustReach(t, h.Namespace, network, to); got != to {
				t.Errorf("%s to %s reached %s", network, to, got)
			}
			if strings.HasPrefix(network, "udp") {
				if got := send(t, h.Socket(network), network, to); got != to {
					t.Errorf("sendto %s reached %s", to, got)
				}
			}
		}
	}
}

// TestBackendDirectly: connections to a backend's own address are not translated.
func TestBackendDirectly(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	for network, addr := range map[string]netip.Addr{"tcp4": lab.Backend4(1), "tcp6": lab.Backend6(1), "udp4": lab.Backend4(2), "udp6": lab.Backend6(2)} {
		to := netip.AddrPortFrom(addr, lab.BackendPort)
		s := h.Socket(network)
		if err := s.Connect(to); err != nil {
			t.Fatal(err)
		}
		if peer, err := s.Peer(); err != nil || peer != to {
			t.Errorf("getpeername() shows %v, %v, want %v", peer, err, to)
		}
	}
}

// TestOutsideCgroup: processes outside the agent's cgroup are not served.
func TestOutsideCgroup(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	h.Outside.AddAddr("lo", "10.96.0.1/32")
	h.Outside.ServeTCP(dualTCP4)
	if got := mustReach(t, h.Outside, "tcp4", dualTCP4); got != dualTCP4 {
		t.Errorf("reached %s", got)
	}
}

// TestPing: ICMP sockets are neither translated nor refused.
func TestPing(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges})
	applyDual(a)
	allowed := h.Run(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 0"), 0)
	})
	if allowed != nil {
		t.Fatal(allowed)
	}
	for name, s := range map[string]*lab.Socket{
		"raw":      h.RawSocket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP),
		"datagram": h.RawSocket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP),
	} {
		for _, to := range []netip.AddrPort{dualTCP4, ap("10.96.200.1:80")} {
			to = netip.AddrPortFrom(to.Addr(), 1)
			if err := s.Connect(to); err != nil {
				t.Errorf("%s: connect to %s: %v", name, to, err)
			}
			if peer, err := s.Peer(); err != nil || peer.Addr() != to.Addr() {
				t.Errorf("%s: getpeername() shows %v, %v", name, peer, err)
			}
		}
	}
}

// TestMultipathTCP: an MPTCP socket is translated as a TCP one is. getpeername() shows the backend,
// for the kernel calls it for another socket than the one that it connects.
func TestMultipathTCP(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	s, err := h.TrySocket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
	if err != nil {
		t.Skipf("no multipath TCP in this kernel: %v", err)
	}
	if err := s.Connect(dualTCP4); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Receive(); err != nil {
		t.Error(err)
	}
}
