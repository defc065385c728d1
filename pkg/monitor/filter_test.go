package monitor

import (
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// TestIDRanges: two ranges have all ids of a Service, and as few others as can be.
func TestIDRanges(t *testing.T) {
	for _, c := range []struct {
		ids  []uint32
		want [2]bpf.SockBlMonitorServices
	}{
		{nil, [2]bpf.SockBlMonitorServices{}},
		{[]uint32{0}, [2]bpf.SockBlMonitorServices{{First: 0, End: 1}}},
		{[]uint32{7, 5, 6}, [2]bpf.SockBlMonitorServices{{First: 5, End: 8}}},
		{[]uint32{900, 5}, [2]bpf.SockBlMonitorServices{{First: 5, End: 6}, {First: 900, End: 901}}},
		{[]uint32{5, 8, 90, 91, 6}, [2]bpf.SockBlMonitorServices{{First: 5, End: 9}, {First: 90, End: 92}}},
	} {
		if got := idRanges(c.ids); got != c.want {
			t.Errorf("ids %d: ranges %v, want %v", c.ids, got, c.want)
		}
	}
}
