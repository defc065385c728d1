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

// TestTunnelForgedSYN: a SYN that the tunnel brings ends a connection that one side has closed as one
// without the tunnel does, with a sequence number beyond the client's while no packet passes.
func TestTunnelForgedSYN(t *testing.T) {
	t.Parallel()
	b := newTunnelBench(t)
	flows := pinned(t, b.host.BPFFS, "bl_flow")
	const idle, busy = 0, ^uint32(0) >> 1 // seconds of the last packet
	port := uint16(5000)
	for _, family := range families {
		b.letIn(t, another(backend[family]))
		for _, closing := range []flowmap.State{flowmap.StateClientClosing, flowmap.StateBackendClosing} {
			port++
			first := tcpFlow(family, port)
			first.seq = 1_000_000
			b.run(t, "bl_ingress", toThisNode(family, backend[family], first.bytes()))
			client, reply := b.establishFlow(t, first)
			client.flags, reply.flags = flagFIN|flagACK, flagFIN|flagACK
			if closing == flowmap.StateClientClosing {
				b.run(t, "bl_ingress", client.bytes())
			} else {
				b.run(t, "bl_egress", reply.bytes())
			}
			b.wantState(t, port, "one side has closed", closing)
			syn := client
			syn.flags, syn.ack = flagSYN, 0
			send := func(ahead, used uint32, want flowmap.State) {
				t.Helper()
				setUsed(t, flows, port, used)
				syn.seq = client.seq + ahead
				if verdict, _ := b.run(t, "bl_ingress", toThisNode(family, another(backend[family]), syn.bytes())); verdict != redirect {
					t.Errorf("IPv%d: verdict %d on a SYN of the tunnel", family, int32(verdict))
				}
				b.wantState(t, port, fmt.Sprintf("IPv%d: a SYN %d ahead, last packet in second %d", family, int32(ahead), used), want)
			}
			for _, before := range []uint32{0, 1, 1 << 16, 1<<31 - 1} {
				send(-before, idle, closing)
			}
			send(1<<20, busy, closing)
			send(1<<20, idle, flowmap.StateNew)
			want := syn
			want.to = another(backend[family])
			if verdict, out := b.run(t, "bl_ingress", syn.bytes()); verdict != passes || !bytes.Equal(out, want.bytes()) {
				t.Errorf("IPv%d: verdict %d on the SYN, packet\n% x, want\n% x", family, int32(verdict), out, want.bytes())
			}
		}
	}
}
