package netns_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// manyBackends returns addresses of no server.
func manyBackends(from, to int) (list []netip.Addr) {
	for i := from; i < to; i++ {
		list = append(list, netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}))
	}
	return list
}

// connectMany connects UDP sockets to a Service, which stay open.
func connectMany(t *testing.T, h *lab.Host, to netip.AddrPort, times int) {
	t.Helper()
	for range times {
		if err := h.Socket("udp4").Connect(to); err != nil {
			t.Fatal(err)
		}
	}
}

// TestActiveGrows: endpoints that are added to a set, also to one of which not all are looked at,
// get connections until they have as many as the others, whose counts stay.
func TestActiveGrows(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	grow := func(size, connections int) []int {
		t.Helper()
		a.Apply(withAlgorithm("lc", ""), lab.Slice("algorithm", algorithmPorts, manyBackends(0, size)...))
		connectMany(t, h, algorithmFrontends[2].to, connections)
		return activeSockets(t, a, model.UDP, manyBackends(0, size))
	}
	two := slices.Repeat([]int{2}, 60)
	if got := grow(5, 10); !slices.Equal(got, two[:5]) {
		t.Fatalf("10 connections to 5 endpoints: %v", got)
	}
	if got := grow(60, 110); !slices.Equal(got, two) {
		t.Fatalf("120 connections to 60 endpoints, 10 of them earlier to 5: %v", got)
	}
	// 64 of 100 are looked at: 24 new ones or more, which 40 connections do not fill.
	if got := grow(100, 40); !slices.Equal(got[:60], two) || slices.Max(got[60:]) > 2 {
		t.Errorf("40 connections more to 40 endpoints more: %v", got)
	}
}

// TestActiveTableGrows: counts stay, and those of new backends begin, when the table of endpoints
// takes its next chunk.
func TestActiveTableGrows(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	few, to := manyBackends(0, 3), algorithmFrontends[2].to
	a.Apply(withAlgorithm("lc", ""), lab.Slice("algorithm", algorithmPorts, few...))
	connectMany(t, h, to, 9)
	// A chunk has 4,096 backends.
	many := manyBackends(3, 5000)
	service := annotate(lab.Service("many", "{clusterIPs: [10.96.0.41], ports: [{name: dns, port: 53, protocol: UDP}]}"), "", "algorithm", "lc")
	a.Apply(service, lab.Slice("many", "dns:8080/UDP", many...))
	if got := activeSockets(t, a, model.UDP, few); !slices.Equal(got, []int{3, 3, 3}) {
		t.Errorf("%v connections after the table has grown", got)
	}
	connectMany(t, h, to, 3)
	connectMany(t, h, ap("10.96.0.41:53"), 500)
	if got := activeSockets(t, a, model.UDP, few); !slices.Equal(got, []int{4, 4, 4}) {
		t.Errorf("%v connections, want 4 each", got)
	}
	got := activeSockets(t, a, model.UDP, many)
	sum := 0
	for _, n := range got {
		sum += n
	}
	if sum != 500 || slices.Max(got) > 2 {
		t.Errorf("500 connections are counted as %d, at most %d at one of %d endpoints", sum, slices.Max(got), len(many))
	}
}
