package netns_test

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestExternalAddresses reaches external IPs and those load-balancer IPs that are
// served at the node.
func TestExternalAddresses(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	proxied := ap("203.0.113.3:80")
	h.Outside.AddAddr("lo", "203.0.113.3/32")
	h.Outside.ServeTCP(proxied)
	const ports = "web:8080/TCP,dns:8080/UDP"
	a.Apply(lab.Service("out", `{type: LoadBalancer, clusterIPs: [10.96.0.8, "fd96::8"],`+
		` externalIPs: [203.0.113.1, "2001:db8:2::1"], externalTrafficPolicy: Local,`+
		` ports: [{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}]}`,
		`status: {loadBalancer: {ingress: [{ip: 203.0.113.2, ipMode: VIP}, {ip: "2001:db8:2::2"},`+
			` {ip: 203.0.113.3, ipMode: Proxy}, {hostname: lb.example}]}}`),
		lab.SliceOf("out", ports, "{addresses: [10.77.0.1], nodeName: node-1}", "{addresses: [10.77.0.2], nodeName: node-2}"),
		lab.Slice("out", ports, backends6(2)...))
	// Local clients get the Cluster set under externalTrafficPolicy Local too.
	for _, n := range []*lab.Namespace{h.Namespace, h.Pod} {
		wantBalanced(t, n, "tcp4", ap("203.0.113.1:80"), backends4(2)...)
		wantBalanced(t, n, "tcp4", ap("203.0.113.2:80"), backends4(2)...)
		wantBalanced(t, n, "udp4", ap("203.0.113.2:53"), backends4(2)...)
		wantBalanced(t, n, "tcp6", ap("[2001:db8:2::1]:80"), backends6(2)...)
		wantBalanced(t, n, "udp6", ap("[2001:db8:2::2]:53"), backends6(2)...)
	}
	if got := mustReach(t, h.Namespace, "tcp4", proxied); got != proxied {
		t.Errorf("the address with ipMode Proxy leads to %s", got)
	}
}

// nodePort is a Service with node ports of both families and protocols.
var nodePort = lab.Service("ports", `{type: NodePort, clusterIPs: [10.96.0.9, "fd96::9"], externalTrafficPolicy: Local, ports: [`+
	`{name: web, port: 80, nodePort: 30080}, {name: dns, port: 53, protocol: UDP, nodePort: 30053}]}`)

func applyNodePort(a *lab.Agent) {
	const ports = "web:8080/TCP,dns:8080/UDP"
	a.Apply(nodePort, lab.Slice("ports", ports, backends4(2)...), lab.Slice("ports", ports, backends6(2)...))
}

// TestNodePort reaches the node port at every local address of the node, from the
// node and from a pod.
func TestNodePort(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyNodePort(a)
	for _, addr := range []netip.Addr{lab.Node4, lab.Backend4(8), lab.PodGateway4} {
		for _, n := range []*lab.Namespace{h.Namespace, h.Pod} {
			wantBalanced(t, n, "tcp4", netip.AddrPortFrom(addr, 30080), backends4(2)...)
			wantBalanced(t, n, "udp4", netip.AddrPortFrom(addr, 30053), backends4(2)...)
			wantBalanced(t, n, "tcp6", netip.AddrPortFrom(addr, 30080), backends4(2)...)
		}
	}
	for _, addr := range []netip.Addr{lab.Node6, lab.Backend6(8)} {
		for _, n := range []*lab.Namespace{h.Namespace, h.Pod} {
			wantBalanced(t, n, "tcp6", netip.AddrPortFrom(addr, 30080), backends6(2)...)
			wantBalanced(t, n, "udp6", netip.AddrPortFrom(addr, 30053), backends6(2)...)
		}
	}
	t.Run("reply source", func(t *testing.T) {
		send(t, h.Socket("udp4"), "udp4", netip.AddrPortFrom(lab.Node4, 30053))
		send(t, h.Socket("udp6"), "udp6", netip.AddrPortFrom(lab.Node6, 30053))
	})
	t.Run("no node port", func(t *testing.T) {
		wantFailure(t, h.Namespace, "tcp4", netip.AddrPortFrom(lab.Node4, 30053), unix.ECONNREFUSED)
		wantFailure(t, h.Namespace, "tcp4", netip.AddrPortFrom(lab.Outside4, 30080), unix.ECONNREFUSED)
		wantFailure(t, h.Pod, "tcp4", netip.AddrPortFrom(lab.Pod4, 30080), unix.ECONNREFUSED)
	})
}

