package packets_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/beeline-lb/beeline/pkg/flowmap"
)

// TestTunnelWithoutFlow: a connection both entries of which were evicted goes on with the next packet
// that the tunnel brings: the replies come from the Service's address, although no SYN+ACK was seen.
func TestTunnelWithoutFlow(t *testing.T) {
	t.Parallel()
	b := newTunnelBench(t)
	port := uint16(5000)
	for _, family := range families {
		for what, data := range map[string]string{"an ACK": "", "data": "hello"} {
			port++
			client := tcpFlow(family, port)
			client.flags, client.seq, client.ack = flagACK, 1_000_001, 3_000_000_001
			reply := client
			reply.from, reply.to, reply.payload = backend[family], client.from, data
			reply.seq, reply.ack = client.ack, client.seq
			there, back := client, reply
			there.to, back.from = backend[family], virtual[family]
			what := fmt.Sprintf("IPv%d, with %s of the backend", family, what)

			if verdict, _ := b.run(t, "bl_ingress", toThisNode(family, backend[family], client.bytes())); verdict != redirect {
				t.Errorf("%s: verdict %d on the packet of the tunnel", what, int32(verdict))
			}
			for i := range 2 {
				if verdict, out := b.run(t, "bl_ingress", client.bytes()); verdict != passes || !bytes.Equal(out, there.bytes()) {
					t.Errorf("%s: packet %d: verdict %d, packet\n% x, want\n% x", what, i, int32(verdict), out, there.bytes())
				}
				if verdict, out := b.run(t, "bl_egress", reply.bytes()); verdict != passes || !bytes.Equal(out, back.bytes()) {
					t.Errorf("%s: reply %d: verdict %d, packet\n% x, want\n% x", what, i, int32(verdict), out, back.bytes())
				}
			}
			b.wantState(t, port, what, flowmap.StateEstablished)
		}
	}
}
