package flowmap

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/bpffs"
	"github.com/beeline-lb/beeline/tests/maptest"
	"github.com/beeline-lb/beeline/tests/servicetest"
	"github.com/beeline-lb/beeline/tests/tier"
)

// counted are the backend of the tests and its generation.
const counted, countedGeneration = 5, 9

func newCounted(t *testing.T) (*bpfmap.Maps, func(port uint16, state State) Flow) {
	t.Helper()
	m := maptest.New(t, maptest.Small)
	putCounted(t, m)
	return m, func(port uint16, state State) Flow {
		key := bpf.SockBlFlowKey{Src: bpf.AddrOf(flowClient.Addr()), SrcPort: port, Dst: bpf.AddrOf(flowService.Addr()), Proto: uint8(model.TCP)}
		entry := bpf.SockBlFlowEntry{Forward: bpf.SockBlFlowForward{BackendId: counted, Generation: countedGeneration, Bits: uint8(state)}}
		must(t, m.BlFlow.Put(&key, &entry))
		flows, _ := flowTable(t, m)
		for _, f := range flows {
			if f.key().SrcPort == port {
				return f
			}
		}
		t.Fatal("the flow is not there")
		return Flow{}
	}
}

// putCounted writes the backend and its Service.
func putCounted(t *testing.T, m *bpfmap.Maps) {
	t.Helper()
	services := servicetest.Open(t, m)
	must(t,
		services.PutBackend(counted, tables.Backend{AddrPort: flowBackend, Service: 3, State: tables.InCluster, Generation: countedGeneration, Weight: 1}),
		services.PutServiceName(3, maptest.ServiceName("a", model.IPv4)),
		services.PutService(3, tables.Service{Cluster: tables.Set{Kind: policy.Backends, Count: 1}, Algorithm: model.LeastConn}))
}

func activeFlows(m *bpfmap.Maps) uint32 {
	_, flows := New(m).Active(counted, countedGeneration)
	return flows
}

// TestActiveCount: a walk brings the count of a backend to the flows that are in the table and
// have not closed, whatever it was before.
func TestActiveCount(t *testing.T) {
	m, put := newCounted(t)
	for i, state := range []State{StateNew, StateSynReceived, StateEstablished, StateClientClosing, StateClosed, StateAborted} {
		put(uint16(i+1), state)
	}
	for _, before := range []int64{0, 3, 50} {
		New(m).addActive(counted, countedGeneration, before-int64(activeFlows(m)))
		c := New(m).StartActiveCount()
		flows, _ := flowTable(t, m)
		for i := range flows {
			c.Add(&flows[i], false)
		}
		New(m).EndActiveCount(c)
		if got := activeFlows(m); got != 3 {
			t.Errorf("%d are active after a walk, %d before, want 3", got, before)
		}
	}
}

// TestActiveRemoved: a flow that the agent removes is counted no more, once; a closed one and one
// of a former generation have not been.
func TestActiveRemoved(t *testing.T) {
	m, put := newCounted(t)
	open, closed := put(1, StateEstablished), put(2, StateClosed)
	New(m).addActive(counted, countedGeneration, 7)
	must(t, New(m).Delete(&closed))
	if got := activeFlows(m); got != 7 {
		t.Errorf("%d are active after a closed flow of 7 open ones is removed", got)
	}
	for range 2 {
		must(t, New(m).Delete(&open))
		if got := activeFlows(m); got != 6 {
			t.Errorf("%d are active after one of 7 is removed", got)
		}
	}
	must(t, servicetest.Open(t, m).PutBackend(counted, tables.Backend{AddrPort: flowBackend, Service: 3, State: tables.InCluster, Generation: countedGeneration + 1, Weight: 1}))
	New(m).addActive(counted, countedGeneration+1, 2)
	former := put(3, StateEstablished)
	must(t, New(m).Delete(&former))
	if _, got := New(m).Active(counted, countedGeneration+1); got != 2 {
		t.Errorf("%d are active after a flow of a former generation is removed, want 2", got)
	}
}

