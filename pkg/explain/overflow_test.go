package explain

import (
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/tests/maptest"
)

// TestOverflowStays: of a flow in bl_overflow whose reply entry was evicted, an explanation makes none there.
func TestOverflowStays(t *testing.T) {
	m := maptest.New(t, maptest.Small)
	o, err := load(m, bpf.ExplainPacketProgBlExplainPacket, bpf.LoadExplainPacket, nil)
	must(t, err)
	defer o.close()
	clock, err := bpf.Clock()
	must(t, err)
	now := uint32(clock.Seconds())
	m.Entries.HalfOpen.Overflow = now
	q := Question{From: netip.MustParseAddrPort("198.51.100.7:4000"), To: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: 6}
	key := bpf.SockBlFlowKey{Src: bpf.AddrOf(q.From.Addr()), Dst: bpf.AddrOf(q.To.Addr()), SrcPort: bpf.Hton16(4000), DstPort: bpf.Hton16(80), Proto: 6}
	var e bpf.SockBlFlowEntry
	e.Forward.Backend, e.Forward.BackendPort, e.Forward.BackendId = bpf.AddrOf(netip.MustParseAddr("10.244.1.7")), bpf.Hton16(8080), ^uint32(0)
	e.Forward.Used, e.Forward.Source.Port = now-5, bpf.Hton16(4000)
	e.Forward.Bits = 1 | uint8(bpf.SockBlFlowBitsBL_FLOW_OVERFLOW)
	must(t, m.BlOverflow.Put(&key, &e))
	query := q.query()
	_, err = o.ask(&query, 1)
	must(t, err)
	n := 0
	must(t, bpfmap.Each(m.BlOverflow, func(*bpf.SockBlFlowKey, *bpf.SockBlFlowEntry) { n++ }))
	if n != 1 {
		t.Errorf("bl_overflow has %d entries, want 1", n)
	}
}
