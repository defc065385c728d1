package servicemap

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
)

func TestAddr(t *testing.T) {
	for _, s := range []string{"0.0.0.0", "192.0.2.1", "255.255.255.255", "::", "::1", "2001:db8::1", "fe80::1"} {
		want := netip.MustParseAddr(s)
		if got := bpf.AddrOf(want).Netip(); got != want {
			t.Errorf("%s comes back as %s", want, got)
		}
	}
	// What a program reads for 192.0.2.1.
	want := [16]byte{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 1}
	if got := bpf.AddrOf(netip.MustParseAddr("192.0.2.1")).Byte; got != want {
		t.Errorf("192.0.2.1 is stored as %x", got)
	}
}

func TestFrontendKey(t *testing.T) {
	keys := []tables.FrontendKey{
		{Addr: netip.MustParseAddr("10.0.0.1"), Port: 80, Protocol: model.TCP},
		{Addr: netip.MustParseAddr("fd00::1"), Port: 65535, Protocol: model.SCTP},
		{Addr: netip.IPv4Unspecified(), Port: 30000, Protocol: model.UDP},
		{Addr: netip.IPv6Unspecified(), Port: 30000, Protocol: model.UDP},
		{Addr: netip.MustParseAddr("10.0.0.1")},
	}
	seen := make(map[bpf.SockBlFrontendKey]tables.FrontendKey)
	for _, want := range keys {
		k := frontendKey(want)
		if got := frontendKeyOf(&k); got != want {
			t.Errorf("%s comes back as %s", want, got)
		}
		if other, twice := seen[k]; twice {
			t.Errorf("%s and %s have one key", want, other)
		}
		seen[k] = want
	}
	// The port is in network byte order.
	k := frontendKey(keys[0])
	if b := binary.NativeEndian.AppendUint16(nil, k.Port); b[0] != 0 || b[1] != 80 {
		t.Errorf("port 80 is stored as %x", b)
	}
}

func TestPortOrder(t *testing.T) {
	for port := range 1 << 16 {
		if got := bpf.Hton16(bpf.Hton16(uint16(port))); got != uint16(port) {
			t.Fatalf("%d comes back as %d", port, got)
		}
	}
}

func TestSetWord(t *testing.T) {
	sets := []tables.Set{
		{},
		{Kind: policy.Drop},
		{Kind: policy.Backends, First: 0, Count: 1},
		{Kind: policy.Backends, First: 1<<32 - 1, Count: 1<<24 - 1},
		{Kind: policy.Backends, First: 0x01020304, Count: 0x050607},
	}
	for _, want := range sets {
		if got := setOf(setWord(want)); got != want {
			t.Errorf("%v comes back as %v", want, got)
		}
	}
	if got := setWord(sets[4]); got != 0x02_050607_01020304 {
		t.Errorf("set word %#x", got)
	}
	if setWord(tables.Set{Kind: policy.Reject}) != 0 {
		t.Error("a set that rejects is not the zero word")
	}
}

func TestPrefix(t *testing.T) {
	for _, s := range []string{
		"10.0.0.0/8", "10.1.2.3/32", "0.0.0.0/1", "2001:db8::/32", "::/1", "fd00::1/128", "::/96",
	} {
		want := netip.MustParsePrefix(s)
		r := srcrangeKey(tables.SourceRange{Service: 7, Prefix: want})
		if got := bpf.PrefixOf(r.Addr, r.PrefixLen-32); got != want || r.Service != 7 {
			t.Errorf("source range %s comes back as %s", want, got)
		}
		c := bpf.CIDRKey(want)
		if got := bpf.PrefixOf(c.Addr, c.PrefixLen); got != want {
			t.Errorf("%s comes back as %s", want, got)
		}
	}
}

