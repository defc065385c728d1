package servicemap

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/bpffs"
	"github.com/beeline-lb/beeline/tests/maptest"
)

// endpointsOf returns the endpoints of Services that the programs find.
func endpointsOf(t *testing.T, m *bpfmap.Maps) map[netip.AddrPort][]uint32 {
	t.Helper()
	list := make(map[netip.AddrPort][]uint32)
	must(t, bpfmap.Each(m.BlEndpoint, func(key *bpf.SockBlEndpointKey, _ *uint32) {
		at := netip.AddrPortFrom(key.Addr.Netip(), bpf.Hton16(key.Port))
		list[at] = append(list[at], key.Service)
	}))
	for _, services := range list {
		slices.Sort(services)
	}
	return list
}

// TestEndpoints: the programs find backends that are on this node, while they are in use, also
// after another agent has taken over and where two entries are one endpoint.
func TestEndpoints(t *testing.T) {
	dir := bpffs.New(t)
	m := load(t, dir, maptest.Small)
	must(t, m.maps.Pin(dir))
	here, other := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("[fd00::1]:80")
	put := func(id, service uint32, at netip.AddrPort, state tables.BackendState) {
		t.Helper()
		must(t, m.PutBackend(id, tables.Backend{AddrPort: at, Service: service, State: state, Generation: 1}))
	}
	want := func(what string, want map[netip.AddrPort][]uint32) {
		t.Helper()
		if got := endpointsOf(t, m.maps); !maps.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%s: programs find %v, want %v", what, got, want)
		}
	}
	put(1, 7, here, tables.InCluster|tables.OnNode)
	put(2, 8, here, tables.InCluster|tables.OnNode)
	put(3, 7, other, tables.InCluster)
	put(4, 7, here, tables.InCluster|tables.OnNode) // left by an agent that was killed
	want("at first", map[netip.AddrPort][]uint32{here: {7, 8}})
	put(3, 7, other, tables.OnNode)
	put(2, 8, here, tables.InCluster)
	want("after changes", map[netip.AddrPort][]uint32{here: {7}, other: {7}})
	put(4, 7, here, 0)
	want("without a second entry", map[netip.AddrPort][]uint32{here: {7}, other: {7}})

	stray := endpointKey(bpf.AddrOf(here.Addr()), bpf.Hton16(81), 7)
	must(t, bpfmap.Put(m.maps.BlEndpoint, &stray, uint32(1)))
	lost := endpointKey(bpf.AddrOf(other.Addr()), bpf.Hton16(80), 7)
	must(t, bpfmap.Remove(m.maps.BlEndpoint, &lost))
	m = load(t, dir, maptest.Small)
	want("after a restart", map[netip.AddrPort][]uint32{here: {7}, other: {7}})
	put(1, 7, here, 0)
	put(3, 9, netip.MustParseAddrPort("10.0.0.3:90"), tables.OnNode)
	want("in the end", map[netip.AddrPort][]uint32{netip.MustParseAddrPort("10.0.0.3:90"): {9}})
}
