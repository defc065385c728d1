package main

import (
	"net/netip"
	"testing"
)

func TestFramesHoldTheirAddressesAndPorts(t *testing.T) {
	for name, ends := range map[string][2]string{
		"IPv4": {"192.0.2.7:40000", "198.51.100.1:32000"},
		"IPv6": {"[2001:db8::7]:40000", "[2001:db8:ffff::1]:32000"},
	} {
		from, to := netip.MustParseAddrPort(ends[0]), netip.MustParseAddrPort(ends[1])
		for kind, f := range map[string]frame{"TCP": newTCP(from, to, tcpSYN), "UDP": newUDP(from, to)} {
			if f.source() != from || f.destination() != to {
				t.Errorf("%s, %s: from %s to %s, want from %s to %s", name, kind, f.source(), f.destination(), from, to)
			}
			if end := from.Addr().AsSlice(); f[f.sourceEnd()-1] != end[len(end)-1] {
				t.Errorf("%s, %s: the source address does not end at %d", name, kind, f.sourceEnd())
			}
		}
	}
}
