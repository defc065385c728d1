package packets_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/tests/tier"
)

// TestTunnelLinkLocalClient: a client with a link-local address gets SNAT instead of the tunnel,
// because the backend's node could not answer it.
func TestTunnelLinkLocalClient(t *testing.T) {
	tier.Slow(t, "few clients have such addresses")
	t.Parallel()
	for _, outer := range families {
		b := newXDPBench(t)
		b.serveByTunnel(t, outer)
		tc := b.tc()
		for name, f := range xdpRequests() {
			family := familyOf(f)
			for what, from := range map[string]netip.Addr{"another address": crafted[family].Addr(), "link-local": scoped(family)["link-local"]} {
				for _, program := range []string{"XDP", "tc"} {
					what := fmt.Sprintf("%s over IPv%d, client with %s, %s", name, outer, what, program)
					// Each begins a flow, from a port that is kept.
					port := map[string]uint16{"XDP": 4242, "tc": 4243}[program]
					f.from = netip.AddrPortFrom(from, port)
					snat := f
					snat.from, snat.to = netip.AddrPortFrom(nodeAddrOf(f), port), xdpBackend[family]
					var verdict, want uint32
					var out []byte
					if program == "XDP" {
						want = xdpSends
						verdict, out = b.run(t, f.bytes())
					} else {
						want = redirect
						verdict, out = tc.run(t, "bl_ingress", f.bytes())
					}
					if verdict != want {
						t.Errorf("%s: verdict %d, want %d", what, int32(verdict), want)
						continue
					}
					gotSNAT := bytes.Equal(out[ethernetSize:], hopLess(snat)[ethernetSize:])
					if from.IsLinkLocalUnicast() != gotSNAT || from.IsLinkLocalUnicast() == inTunnel(outer, out) {
						t.Errorf("%s: packet\n% x", what, out)
					}
				}
			}
		}
	}
}

// inTunnel reports whether a packet goes to the tunnel's port of the other node.
func inTunnel(outer byte, packet []byte) bool {
	ports := ethernetSize + headerSize(tunnelNode[outer])
	return len(packet) > ports+innerAt && binary.BigEndian.Uint16(packet[ports+2:]) == dsrPort &&
		bytes.Contains(packet[:ports], tunnelNode[outer].AsSlice())
}
