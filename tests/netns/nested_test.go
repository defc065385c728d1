package netns_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// both is the spec of a Service with an address of each family, at the ports of dual.
func both(name, ip4, ip6 string) string {
	return lab.Service(name, `{clusterIPs: [`+ip4+`, "`+ip6+`"], ports: [{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}]}`)
}

// slicesOf are the slices of such a Service: the host's backends of these numbers, of both families.
func slicesOf(name string, numbers ...int) []string {
	var four, six []netip.Addr
	for _, i := range numbers {
		four, six = append(four, lab.Backend4(i)), append(six, lab.Backend6(i))
	}
	return []string{
		lab.Slice(name, "web:8080/TCP,dns:8080/UDP", four...),
		lab.Slice(name, "web:8080/TCP,dns:8080/UDP", six...),
	}
}

// nested is a node in a container of another node, each of a cluster of its own. Who answers says which of
// them has led there: the outer one's Services have backends 1 to 4, the inner one's 5 to 7.
type nested struct {
	outer, inner *lab.Host
}

// newNested has the outer node's agent serve the Services "dual", which both clusters have, and "only", which
// the inner one has not. Where it
// leaves the inner one's sockets alone, an endpoint of "own" is a Service's address in the outer cluster.
func newNested(t *testing.T, opts lab.AgentOptions) *nested {
	t.Helper()
	opts.ServiceRanges = serviceRanges
	outer, agent := newHost(t, opts)
	n := &nested{outer: outer, inner: outer.NewNested()}
	if len(opts.PodDevices) > 0 {
		if err := outer.Run(agent.SyncDevices); err != nil {
			t.Fatal(err)
		}
	}
	n.inner.ServeBackends()
	if len(opts.PodDevices) > 0 {
		agent.Apply(append(slicesOf("again", 4), lab.Service("again", `{clusterIPs: [10.77.0.7, "fd77::7"], ports: [`+
			`{name: web, port: 8080}, {name: dns, port: 8080, protocol: UDP}]}`))...)
	}
	agent.Apply(slices.Concat([]string{dual, both("only", "10.96.5.1", "fd96::5:1")}, slicesOf("dual", 1, 2, 3), slicesOf("only", 4))...)
	return n
}

// serve has an agent of the inner node serve the Services "dual" and "own", which the outer cluster has not.
func (n *nested) serve() *lab.Agent {
	a := n.inner.Serve(lab.AgentOptions{})
	a.Apply(slices.Concat([]string{dual, both("own", "10.96.6.1", "fd96::6:1")}, slicesOf("dual", 5, 6), slicesOf("own", 7))...)
	return a
}

// want checks that TCP and UDP of a process get answers of one of the addresses by each family's address of a
// Service, at the ports of dual, and see them as the Service's. No address stands for the Service's own.
func want(t *testing.T, from *lab.Namespace, ip4, ip6 string, numbers ...int) {
	t.Helper()
	for _, network := range []string{"tcp4", "tcp6", "udp4", "udp6"} {
		ip, backend := ip4, lab.Backend4
		if strings.HasSuffix(network, "6") {
			ip, backend = ip6, lab.Backend6
		}
		to := netip.AddrPortFrom(netip.MustParseAddr(ip), map[string]uint16{"tcp": 80, "udp": 53}[network[:3]])
		allowed := []netip.AddrPort{to}
		if len(numbers) > 0 {
			allowed = nil
		}
		for _, i := range numbers {
			allowed = append(allowed, backendPort(backend(i)))
		}
		for range 8 {
			if got := reachShown(t, from, network, to); !slices.Contains(allowed, got) {
				t.Errorf("%s to %s reached %s, want one of %v", network, to, got, allowed)
			}
			if strings.HasPrefix(network, "tcp") {
				continue
			}
			s := from.Socket(network)
			if got := send(t, s, network, to); !slices.Contains(allowed, got) {
				t.Errorf("sendto %s reached %s, want one of %v", to, got, allowed)
			}
			s.Close()
		}
	}
}

// reachShown is mustReach, and checks that getpeername() shows the address.
func reachShown(t *testing.T, from *lab.Namespace, network string, to netip.AddrPort) netip.AddrPort {
	t.Helper()
	s := from.Socket(network)
	defer s.Close()
	if err := s.Connect(to); err != nil {
		t.Fatalf("%s to %s: %v", network, to, err)
	}
	if peer, err := s.Peer(); err != nil || peer != to {
		t.Errorf("%s to %s: getpeername() shows %v, %v", network, to, peer, err)
	}
	return mustReach(t, from, network, to)
}

// wantUntouched checks the same of a backend's own address.
func wantUntouched(t *testing.T, from *lab.Namespace, number int) {
	t.Helper()
	for network, addr := range map[string]netip.Addr{"tcp4": lab.Backend4(number), "tcp6": lab.Backend6(number), "udp4": lab.Backend4(number), "udp6": lab.Backend6(number)} {
		if to := backendPort(addr); reachShown(t, from, network, to) != to {
			t.Errorf("%s to %s reached another address", network, to)
		}
	}
}

// TestNested: a process of a node in a container of another node reaches its own cluster's Services, whichever
// the outer one has. What only the outer cluster has it reaches as from any container there.
func TestNested(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]lab.AgentOptions{
		"all sockets":               {},
		"those of the node's alone": {Devices: []string{lab.Uplink}, PodDevices: []string{"pod*"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if len(opts.Devices) == 0 {
				tier.SameInEveryKernel(t)
			}
			n := newNested(t, opts)
			n.serve()
			want(t, n.outer.Namespace, "10.96.0.1", "fd96::1", 1, 2, 3)
			want(t, n.inner.Namespace, "10.96.5.1", "fd96::5:1", 4)
			for _, from := range []*lab.Namespace{n.inner.Namespace, n.inner.Pod} {
				want(t, from, "10.96.0.1", "fd96::1", 5, 6)
				want(t, from, "10.96.6.1", "fd96::6:1", 7)
				wantUntouched(t, from, 8)
			}
		})
	}
}

// TestNestedLeftAlone: where the outer agent serves the sockets of its node's network namespace alone, it does
// not touch those of a node inside that has another proxy: neither those to an address that both clusters have,
// nor to one that the outer cluster refuses.
func TestNestedLeftAlone(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	n := newNested(t, lab.AgentOptions{Devices: []string{lab.Uplink}, PodDevices: []string{"pod*"}})
	for _, ip := range []string{"10.96.0.1/32", "fd96::1/128", "10.96.6.1/32", "fd96::6:1/128"} {
		n.inner.AddAddr("lo", ip)
		addr := netip.MustParsePrefix(ip).Addr()
		n.inner.ServeTCP(netip.AddrPortFrom(addr, 80))
		n.inner.ServeUDP(netip.AddrPortFrom(addr, 53))
	}
	for _, from := range []*lab.Namespace{n.inner.Namespace, n.inner.Pod} {
		want(t, from, "10.96.0.1", "fd96::1")
		want(t, from, "10.96.6.1", "fd96::6:1")
	}
	want(t, n.outer.Namespace, "10.96.0.1", "fd96::1", 1, 2, 3)
}
