package inspect

import (
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/tests/bounds"
)

// FuzzAddrFilter: whatever somebody gives for addresses, it is refused or means some, and a single
// one means itself.
func FuzzAddrFilter(f *testing.F) {
	for _, text := range []string{
		"", "192.0.2.1", "192.0.2.1:80", "192.0.2.0/24", "192.0.2.1/0", "[2001:db8::1]:443", "2001:db8::/32", "::ffff:192.0.2.1", "fe80::1%eth0",
		"[fe80::1%eth0]:80", "192.0.2.1:0", "::ffff:192.0.2.0/120", "there", "192.0.2.1/33",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var filter AddrFilter
		var err error
		bounds.Check(t, len(text), func() { filter, err = ParseAddrFilter(text) })
		if err != nil {
			if filter != (AddrFilter{}) {
				t.Fatalf("%q is refused and means %+v", text, filter)
			}
			return
		}
		if !filter.prefix.IsValid() || filter.prefix != filter.prefix.Masked() {
			t.Fatalf("%q means %+v", text, filter)
		}
		if !filter.matches(netip.AddrPortFrom(filter.prefix.Addr(), max(filter.port, 1))) {
			t.Fatalf("%q does not mean %s", text, filter.prefix.Addr())
		}
	})
}

// FuzzFrom: whatever somebody gives for a client, it is refused or an address that is no IPv4-mapped one.
func FuzzFrom(f *testing.F) {
	for _, text := range []string{"", "192.0.2.1", "192.0.2.1:40000", "[2001:db8::1]:40000", "::ffff:192.0.2.1", "[::ffff:192.0.2.1]:1", "192.0.2.1:0", "fe80::1%eth0", "/proc/1/ns/net"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var from netip.AddrPort
		var hasPort bool
		var err error
		bounds.Check(t, len(text), func() { from, hasPort, err = parseFrom(text) })
		if err == nil && (!from.IsValid() || from.Addr().Is4In6() || hasPort != (from.Port() != 0)) {
			t.Fatalf("%q is taken for %s, with a port: %v", text, from, hasPort)
		}
	})
}
