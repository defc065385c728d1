package packets_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/flowmap"
)

// uncrowd takes back what crowd has made known.
func uncrowd(maps *bpfmap.Maps) {
	flowmap.New(maps).CountHalfOpen(flowmap.New(maps).HalfOpen(), 0)
}

// TestSourcePortsInAFlood: flows of clients that use one port have source ports of their own
// while half-open ones begin in bl_flow and bl_overflow alternately, whichever table has the
// client's port first.
func TestSourcePortsInAFlood(t *testing.T) {
	t.Parallel()
	b := newXDPBench(t)
	const clients = 32
	for name, f := range xdpRequests() {
		seen := make(map[uint16]bool)
		for first := range 2 {
			f.from = netip.AddrPortFrom(f.from.Addr(), uint16(5000+first))
			for i := range clients {
				if (first+i)%2 == 0 {
					uncrowd(b.maps)
				} else {
					crowd(b.maps)
				}
				verdict, out := b.run(t, f.bytes())
				if verdict != xdpSends {
					t.Fatalf("%s, client %d: verdict %d", name, i, verdict)
				}
				port := sourcePort(out, f.to.Addr())
				if seen[port] {
					t.Errorf("%s, client %d: port %d is that of another flow", name, i, port)
				}
				if seen[port] = true; i == 0 && port != f.from.Port() {
					t.Errorf("%s: the first client's port becomes %d", name, port)
				}
				f.from = netip.AddrPortFrom(f.from.Addr().Next(), f.from.Port())
			}
		}
	}
	flows, _ := allFlows(t, b.maps)
	count := make(map[string]int)
	for _, f := range flows {
		count[fmt.Sprintf("overflow %v", f.Overflow)]++
	}
	if want := len(xdpRequests()) * clients; count["overflow true"] != want || count["overflow false"] != want {
		t.Errorf("%v, want %d each", count, want)
	}
}
