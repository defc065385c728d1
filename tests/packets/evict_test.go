package packets_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/flow"
	"github.com/beeline-lb/beeline/pkg/metrics"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/wait"
)

// Where and what of an entry of bl_flow its bits are.
const (
	flowSize   = 40
	flowBitsAt = flowSize - 1
	replyBit   = 1 << 3 // BL_FLOW_IS_REPLY
	snatBit    = 1 << 4 // BL_FLOW_SNAT
)

func isReply(entry []byte) bool { return entry[flowBitsAt]&replyBit != 0 }

// evict takes flow entries out of the kernel, as it does itself when it has no
// room, and returns how many.
func (a *agent) evict(which func(entry []byte) bool) int {
	a.t.Helper()
	flows := pinned(a.t, a.node.BPFFS, "bl_flow")
	var keys [][]byte
	var key, entry []byte
	entries := flows.Iterate()
	for entries.Next(&key, &entry) {
		if len(entry) != flowSize {
			a.t.Fatalf("an entry of bl_flow has %d bytes: see struct bl_flow_entry", len(entry))
		}
		if which(entry) {
			keys = append(keys, append([]byte(nil), key...))
		}
	}
	if err := entries.Err(); err != nil {
		a.t.Fatal(err)
	}
	for _, key := range keys {
		if err := flows.Delete(key); err != nil {
			a.t.Fatal(err)
		}
	}
	return len(keys)
}

// flowWatch walks a bench's flow table as the agent does.
type flowWatch struct {
	registry *prometheus.Registry
	walks    chan flow.Walk // waits for whoever looks
}

// watchFlows walks the table until the test ends.
func (b *bench) watchFlows(t *testing.T) *flowWatch {
	w := &flowWatch{prometheus.NewRegistry(), make(chan flow.Walk)}
	told := metrics.NewFlows(w.registry, b.maps.MaxFlows())
	ctx, cancel := context.WithCancel(context.Background())
	expirer := flow.New(flow.Options{Maps: b.maps, Timeouts: flow.DefaultTimeouts, Walked: func(walk flow.Walk) {
		told.Observe(walk)
		select {
		case w.walks <- walk:
		case <-ctx.Done():
		}
	}})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		expirer.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return w
}

// walk returns the next walk.
func (w *flowWatch) walk(t *testing.T) flow.Walk {
	t.Helper()
	select {
	case walk := <-w.walks:
		return walk
	case <-time.After(wait.Limit):
		t.Fatal("nobody walks over the flow table")
		return flow.Walk{}
	}
}

// evicted returns beeline_flows_evicted_total of a state.
func (w *flowWatch) evicted(t *testing.T, state string) int {
	t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "beeline_flows_evicted_total" && m.GetLabel()[0].GetValue() == state {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	t.Fatalf("there is no beeline_flows_evicted_total of the state %s", state)
	return 0
}

// TestEvictedConnections: a full flow table evicts the least recently used connections, whose packets
// are no longer translated. The counter has nearly all evicted ones, and no others.
func TestEvictedConnections(t *testing.T) {
	t.Parallel()
	sizes := lab.Sizes
	sizes.Flows = 1 << 13
	b := newBenchSized(t, sizes, datapath.Constants{})
	s := &switchboard{b: b}
	s.attach(t, b.programs, func() {})
	next := 0
	inHost := func(do func()) {
		t.Helper()
		if err := b.host.Thread(func() error { do(); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	establish := func(connections int) {
		t.Helper()
		inHost(func() {
			for range connections {
				if !s.establish(tcpClient(next)) {
					t.Errorf("connection %d is not established", next)
					return
				}
				next++
			}
		})
	}
	establish(b.maps.MaxFlows() / 2)
	w := b.watchFlows(t)
	if flows := w.walk(t).Flows; flows != next || w.evicted(t, "established") != 0 {
		t.Errorf("%d of %d connections that there is room for are in the table, %d are counted as evicted",
			flows, next, w.evicted(t, "established"))
	}

	establish(8 * b.maps.MaxFlows())
	var lost, counted int
	right := func() bool { return counted >= lost*9/10 && counted <= lost+lost/100 }
	for range 2 { // the first walk may have begun before the last connection
		lost = next - w.walk(t).Flows
		if counted = w.evicted(t, "established"); right() {
			break
		}
	}
	t.Logf("%d of %d connections are lost, %d are counted as evicted", lost, next, counted)
	if lost < next/2 || !right() {
		t.Errorf("%d of %d lost connections are counted as evicted", counted, lost)
	}
	if n := w.evicted(t, "half_open"); n > lost/100 {
		t.Errorf("%d half-open connections are counted as evicted, there was none", n)
	}
	inHost(func() {
		const some = 100
		for i := range some {
			if s.goesOn(tcpClient(i)) {
				t.Errorf("connection %d of %d goes on, though it was used least recently", i, next)
			}
			if last := next - 1 - i; !s.goesOn(tcpClient(last)) {
				t.Errorf("connection %d of %d does not go on, though it was used most recently", last, next)
			}
		}
	})
}