// TestNodePortLoopback: loopback addresses and the any-address mean the node only
// to the node's own namespace.
func TestNodePortLoopback(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyNodePort(a)
	for _, addr := range []string{"127.0.0.1", "0.0.0.0"} {
		to := netip.MustParseAddr(addr)
		wantBalanced(t, h.Namespace, "tcp4", netip.AddrPortFrom(to, 30080), backends4(2)...)
		wantBalanced(t, h.Namespace, "udp4", netip.AddrPortFrom(to, 30053), backends4(2)...)
		wantFailure(t, h.Pod, "tcp4", netip.AddrPortFrom(to, 30080), unix.ECONNREFUSED)
	}
	for _, addr := range []string{"::1", "::"} {
		to := netip.MustParseAddr(addr)
		wantBalanced(t, h.Namespace, "tcp6", netip.AddrPortFrom(to, 30080), backends6(2)...)
		wantBalanced(t, h.Namespace, "udp6", netip.AddrPortFrom(to, 30053), backends6(2)...)
		wantFailure(t, h.Pod, "tcp6", netip.AddrPortFrom(to, 30080), unix.ECONNREFUSED)
	}
}

// TestLoopbackLoadBalancer: a load balancer's address that each host has for itself, or that stands for
// all, takes nobody's traffic.
func TestLoopbackLoadBalancer(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	a.Apply(lab.Service("local", `{type: LoadBalancer, clusterIPs: [10.96.0.10, "fd96::10"], ports: [{port: 9999}]}`,
		`status: {loadBalancer: {ingress: [{ip: 127.0.0.1}, {ip: "::1"}, {ip: 0.0.0.0}, {ip: "::"}]}}`),
		lab.Slice("local", "8080/TCP", backends4(2)...), lab.Slice("local", "8080/TCP", backends6(2)...))
	wantBalanced(t, h.Pod, "tcp4", ap("10.96.0.10:9999"), backends4(2)...)
	for _, own := range []netip.AddrPort{ap("127.0.0.1:9999"), ap("[::1]:9999")} {
		network := "tcp" + family(own.Addr())
		for who, n := range map[string]*lab.Namespace{"pod": h.Pod, "node": h.Namespace} {
			n.ServeTCP(own)
			if got, err := n.Reach(network, own); err != nil || got != own {
				t.Errorf("a process of the %s that asks its own server at %s reaches %s, %v", who, own, got, err)
			}
		}
	}
	wantFailure(t, h.Namespace, "tcp4", netip.AddrPortFrom(lab.Node4, 9999), unix.ECONNREFUSED)
	wantFailure(t, h.Namespace, "tcp6", netip.AddrPortFrom(lab.Node6, 9999), unix.ECONNREFUSED)
}

// TestNodePortNewAddress: NodePorts answer on an address that is added while the agent runs, until it
// is removed.
func TestNodePortNewAddress(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyNodePort(a)
	for network, cidr := range map[string]string{"tcp4": "192.0.2.77/24", "tcp6": "2001:db8::77/64"} {
		to := netip.AddrPortFrom(netip.MustParsePrefix(cidr).Addr(), 30080)
		h.AddAddr(lab.Uplink, cidr)
		lab.Eventually(t, "node port at "+cidr, func() bool {
			_, err := h.Reach(network, to)
			return err == nil
		})
		h.DeleteAddr(lab.Uplink, cidr)
		h.Outside.AddAddr("node", cidr)
		lab.Eventually(t, "no node port at "+cidr, func() bool {
			_, err := h.Reach(network, to)
			return err == unix.ECONNREFUSED
		})
	}
}