// TestActiveInTwoTables: a flow that is in the former table, too, is counted no more once, when the present one
// has it no more. With it goes the reply entry from both.
func TestActiveInTwoTables(t *testing.T) {
	tier.SameInEveryKernel(t)
	for name, remove := range map[string]func(*testing.T, *bpfmap.Maps, []Flow){
		"expired": func(t *testing.T, m *bpfmap.Maps, flows []Flow) {
			for i, want := range []uint32{7, 6} {
				if removed, err := New(m).Expire(&flows[i]); !removed || err != nil {
					t.Errorf("flow %d: removed %v, %v", i, removed, err)
				}
				if got := activeFlows(m); got != want {
					t.Errorf("%d are active after %d were removed, want %d", got, i+1, want)
				}
			}
		},
		"expired at once": func(t *testing.T, m *bpfmap.Maps, flows []Flow) {
			if removed, err := New(m).Expire(&flows[1]); !removed || err != nil {
				t.Errorf("removed %v, %v", removed, err)
			}
		},
		"deleted": func(t *testing.T, m *bpfmap.Maps, flows []Flow) { must(t, New(m).Delete(&flows[1])) },
	} {
		// The second of the last packet that the present table has; the former one has 1.
		for _, used := range []uint32{1, 2} {
			t.Run(fmt.Sprint(name, ", used in second ", used), func(t *testing.T) {
				m := newFormer(t)
				key := flowKey(flowClient, flowService, model.TCP)
				for i, table := range []*ebpf.Map{m.FormerFlow(), m.BlFlow} {
					entry := forwardEntry(flowBackend, bpf.Hton16(flowClient.Port()), 0, uint8(StateEstablished))
					entry.Forward.BackendId, entry.Forward.Generation = counted, countedGeneration
					entry.Forward.Used = []uint32{1, used}[i]
					must(t, table.Put(key, &entry), table.Put(flowKey(flowBackend, flowClient, model.TCP), replyEntry(key)))
				}
				putCounted(t, m)
				New(m).addActive(counted, countedGeneration, 7)
				flows, _ := flowTable(t, m)
				if len(flows) != 2 || !flows[0].Moved || flows[1].Moved {
					t.Fatalf("flows %+v, want the one of the former table and then that of the present one", flows)
				}
				remove(t, m, flows)
				if got := activeFlows(m); got != 6 {
					t.Errorf("%d are active, want 6", got)
				}
				if flows, replies := flowTable(t, m); len(flows)+len(replies) > 0 {
					t.Errorf("%+v and %+v are left", flows, replies)
				}
			})
		}
	}
}

// newFormer returns maps with a former flow table.
func newFormer(t *testing.T) *bpfmap.Maps {
	t.Helper()
	dir := bpffs.New(t)
	first := maptest.Load(t, dir, maptest.Small)
	must(t, first.Pin(dir))
	sizes := maptest.Small
	sizes.Flows *= 2
	return maptest.Load(t, dir, sizes)
}

// TestActiveCorrection: while flows begin and end, a right count stays right, and a wrong one is
// not made worse.
func TestActiveCorrection(t *testing.T) {
	for range 100000 {
		truth, wrong := rand.IntN(20), rand.IntN(7)-3
		began, ended, removed := rand.IntN(10), 0, 0
		if most := truth + began; most > 0 {
			ended = rand.IntN(most + 1)
		}
		if ended > 0 {
			removed = rand.IntN(ended + 1)
		}
		// Of those that began or ended otherwise, any number is found.
		found := max(0, truth-(ended-removed)) + rand.IntN(min(truth, ended-removed)+began+1)
		found = max(found, removed)
		wrong = max(wrong, -truth)
		b := activeBackend{before: uint32(truth + wrong), begun: ^uint32(0) - 3, found: uint32(found), removed: uint32(removed)}
		after := max(0, truth+wrong+began-ended)
		if after != truth+wrong+began-ended {
			continue // the programs do not count below zero
		}
		left := wrong + int(b.correction(uint32(after), b.begun+uint32(began)))
		if wrong == 0 && left != 0 || wrong > 0 && (left > wrong || left < 0) || wrong < 0 && (left < wrong || left > 0) {
			t.Fatalf("%d beside %d is corrected to %d: %d began, %d ended, %d of them removed, %d found",
				truth+wrong, truth, truth+left, began, ended, removed, found)
		}
	}
}
