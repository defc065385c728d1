package flowmap

import (
	"encoding/binary"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/bpffs"
	"github.com/beeline-lb/beeline/tests/maptest"
)

// putFlow writes both entries of a flow of the i-th client into a table.
func putFlow(t *testing.T, table *ebpf.Map, i int, state State, idle time.Duration) {
	t.Helper()
	now, err := bpf.Clock()
	must(t, err)
	client := movingClient(i)
	bits := uint8(state)
	forward := forwardEntry(flowBackend, bpf.Hton16(client.Port()), 0, bits)
	forward.Forward.Used = uint32((now - idle) / time.Second)
	key := flowKey(client, flowService, model.TCP)
	reply := replyEntry(key)
	reply.Reply().Bits |= bits
	must(t, table.Put(key, &forward), table.Put(flowKey(flowBackend, client, model.TCP), reply))
}

func movingClient(i int) netip.AddrPort {
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], 198<<24|18<<16|uint32(i))
	return netip.AddrPortFrom(netip.AddrFrom4(addr), 20000)
}

// TestMoveToLess: a smaller flow table keeps the flows that are established, those used
// last before others, whole; of half-open ones no more than may begin there.
func TestMoveToLess(t *testing.T) {
	dir := bpffs.New(t)
	sizes := maptest.Small
	sizes.Flows = 16384
	first := maptest.Load(t, dir, sizes)
	must(t, first.Pin(dir))
	for i := range 1000 {
		putFlow(t, first.BlFlow, i, StateNew, 0)
		putFlow(t, first.BlFlow, 1000+i, StateEstablished, time.Minute)
		putFlow(t, first.BlFlow, 2000+i, StateEstablished, time.Hour)
	}
	must(t, first.Close())

	sizes.Flows = 4096 // room for some 1,900 flows
	m := maptest.Load(t, dir, sizes)
	moved, err := m.Move()
	must(t, err)
	kept := make([]int, 3)
	flows, replies := flowTable(t, m)
	for i := range flows {
		addr := flows[i].Client.Addr().As4()
		kept[(binary.BigEndian.Uint32(addr[:])&0xffff)/1000]++
	}
	t.Logf("moved %+v, kept %v and %d replies", moved, kept, len(replies))
	if kept[1] != 1000 || kept[2] == 0 || kept[2] == 1000 || kept[0] != 0 {
		t.Errorf("kept %d half-open flows, %d of the last minute and %d of the last hour", kept[0], kept[1], kept[2])
	}
	if len(replies) != len(flows) {
		t.Errorf("%d reply entries of %d flows", len(replies), len(flows))
	}
	for _, table := range moved {
		if table.Map == bpf.SockMapBlFlow && (table.Entries+table.Dropped != 6000 || table.Entries != 2*len(flows)) {
			t.Errorf("%+v", table)
		}
	}
}

// TestMoveGoesOn: an agent that was killed before it had moved the entries leaves the former
// table to the next one, which moves them, whatever size it has, and those that are added meanwhile.
func TestMoveGoesOn(t *testing.T) {
	for name, flows := range map[string]uint32{"the size of the killed one": 20000, "another size": 30000} {
		t.Run(name, func(t *testing.T) {
			dir := bpffs.New(t)
			sizes := maptest.Small
			sizes.Flows = 10000
			first := maptest.Load(t, dir, sizes)
			must(t, first.Pin(dir))
			putFlow(t, first.BlFlow, 1, StateEstablished, 0)

			sizes.Flows = 20000
			killed := maptest.Load(t, dir, sizes)
			must(t, killed.Pin(dir))
			putFlow(t, killed.BlFlow, 2, StateEstablished, 0)
			must(t, killed.Close())

			sizes.Flows = flows
			m := maptest.Load(t, dir, sizes)
			if !m.Resized() {
				t.Fatal("the programs at work are not to be replaced")
			}
			// By programs that the killed one had not replaced yet.
			putFlow(t, first.BlFlow, 3, StateEstablished, 0)
			must(t, first.Close())
			_, err := m.Move()
			must(t, err, m.Pin(dir))
			if have, _ := flowTable(t, m); len(have) != 3 {
				t.Errorf("flows %+v, want all three", have)
			}
			if left, err := filepath.Glob(filepath.Join(dir, bpf.TcMapBlFormerFlow)); err != nil || len(left) > 0 {
				t.Errorf("still pinned: %v, %v", left, err)
			}
		})
	}
}
