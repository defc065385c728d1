package packets_test

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/tests/lab"
)

// connections returns how many the programs have counted, of all Services.
func connections(t *testing.T, maps *bpfmap.Maps) (n uint64) {
	t.Helper()
	stats, err := statusmap.New(maps).ServiceStats(16)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stats {
		n += s.Connections
	}
	return n
}

// destination returns where a packet without options goes.
func destination(packet []byte, family byte) netip.Addr {
	end := ethernetSize + headerSize(virtual[family].Addr())
	addr, _ := netip.AddrFromSlice(packet[end-virtual[family].Addr().BitLen()/8 : end])
	return addr
}

// TestForwardMadeAgainInALargeSet: a UDP flow whose forward entry is restored by a reply keeps its
// backend in a set of 1,024 slots, and gets a new one in a larger set.
func TestForwardMadeAgainInALargeSet(t *testing.T) {
	t.Parallel()
	const most, flows = 1024, 16
	b := newBench(t)
	table := pinned(t, b.host.BPFFS, "bl_flow")
	for _, family := range families {
		for _, slots := range []int{most, most + 1} {
			var addrs []netip.Addr
			for addr := backend[family].Addr(); len(addrs) < slots; addr = addr.Next() {
				addrs = append(addrs, addr)
			}
			b.agent.Apply(lab.Slice("web", fmt.Sprintf("u:%d/UDP", lab.BackendPort), addrs...))
			var began [flows]netip.Addr
			datagram := func(i int) frame {
				return frame{from: netip.AddrPortFrom(crafted[family].Addr(), uint16(3000+slots+flows*(i+1))), to: virtual[family],
					protocol: unix.IPPROTO_UDP, payload: "hello"}
			}
			for i := range began {
				_, out := b.run(t, "bl_ingress", datagram(i).bytes())
				began[i] = destination(out, family)
			}
			for range began {
				takeOut(t, table, false)
			}
			for i := range began {
				reply := datagram(i)
				reply.from, reply.to = netip.AddrPortFrom(began[i], lab.BackendPort), reply.from
				b.run(t, "bl_egress", reply.bytes())
			}
			before, moved := connections(t, b.maps), 0
			for i := range began {
				if _, out := b.run(t, "bl_ingress", datagram(i).bytes()); destination(out, family) != began[i] {
					moved++
				}
			}
			anew := int(connections(t, b.maps) - before)
			if slots <= most && (anew > 0 || moved > 0) {
				t.Errorf("IPv%d, %d slots: %d of %d flows are balanced anew, %d move", family, slots, anew, flows, moved)
			}
			for range began {
				takeOut(t, table, false)
				takeOut(t, table, true)
			}
			if slots > most && (anew != flows || moved == 0) {
				t.Errorf("IPv%d, %d slots: %d of %d flows are balanced anew, %d move", family, slots, anew, flows, moved)
			}
		}
	}
}
