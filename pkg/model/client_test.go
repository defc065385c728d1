package model

import (
	"net"
	"net/netip"
	"testing"
)

// TestClientOf: addresses of one IPv6 network are one client, and the node's own are known.
func TestClientOf(t *testing.T) {
	tcp := func(addr string) net.Addr {
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 1234))
	}
	for _, tt := range []struct {
		remote, local net.Addr
		want          Client
	}{
		{tcp("192.0.2.1"), tcp("192.0.2.9"), Client{netip.MustParsePrefix("192.0.2.1/32"), false}},
		{tcp("::ffff:192.0.2.1"), tcp("::ffff:192.0.2.1"), Client{netip.MustParsePrefix("192.0.2.1/32"), true}},
		{tcp("127.0.0.1"), tcp("127.0.0.2"), Client{netip.MustParsePrefix("127.0.0.1/32"), true}},
		{tcp("2001:db8::1"), tcp("2001:db8::2"), Client{netip.MustParsePrefix("2001:db8::/64"), false}},
		{tcp("2001:db8::1"), tcp("2001:db8::1"), Client{netip.MustParsePrefix("2001:db8::/64"), true}},
		{tcp("fe80::1%lo"), tcp("fe80::1%lo"), Client{netip.MustParsePrefix("fe80::/64"), true}},
		{tcp("::1"), tcp("::1"), Client{netip.MustParsePrefix("::/64"), true}},
		{&net.UnixAddr{}, &net.UnixAddr{}, Client{}},
	} {
		if got := ClientOf(tt.remote, tt.local); got != tt.want {
			t.Errorf("of %v to %v: %+v, want %+v", tt.remote, tt.local, got, tt.want)
		}
	}
}
