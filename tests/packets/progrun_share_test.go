package packets_test

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/tests/lab"
)

// TestSourceShare: datagrams from addresses of one network, forged or not, use a quarter of the flow
// table at most. Idle flows of others stay, new ones of others are established, and datagrams beyond
// the share are still forwarded.
func TestSourceShare(t *testing.T) {
	t.Parallel()
	const share = 512
	for family, networkOf := range map[byte]func(network, host int) netip.Addr{
		4: func(network, host int) netip.Addr {
			return netip.AddrFrom4([4]byte{198, 18, byte(network), byte(host)})
		},
		6: func(network, host int) netip.Addr {
			return netip.MustParseAddr(fmt.Sprintf("2001:db8:%x:%x::%x", network, host, host))
		},
	} {
		t.Run(fmt.Sprintf("IPv%d", family), func(t *testing.T) {
			t.Parallel()
			sizes := lab.Sizes
			sizes.Flows = 2 * 4 * share
			b := newBenchSized(t, sizes, datapath.Constants{})
			// With this seed of the hash, no two networks of the test share a place.
			b.maps.Entries.SourceShare.Seed = 1
			flows := flowmap.New(b.maps)
			establish := func(network, i int) {
				t.Helper()
				client := netip.AddrPortFrom(networkOf(network, i%200), uint16(2000+i))
				there := frame{from: client, to: virtual[family], protocol: unix.IPPROTO_UDP}
				back := frame{from: backend[family], to: client, protocol: unix.IPPROTO_UDP}
				for _, packet := range []struct {
					program string
					frame
				}{{"bl_ingress", there}, {"bl_egress", back}, {"bl_ingress", there}} {
					if verdict, _ := b.run(t, packet.program, packet.bytes()); verdict != passes {
						t.Fatalf("network %d, flow %d: %s ends with %d", network, i, packet.program, verdict)
					}
				}
			}
			// count returns the established flows by network, and has the agent count them.
			count := func() map[int]int {
				t.Helper()
				found := make(map[int]int)
				sources := flows.StartSourceCount()
				for batch, err := range flows.Batches(bpf.Clock) {
					if err != nil {
						t.Fatal(err)
					}
					for i := range batch.Flows {
						f := &batch.Flows[i]
						sources.Add(f)
						if a := f.Client.Addr(); f.State == flowmap.StateEstablished && !f.Overflow {
							network := int(a.AsSlice()[2])
							if a.Is6() {
								network = int(a.AsSlice()[5])
							}
							found[network]++
						}
					}
				}
				flows.EndSourceCount(sources)
				return found
			}
			const forged, others = 100, 50
			for network := range others {
				establish(network, 0)
			}
			for i := range 2 * share {
				establish(forged, i)
			}
			for range 2 { // with the programs' count, then with the agent's
				establish(forged, 3*share)
				establish(others, 0)
				found := count()
				if found[forged] != share {
					t.Errorf("%d flows of the network are established, want %d", found[forged], share)
				}
				for network := range others + 1 {
					if found[network] != 1 {
						t.Errorf("network %d has %d established flows, want 1", network, found[network])
					}
				}
			}
			reasons, err := statusmap.New(b.maps).Reasons()
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range reasons {
				if r.Name == "source_share" && r.Count < share {
					t.Errorf("%d packets are counted as beyond the share, want %d at least", r.Count, share)
				}
			}
			for batch, err := range flows.Batches(bpf.Clock) {
				if err != nil {
					t.Fatal(err)
				}
				for i := range batch.Flows {
					if err := flows.Delete(&batch.Flows[i]); err != nil {
						t.Fatal(err)
					}
				}
			}
			count()
			establish(forged, 4*share)
			if found := count(); found[forged] != 1 {
				t.Errorf("after its flows have ended, %d of the network are established, want 1", found[forged])
			}
		})
	}
}
