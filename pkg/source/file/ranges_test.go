package file

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestAddrRange compares the split of ranges with the table of the Kubernetes
// documentation ("Kubernetes Reserving Cluster IPs") and with the ends of what
// may be used.
func TestAddrRange(t *testing.T) {
	tests := []struct {
		prefix              string
		first, dynamic, end string
	}{
		{"10.96.0.0/24", "10.96.0.1", "10.96.0.17", "10.96.0.254"},
		{"10.96.0.0/20", "10.96.0.1", "10.96.1.1", "10.96.15.254"},
		{"10.96.0.0/16", "10.96.0.1", "10.96.1.1", "10.96.255.254"},
		{"10.96.0.7/28", "10.96.0.1", "10.96.0.1", "10.96.0.14"},
		{"10.96.0.0/27", "10.96.0.1", "10.96.0.17", "10.96.0.30"},
		{"10.96.0.0/30", "10.96.0.1", "10.96.0.1", "10.96.0.2"},
		{"fd96::/112", "fd96::1", "fd96::101", "fd96::ffff"},
		{"fd96::/127", "fd96::1", "fd96::1", "fd96::1"},
		{"fd96::/48", "fd96::1", "fd96::101", "fd96::3fff:ffff:ffff:ffff"},
	}
	for _, tt := range tests {
		a, err := newAddrRange(netip.MustParsePrefix(tt.prefix))
		if err != nil {
			t.Errorf("%s: %v", tt.prefix, err)
			continue
		}
		first, dynamic, end := a.at(a.first), a.at(a.first+a.lower), a.at(a.first+a.size-1)
		if first.String() != tt.first || dynamic.String() != tt.dynamic || end.String() != tt.end {
			t.Errorf("%s is %s, dynamic from %s, to %s, want %s, %s, %s",
				tt.prefix, first, dynamic, end, tt.first, tt.dynamic, tt.end)
		}
	}
	for _, prefix := range []string{"10.96.0.0/31", "10.96.0.0/32", "fd96::/128"} {
		if a, err := newAddrRange(netip.MustParsePrefix(prefix)); err == nil {
			t.Errorf("%s is taken as %+v, want an error", prefix, a)
		}
	}
}

func TestPortBand(t *testing.T) {
	for _, tt := range []struct {
		ports portRange
		want  band
	}{
		{portRange{30000, 32767}, band{30000, 2768, 86}},
		{portRange{1, 65535}, band{1, 65535, 128}},
		{portRange{30000, 30015}, band{30000, 16, 0}},
		{portRange{30000, 30016}, band{30000, 17, 16}},
		{portRange{65535, 65535}, band{65535, 1, 0}},
	} {
		if got := tt.ports.band(); got != tt.want {
			t.Errorf("%s is %+v, want %+v", tt.ports, got, tt.want)
		}
	}
}

// TestPick fills a band: each number is given once, all of the upper part before
// any of the lower, and then none.
func TestPick(t *testing.T) {
	b := band{first: 100, size: 64, lower: 16}
	taken := map[uint64]bool{}
	free := func(n uint64) bool { return !taken[n] }
	for i := range b.size {
		n, ok := b.pick(fmt.Sprintf("default/web-%d", i), free)
		if !ok || taken[n] || n < b.first || b.first+b.size <= n {
			t.Fatalf("number %d is %d, %t", i, n, ok)
		}
		if inLower := n < b.first+b.lower; inLower != (i >= b.size-b.lower) {
			t.Fatalf("number %d is %d: the lower part comes last", i, n)
		}
		taken[n] = true
	}
	if n, ok := b.pick("default/more", free); ok {
		t.Fatalf("a full band gives %d", n)
	}
	delete(taken, 107)
	if n, ok := b.pick("default/more", free); n != 107 || !ok {
		t.Fatalf("the only free number is 107, got %d, %t", n, ok)
	}
}

// TestRangeOfAnotherProxy: the address of a Service that another proxy has is let pass, and no other of
// the range.
func TestRangeOfAnotherProxy(t *testing.T) {
	dir := t.TempDir()
	s, sink := newSource(t, Options{Dir: dir, ServiceRanges: prefixes("10.96.0.0/16 fd96::/112")})
	expect := func(when string, foreign ...string) {
		t.Helper()
		scan(t, s)
		updates := sink.drain()
		var told []string
		for _, u := range updates {
			for _, addr := range u.ForeignIPs {
				told = append(told, addr.String())
			}
		}
		if len(updates) != 1 || !slices.Equal(updates[0].ServiceCIDRs, prefixes("10.96.0.0/16 fd96::/112")) || !slices.Equal(told, foreign) {
			t.Errorf("%s the sink is told %+v, want the addresses %s of another proxy", when, updates, foreign)
		}
	}
	expect("at the start")
	theirs := strings.Replace(serviceYAML("theirs", "clusterIP: 10.96.7.7", "ports: [{port: 80}]"), "{name: theirs",
		"{name: theirs, labels: {service.kubernetes.io/service-proxy-name: other}", 1)
	write(t, dir, "theirs.yaml", theirs)
	expect("with a Service of another proxy", "10.96.7.7")
	write(t, dir, "theirs.yaml", serviceYAML("theirs", "ports: [{port: 80}]"))
	expect("with a Service of ours in its place")
}