// TestAggregate compares with the prefix as a program does.
func TestAggregate(t *testing.T) {
	tests := []struct {
		cidrs   []string
		in, out []string
	}{
		{nil, nil, []string{"0.0.0.0", "10.0.0.1", "255.255.255.255", "::", "::1", "fd00::1"}},
		{[]string{"10.96.0.0/12"}, []string{"10.96.0.0", "10.111.255.255"}, []string{"10.112.0.0", "10.95.0.1", "::", "fd00::"}},
		{[]string{"10.96.0.0/16", "10.97.0.0/16"}, []string{"10.96.0.1", "10.97.255.1"}, []string{"10.98.0.0"}},
		{[]string{"10.0.0.0/8", "192.0.2.0/24"}, []string{"10.0.0.1", "192.0.2.1"}, []string{"fd00::1"}},
		{[]string{"fd00:1::/108", "10.96.0.0/16"}, []string{"fd00:1::f:1", "10.96.1.1"}, []string{"fd00:1::10:1", "10.97.0.0"}},
		{[]string{"0.0.0.0/0", "::/0"}, []string{"0.0.0.0", "1.2.3.4", "::", "fd00::1"}, nil},
	}
	for _, tt := range tests {
		var aggregate4, aggregate6 netip.Prefix
		for _, c := range tt.cidrs {
			if p := netip.MustParsePrefix(c); p.Addr().Is4() {
				aggregate4 = join(aggregate4, p)
			} else {
				aggregate6 = join(aggregate6, p)
			}
		}
		entry := aggregateEntry(aggregate4, aggregate6)
		for _, a := range tt.in {
			if !covers(&entry, netip.MustParseAddr(a)) {
				t.Errorf("%v does not cover %s", tt.cidrs, a)
			}
		}
		for _, a := range tt.out {
			if covers(&entry, netip.MustParseAddr(a)) {
				t.Errorf("%v covers %s", tt.cidrs, a)
			}
		}
	}
}

// covers is the comparison of bl_service_cidr_has.
func covers(e *bpf.SockBlAggregateEntry, a netip.Addr) bool {
	addr := bpf.AddrOf(a)
	if a.Is4() {
		return word(addr)&e.Mask4 == e.Addr4
	}
	for i := range addr.Byte {
		if addr.Byte[i]&e.Mask6.Byte[i] != e.Addr6.Byte[i] {
			return false
		}
	}
	return true
}

func TestServiceName(t *testing.T) {
	long := strings.Repeat("n", 63)
	names := []tables.ServiceName{
		{
			Port:   model.PortName{Service: model.Name{Namespace: long, Name: long}, Port: long, Protocol: model.SCTP},
			Family: model.IPv6, Type: "LoadBalancer", Number: 65535, NodePort: 32767,
			InternalLocal: true,
		},
		{
			Port:   model.PortName{Service: model.Name{Namespace: "default", Name: "web"}, Protocol: model.TCP},
			Family: model.IPv4, Type: "ClusterIP", Number: 80,
			ExternalLocal: true,
		},
	}
	for _, want := range names {
		e := nameEntry(want)
		if got := serviceNameOf(&e); got != want {
			t.Errorf("%+v comes back as %+v", want, got)
		}
	}
}

// TestFilterSpread fills the filter as a large cluster does: keys that differ in
// few bits must not fall together.
func TestFilterSpread(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	families := map[string]func(i int) netip.Addr{
		"IPv4": func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}) },
		"IPv6": func(i int) netip.Addr {
			return netip.AddrFrom16([16]byte{0: 0xfd, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
		},
	}
	for family, addr := range families {
		set := make(map[uint32]bool)
		const n = 40_000
		for i := range n {
			k := frontendKey(tables.FrontendKey{Addr: addr(i), Port: []uint16{80, 443, 53, 9090}[r.IntN(4)], Protocol: model.TCP})
			set[filterBit(&k)] = true
		}
		// n keys in m bits leave m(1-e^(-n/m)) set: 39,810 here.
		if len(set) < n*9/10 {
			t.Errorf("%d %s keys have %d bits", n, family, len(set))
		}
		for bit := range set {
			if bits.Len32(bit) > int(bpf.SockBlFilterSizeBL_FILTER_SHIFT) {
				t.Fatalf("bit %d is outside of the filter", bit)
			}
		}
	}
}
