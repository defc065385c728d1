package netns_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

// ap makes an address and port of a string that is known to be one.
func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// backends4 and backends6 are the first backends of a host.
func backends4(n int) (addrs []netip.Addr) {
	for i := range n {
		addrs = append(addrs, lab.Backend4(i+1))
	}
	return addrs
}

func backends6(n int) (addrs []netip.Addr) {
	for i := range n {
		addrs = append(addrs, lab.Backend6(i+1))
	}
	return addrs
}

// mapped is the IPv4-mapped form that a socket of IPv6 shows.
func mapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
}

// shown returns how a socket of the network shows an address.
func shown(network string, a netip.AddrPort) netip.AddrPort {
	if strings.HasSuffix(network, "6") {
		return mapped(a)
	}
	return a
}

// mustReach connects a new socket to an address and returns which backend
// answers.
func mustReach(t *testing.T, n *lab.Namespace, network string, to netip.AddrPort) netip.AddrPort {
	t.Helper()
	got, err := n.Reach(network, to)
	if err != nil {
		t.Fatalf("%s to %s: %v", network, to, err)
	}
	return got
}

// wantFailure connects a new socket and compares the error.
func wantFailure(t *testing.T, n *lab.Namespace, network string, to netip.AddrPort, want error) {
	t.Helper()
	if got, err := n.Reach(network, to); err != want {
		t.Errorf("%s to %s: reached %v, error %v; want %v", network, to, got, err, want)
	}
}

// wantBalanced connects often and fails unless exactly the wanted backends answer,
// each at least once.
func wantBalanced(t *testing.T, n *lab.Namespace, network string, to netip.AddrPort, want ...netip.Addr) {
	t.Helper()
	seen := map[netip.Addr]int{}
	for range 24 * len(want) {
		seen[mustReach(t, n, network, to).Addr()]++
	}
	for _, a := range want {
		if seen[a] == 0 {
			t.Errorf("%s to %s: %s was never reached: %v", network, to, a, seen)
		}
		delete(seen, a)
	}
	if len(seen) > 0 {
		t.Errorf("%s to %s: reached %v, which are not among %v", network, to, seen, want)
	}
}

// newHost makes a host with backends and an agent.
func newHost(t *testing.T, opts lab.AgentOptions) (*lab.Host, *lab.Agent) {
	t.Helper()
	h := lab.NewHost(t)
	h.ServeBackends()
	return h, h.Serve(opts)
}