// TestNodePortAddresses: NodePorts answer only on addresses in --nodeport-addresses. At others, and at
// loopback unless a CIDR covers it, clients reach a process that listens on the port.
func TestNodePortAddresses(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	loopback4, loopback6 := netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()
	cases := map[string]struct {
		addresses []string
		yes, no   []netip.Addr
	}{
		"primary": {[]string{"primary"}, []netip.Addr{lab.Node4, lab.Node6, loopback4, loopback6},
			[]netip.Addr{lab.Backend4(7), lab.Backend6(7)}},
		"CIDRs": {[]string{"10.77.0.0/24", "fd77::/64"}, []netip.Addr{lab.Backend4(7), lab.Backend6(7)},
			[]netip.Addr{lab.Node4, lab.Node6, loopback4, loopback6}},
		"CIDRs with loopback": {[]string{"10.77.0.0/24", "127.0.0.0/8", "::1/128"},
			[]netip.Addr{lab.Backend4(7), loopback4, loopback6}, []netip.Addr{lab.Node4, lab.Node6, lab.Backend6(7)}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, a := newHost(t, lab.AgentOptions{NodePortAddresses: c.addresses})
			applyNodePort(a)
			for _, addr := range c.yes {
				mustReach(t, h.Namespace, "tcp"+family(addr), netip.AddrPortFrom(addr, 30080))
			}
			for _, addr := range c.no {
				wantFailure(t, h.Namespace, "tcp"+family(addr), netip.AddrPortFrom(addr, 30080), unix.ECONNREFUSED)
				for network, own := range map[string]netip.AddrPort{
					"tcp": netip.AddrPortFrom(addr, 30080), "udp": netip.AddrPortFrom(addr, 30053),
				} {
					serve := h.ServeTCP
					if network == "udp" {
						serve = h.ServeUDP
					}
					serve(own)
					if got := mustReach(t, h.Namespace, network+family(addr), own); got != own {
						t.Errorf("%s to %s, where a process listens: reached %s", network, own, got)
					}
				}
			}
		})
	}
}

// family is the last character of a network's name.
func family(addr netip.Addr) string {
	if addr.Is4() {
		return "4"
	}
	return "6"
}

// TestSourceRanges: loadBalancerSourceRanges restrict the load-balancer addresses only; other
// addresses of the Service accept every client.
func TestSourceRanges(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	h.Pod.AddAddr("eth0", "10.88.0.3/24")
	h.Pod.AddAddr("eth0", "fd88::3/64")
	spec := `{type: LoadBalancer, clusterIPs: [10.96.0.10, "fd96::10"], ports: [{port: 80, nodePort: 30090}],` +
		` loadBalancerSourceRanges: [" 10.88.0.2/32 ", "fd88::2/128"]}`
	status := `status: {loadBalancer: {ingress: [{ip: 203.0.113.10}, {ip: "2001:db8:2::10"}]}}`
	a.Apply(lab.Service("guarded", spec, status),
		lab.Slice("guarded", "8080/TCP", backends4(2)...), lab.Slice("guarded", "8080/TCP", backends6(2)...))
	cases := []struct {
		network  string
		to       netip.AddrPort
		in, out  string
		node     netip.Addr
		backends []netip.Addr
	}{
		{"tcp4", ap("203.0.113.10:80"), "10.88.0.2", "10.88.0.3", lab.Node4, backends4(2)},
		{"tcp6", ap("[2001:db8:2::10]:80"), "fd88::2", "fd88::3", lab.Node6, backends6(2)},
		{"tcp6", ap("203.0.113.10:80"), "::ffff:10.88.0.2", "::ffff:10.88.0.3", lab.Node4, backends4(2)},
	}
	for _, c := range cases {
		t.Run(c.network+" "+c.to.String(), func(t *testing.T) {
			wantBalanced(t, h.Pod, c.network, c.to, c.backends...)
			wantFailure(t, h.Namespace, c.network, c.to, unix.EHOSTUNREACH)
			wantBoundConnect(t, h.Pod, c.network, c.in, c.to, nil)
			wantBoundConnect(t, h.Pod, c.network, c.out, c.to, unix.EHOSTUNREACH)
			mustReach(t, h.Namespace, c.network, netip.AddrPortFrom(c.node, 30090))
		})
	}
	mustReach(t, h.Namespace, "tcp4", ap("10.96.0.10:80"))
	mustReach(t, h.Namespace, "tcp6", ap("[fd96::10]:80"))

	// A node that has the load balancer's address may connect.
	h.AddAddr(lab.Uplink, "203.0.113.10/32")
	h.AddAddr(lab.Uplink, "2001:db8:2::10/128")
	mustReach(t, h.Namespace, "tcp4", ap("203.0.113.10:80"))
	mustReach(t, h.Namespace, "tcp6", ap("[2001:db8:2::10]:80"))
}

// wantBoundConnect connects a socket that is bound to an address.
func wantBoundConnect(t *testing.T, n *lab.Namespace, network, from string, to netip.AddrPort, want error) {
	t.Helper()
	s := n.Socket(network)
	if err := s.Bind(netip.AddrPortFrom(netip.MustParseAddr(from), 0)); err != nil {
		t.Fatal(err)
	}
	if err := s.Connect(to); err != want {
		t.Errorf("%s from %s to %s: %v, want %v", network, from, to, err, want)
	}
}
