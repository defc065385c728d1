package netns_test

import (
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestMonitorKilled: a listener whose process was killed is forgotten by the next event, also one that it has not chosen.
func TestMonitorKilled(t *testing.T) {
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges})
	a.Apply(dual)
	maps := openMaps(t, h)
	const token, all = 4711, ^uint32(0)
	for name, listener := range map[string]bpf.SockBlMonitorListener{
		"no filter":       {Kinds: all},
		"another Service": {Kinds: all, Filtered: token, Services: [2]bpf.SockBlMonitorServices{{First: 777, End: 778}}},
		"another reason":  {Kinds: all, Filtered: token, Reasons: 1 << bpf.SockBlReasonBL_REASON_SOURCE_RANGE},
		"another kind":    {Kinds: 1 << bpf.SockBlEventKindBL_EVENT_LEFT},
	} {
		listener.Until = 1<<32 | token // soon after the machine's start
		listener.Limit = 10
		maps.Entries.Monitor.Listener[1] = listener
		atomic.StoreUint64(&maps.Entries.Monitor.Listening, 1<<1)
		wantFailure(t, h.Namespace, "tcp4", dualTCP4, unix.ECONNREFUSED)
		if bits := atomic.LoadUint64(&maps.Entries.Monitor.Listening); bits != 0 {
			t.Errorf("%s: places that are taken, by bits: %b", name, bits)
		}
	}
}
