package model

import "testing"

func TestForwardingNames(t *testing.T) {
	for _, name := range Forwardings() {
		f, err := ParseForwarding(name)
		if err != nil || f.String() != name || f == DefaultForwarding {
			t.Errorf("%q is %d, %q: %v", name, f, f, err)
		}
	}
	for _, name := range []string{"", "DSR", "tunnel", "snat "} {
		if f, err := ParseForwarding(name); err == nil || f != DefaultForwarding {
			t.Errorf("%q is %s", name, f)
		}
	}
}

func TestTunnelsProtocol(t *testing.T) {
	for f, want := range map[Forwarding]map[Protocol]bool{
		SNAT: {}, DSR: {TCP: true, UDP: true, SCTP: true}, Hybrid: {TCP: true}, DefaultForwarding: {},
	} {
		for _, p := range []Protocol{TCP, UDP, SCTP} {
			if got := f.TunnelsProtocol(p); got != want[p] {
				t.Errorf("%s of %q in a tunnel: %t", p, f, got)
			}
		}
		if f.Tunnels() != (len(want) > 0) {
			t.Errorf("%q in a tunnel: %t", f, f.Tunnels())
		}
	}
}
