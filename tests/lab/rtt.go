package lab

import (
	"net/netip"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/servicemap"
)

// NoteRTTs has connections to the backends have had these round-trip times, as ewma goes by, and the
// last of them have ended a while ago.
func NoteRTTs(t testing.TB, m *bpfmap.Maps, rtts map[netip.Addr]time.Duration, ago time.Duration) {
	t.Helper()
	now, err := bpf.Clock()
	if err != nil {
		t.Fatal(err)
	}
	have, err := servicemap.New(m).Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	at := uint32((now - ago) >> bpf.SockBlEwmaLimitsBL_EWMA_UNIT)
	for id, b := range have.Backends {
		if rtt, ok := rtts[b.AddrPort.Addr()]; ok {
			e := m.Active.At(id)
			e.NotedOf, e.Noted = ^b.Generation, uint64(at)<<32|uint64(rtt.Microseconds()*8)
		}
	}
}
