package servicemap

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/bpffs"
	"github.com/beeline-lb/beeline/tests/maptest"
)

// load opens the maps that are pinned in dir, or makes them.
func load(t testing.TB, dir string, sizes bpfmap.Sizes) *Store {
	t.Helper()
	return open(t, maptest.Load(t, dir, sizes))
}

func open(t testing.TB, m *bpfmap.Maps) *Store {
	t.Helper()
	s, err := Open(m)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// reload closes the maps after pinning them, and opens the pins.
func reload(t *testing.T, s *Store, dir string, sizes bpfmap.Sizes) *Store {
	t.Helper()
	return open(t, maptest.Reload(t, s.maps, dir, sizes))
}

// content is a snapshot that can be compared.
type content struct {
	tables.Snapshot
	Slots map[tables.Set][]uint32
}

func contentOf(t *testing.T, m Table) content {
	t.Helper()
	s, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	c := content{Snapshot: s, Slots: make(map[tables.Set][]uint32)}
	for _, service := range s.Services {
		for _, set := range []tables.Set{service.Cluster, service.Local} {
			c.Slots[set] = s.Slots(set)
		}
	}
	c.Snapshot.Slots = nil
	byText := func(a, b tables.SourceRange) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }
	slices.SortFunc(c.SourceRanges, byText)
	slices.SortFunc(c.ServiceCIDRs, netip.Prefix.Compare)
	slices.SortFunc(c.Foreign, netip.Addr.Compare)
	return c
}

func wantContent(t *testing.T, m Table, want content) {
	t.Helper()
	if got := contentOf(t, m); !reflect.DeepEqual(got, want) {
		t.Fatalf("the maps hold\n%+v, want\n%+v", got, want)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// fill writes entries at both ends of several chunks, of both families, and
// returns them.
func fill(t *testing.T, m *Store) content {
	t.Helper()
	c := content{
		Snapshot: tables.Snapshot{
			Names:    map[uint32]tables.ServiceName{0: maptest.ServiceName("a", model.IPv4), 4095: maptest.ServiceName("b", model.IPv6), 4096: maptest.ServiceName("c", model.IPv4), 9000: maptest.ServiceName("d", model.IPv6)},
			Services: map[uint32]tables.Service{},
			Backends: map[uint32]tables.Backend{},
			Frontends: map[tables.FrontendKey]tables.Frontend{
				{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: model.TCP}: {Service: 0, Kind: tables.FrontendClusterIP, Flags: tables.InternalLocal},
				{Addr: netip.MustParseAddr("10.96.0.1")}:                                {Service: 0, Kind: tables.FrontendAddress},
				{Addr: netip.IPv6Unspecified(), Port: 30000, Protocol: model.UDP}:       {Service: 4095, Kind: tables.FrontendNodePort, Flags: tables.ExternalLocal},
				{Addr: netip.MustParseAddr("fd00::1"), Port: 443, Protocol: model.SCTP}: {Service: 9000, Kind: tables.FrontendLoadBalancer, Flags: tables.SourceRanges},
			},
			SourceRanges: []tables.SourceRange{{Service: 9000, Prefix: netip.MustParsePrefix("10.0.0.0/8")}, {Service: 9000, Prefix: netip.MustParsePrefix("2001:db8::/32")}},
			ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00::/108")},
			Foreign:      []netip.Addr{netip.MustParseAddr("10.96.0.7"), netip.MustParseAddr("fd00::7")},
			NodeAddrs: map[netip.Addr]tables.NodeAddr{
				netip.MustParseAddr("192.0.2.1"): {}, netip.MustParseAddr("127.0.0.1"): {HostOnly: true}, netip.IPv6Loopback(): {HostOnly: true},
			},
			Nodes: map[uint16]tables.Node{
				1:    {Addr: netip.MustParseAddr("192.0.2.1"), Name: "node-1", Self: true},
				8191: {Addr: netip.MustParseAddr("fd00::2"), Name: strings.Repeat("n", 253)},
			},
			NodeIDs: map[netip.Addr]uint16{
				netip.MustParseAddr("192.0.2.1"): 1, netip.MustParseAddr("fd00::1"): 1, netip.MustParseAddr("fd00::2"): 8191,
			},
		},
		Slots: map[tables.Set][]uint32{},
	}
	backend := uint32(0)
	for i, id := range slices.Sorted(maps.Keys(c.Names)) {
		s := tables.Service{AffinitySeconds: uint32(i), Local: tables.Set{Kind: policy.Drop}, Algorithm: model.Maglev - model.Algorithm(i), Tunnels: i%2 == 1}
		// The third run lies in two chunks.
		s.Cluster = tables.Set{Kind: policy.Backends, First: uint32(i*8192 - i), Count: uint32(i + 1)}
		c.Services[id] = s
		c.Slots[s.Local] = nil
		for range s.Cluster.Count {
			c.Backends[backend] = tables.Backend{
				AddrPort: netip.AddrPortFrom([]netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd01::1")}[i%2], uint16(8080+i)),
				Service:  id, State: tables.InCluster | tables.Ready | tables.OnNode, Generation: 1<<32 - 1 - uint32(i),
				Weight: uint16(1<<16 - 1 - i), Node: uint16(i % 2 * 8191),
			}
			c.Slots[s.Cluster] = append(c.Slots[s.Cluster], backend)
			backend += 1365
		}
	}
	write(t, m, c)
	return c
}

// write brings the content into maps that are empty.
func write(t *testing.T, m *Store, c content) {
	t.Helper()
	for id, name := range c.Names {
		must(t, m.PutServiceName(id, name))
	}
	for id, n := range c.Nodes {
		must(t, m.PutNode(id, n))
	}
	for addr, id := range c.NodeIDs {
		must(t, m.PutNodeID(addr, id))
	}
	for id, b := range c.Backends {
		must(t, m.PutBackend(id, b))
	}
	for set, ids := range c.Slots {
		if len(ids) > 0 {
			must(t, m.PutSlots(set.First, ids))
		}
	}
	for id, s := range c.Services {
		must(t, m.PutService(id, s))
	}
	for key, f := range c.Frontends {
		must(t, m.PutFrontend(key, f))
	}
	for _, r := range c.SourceRanges {
		must(t, m.PutSourceRange(r))
	}
	for _, p := range c.ServiceCIDRs {
		must(t, m.PutServiceCIDR(p))
	}
	for _, addr := range c.Foreign {
		must(t, m.PutForeign(addr))
	}
	for addr, a := range c.NodeAddrs {
		must(t, m.PutNodeAddr(addr, a))
	}
}

func TestSnapshot(t *testing.T) {
	m := load(t, bpffs.New(t), maptest.Small)
	empty := contentOf(t, m.Table)
	if len(empty.Names)+len(empty.Backends)+len(empty.Frontends)+len(empty.NodeAddrs)+len(empty.Nodes)+len(empty.NodeIDs) != 0 {
		t.Fatalf("new maps hold %+v", empty)
	}
	want := fill(t, m)
	wantContent(t, m.Table, want)

	// Everything goes again.
	for key := range want.Frontends {
		must(t, m.DeleteFrontend(key), m.DeleteFrontend(key))
	}
	for _, r := range want.SourceRanges {
		must(t, m.DeleteSourceRange(r), m.DeleteSourceRange(r))
	}
	for _, p := range want.ServiceCIDRs {
		must(t, m.DeleteServiceCIDR(p), m.DeleteServiceCIDR(p))
	}
	for _, addr := range want.Foreign {
		must(t, m.DeleteForeign(addr), m.DeleteForeign(addr))
	}
	for addr := range want.NodeAddrs {
		must(t, m.DeleteNodeAddr(addr), m.DeleteNodeAddr(addr))
	}
	for id := range want.Services {
		must(t, m.PutService(id, tables.Service{}), m.ClearServiceName(id))
	}
	for addr := range want.NodeIDs {
		must(t, m.DeleteNodeID(addr), m.DeleteNodeID(addr))
	}
	for id := range want.Nodes {
		must(t, m.ClearNode(id), m.ClearNode(id))
	}
	for id, b := range want.Backends {
		b.State = 0
		must(t, m.PutBackend(id, b))
		if got := m.Generation(id); got != b.Generation {
			t.Errorf("generation of backend %d is %d after it went, was %d", id, got, b.Generation)
		}
	}
	wantContent(t, m.Table, empty)
	for i, word := range m.filter.entry.Word {
		if word != 0 {
			t.Fatalf("word %d of the filter is %#x without a frontend", i, word)
		}
	}
}

// TestFilter finds the bit of every frontend that is there.
func TestFilter(t *testing.T) {
	dir := bpffs.New(t)
	m := load(t, dir, maptest.Small)
	key := func(i int) tables.FrontendKey {
		return tables.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Port: 80, Protocol: model.TCP}
	}
	must(t, m.PutServiceName(0, maptest.ServiceName("a", model.IPv4)))
	check := func(m *Store, from, to int) {
		t.Helper()
		set := 0
		for _, word := range m.maps.Entries.Filter.Word {
			for ; word != 0; word &= word - 1 {
				set++
			}
		}
		if set > to-from || set < (to-from)*9/10 {
			t.Errorf("%d bits for %d frontends", set, to-from)
		}
		for i := from; i < to; i++ {
			k := frontendKey(key(i))
			if bit := filterBit(&k); m.maps.Entries.Filter.Word[bit/64]>>(bit%64)&1 == 0 {
				t.Fatalf("the bit of %s is clear", key(i))
			}
		}
	}
	for i := range 1000 {
		must(t, m.PutFrontend(key(i), tables.Frontend{Kind: tables.FrontendClusterIP}))
	}
	check(m, 0, 1000)
	for i := range 400 {
		must(t, m.DeleteFrontend(key(i)))
		must(t, m.PutFrontend(key(999), tables.Frontend{Kind: tables.FrontendClusterIP, Flags: tables.ExternalLocal}))
	}
	check(m, 400, 1000)

	// A bit that a former agent left set goes.
	m.filter.entry.Word[0] = ^uint64(0)
	m = reload(t, m, dir, maptest.Small)
	check(m, 400, 1000)
	for i := 400; i < 1000; i++ {
		must(t, m.DeleteFrontend(key(i)))
	}
	check(m, 0, 0)

	// A frontend that finds no room leaves no bit.
	for i := range 2000 {
		must(t, m.PutFrontend(key(i), tables.Frontend{Kind: tables.FrontendClusterIP}))
	}
	if err := m.PutFrontend(key(2000), tables.Frontend{Kind: tables.FrontendClusterIP}); err == nil {
		t.Fatal("no error")
	}
	check(m, 0, 2000)
}

// TestFilterRings: the filter tells whether there is a Service of Maglev.
func TestFilterRings(t *testing.T) {
	dir := bpffs.New(t)
	m := load(t, dir, maptest.Small)
	check := func(want bool) {
		t.Helper()
		bit := filterBit(&ringsKey)
		if got := m.filter.entry.Word[bit/64]>>(bit%64)&1 != 0; got != want {
			t.Errorf("the filter tells of rings: %t, want %t", got, want)
		}
	}
	put := func(id uint32, a model.Algorithm) { must(t, m.PutService(id, tables.Service{Algorithm: a})) }
	must(t, m.PutServiceName(0, maptest.ServiceName("a", model.IPv4)), m.PutServiceName(1, maptest.ServiceName("b", model.IPv4)))
	check(false)
	put(0, model.SourceHash)
	check(false)
	put(0, model.Maglev)
	put(0, model.Maglev)
	put(1, model.Maglev)
	put(1, model.Random)
	check(true)
	m = reload(t, m, dir, maptest.Small)
	check(true)
	put(0, model.DefaultAlgorithm)
	check(false)
	m = reload(t, m, dir, maptest.Small)
	check(false)
}

func wantFull(t *testing.T, err error, table string, size uint32, setting string) {
	t.Helper()
	var full *tables.FullError
	if !errors.As(err, &full) || *full != (tables.FullError{Table: table, Size: size, Setting: setting}) {
		t.Errorf("error %v, want one of a full %s of %d, %s", err, table, size, setting)
	}
}

func TestFull(t *testing.T) {
	sizes := maptest.Small
	sizes.Services, sizes.Backends, sizes.Slots, sizes.Frontends, sizes.SourceRanges = 5000, 1, 1, 2, 2
	m := load(t, bpffs.New(t), sizes)
	name := maptest.ServiceName("a", model.IPv4)
	must(t, m.PutServiceName(0, name), m.PutServiceName(8191, name))
	wantFull(t, m.PutServiceName(8192, name), "bl_service", 8192, "tables.maxServices")
	must(t, m.PutBackend(4095, tables.Backend{AddrPort: netip.MustParseAddrPort("10.0.0.1:80")}))
	wantFull(t, m.PutBackend(4096, tables.Backend{AddrPort: netip.MustParseAddrPort("10.0.0.1:80")}), "bl_backend", 4096, "tables.maxBackends")
	must(t, m.PutSlots(16383, []uint32{0}))
	wantFull(t, m.PutSlots(16383, []uint32{0, 0}), "bl_slot", 16384, "tables.maxSlots")

	key := tables.FrontendKey{Addr: netip.MustParseAddr("10.0.0.1"), Protocol: model.TCP}
	frontend := tables.Frontend{Kind: tables.FrontendClusterIP}
	for key.Port = range uint16(2) {
		must(t, m.PutFrontend(key, frontend))
	}
	key.Port = 2
	wantFull(t, m.PutFrontend(key, frontend), "bl_frontend", 2, "tables.maxFrontends")
	key.Port = 1
	must(t, m.PutFrontend(key, tables.Frontend{Kind: tables.FrontendExternalIP}), m.DeleteFrontend(key))
	key.Port = 2
	must(t, m.PutFrontend(key, frontend))

	for id := range uint32(2) {
		must(t, m.PutSourceRange(tables.SourceRange{Service: id, Prefix: netip.MustParsePrefix("10.0.0.0/8")}))
	}
	r := tables.SourceRange{Service: 2, Prefix: netip.MustParsePrefix("10.0.0.0/8")}
	wantFull(t, m.PutSourceRange(r), "bl_srcrange", 2, "tables.maxSourceRanges")

	limits := m.Limits()
	for _, l := range []tables.Limit{limits.Services, limits.Backends, limits.Slots, limits.Frontends, limits.SourceRanges} {
		if l.Setting == "" || bpfmap.Setting(l.Table) != l.Setting {
			t.Errorf("%s has the setting %q, its limit %q", l.Table, bpfmap.Setting(l.Table), l.Setting)
		}
	}
	sizes.Slots = 0
	if _, err := bpfmap.Load("", sizes); err == nil || !strings.Contains(err.Error(), "tables.maxSlots") {
		t.Errorf("size 0 gives %v", err)
	}
}

func mapID(t *testing.T, m *ebpf.Map) ebpf.MapID {
	t.Helper()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

func TestTakeOver(t *testing.T) {
	dir := bpffs.New(t)
	if _, err := bpfmap.Open(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("open without pins: %v", err)
	}
	m := load(t, dir, maptest.Small)
	want := fill(t, m)
	ids := make(map[string]ebpf.MapID)
	for name, kernelMap := range m.maps.All() {
		ids[name] = mapID(t, kernelMap)
	}
	m = reload(t, m, dir, maptest.Small)
	wantContent(t, m.Table, want)
	for name, kernelMap := range m.maps.All() {
		if mapID(t, kernelMap) != ids[name] {
			t.Errorf("map %s is another one", name)
		}
	}
	must(t, m.maps.Pin(dir)) // nothing to do

	reader, err := bpfmap.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	wantContent(t, New(reader), want)
	b := want.Backends[0]
	b.State = tables.InLocal | tables.Terminating
	must(t, m.PutBackend(0, b))
	want.Backends[0] = b
	wantContent(t, New(reader), want)
	pins, err := os.ReadDir(dir)
	if err != nil || len(pins) != len(ids) {
		t.Errorf("%d pins for %d maps, %v", len(pins), len(ids), err)
	}
}

func TestGrowSizes(t *testing.T) {
	dir := bpffs.New(t)
	m := load(t, dir, maptest.Small)
	want := fill(t, m)
	affinity := bpf.SockBlAffinityKey{Netns: 5, Service: 9000}
	peer := bpf.SockBlUdpPeerKey{Cookie: 7, Port: 53}
	must(t, m.maps.BlAffinity.Put(&affinity, &bpf.SockBlAffinityEntry{LastUsed: 11}),
		m.maps.BlUdpPeer.Put(&peer, &bpf.SockBlUdpPeerEntry{Member: 13}))

	larger := bpfmap.Sizes{
		Frontends: 4000, Services: 5 * 4096, Backends: 4 * 4096, Slots: 9 * 16384,
		Affinity: 2000, UDPPeers: 3000, SourceRanges: 300, Flows: 2000, Clients: 2000,
	}
	for _, sizes := range []bpfmap.Sizes{larger, maptest.Small, larger} {
		m = reload(t, m, dir, sizes)
		wantContent(t, m.Table, want)
		var a bpf.SockBlAffinityEntry
		var p bpf.SockBlUdpPeerEntry
		must(t, m.maps.BlAffinity.Lookup(&affinity, &a), m.maps.BlUdpPeer.Lookup(&peer, &p))
		if a.LastUsed != 11 || p.Member != 13 {
			t.Errorf("entries became %+v and %+v", a, p)
		}
		if got := m.Limits().Slots.Size; got != sizes.Slots {
			t.Errorf("%d slots, want %d", got, sizes.Slots)
		}
	}
	name := maptest.ServiceName("e", model.IPv4)
	must(t, m.PutServiceName(5*4096-1, name))
	want.Names[5*4096-1] = name
	want.Services[5*4096-1] = tables.Service{Algorithm: model.Random}
	want.Slots[tables.Set{}] = nil
	wantContent(t, m.Table, want)
}

// TestShrinkSizes rejects sizes that are too maptest.Small for what is there, and the
// former maps stay.
func TestShrinkSizes(t *testing.T) {
	dir := bpffs.New(t)
	m := load(t, dir, maptest.Small)
	want := fill(t, m)
	m = reload(t, m, dir, maptest.Small)
	for setting, shrink := range map[string]func(*bpfmap.Sizes){
		"tables.maxFrontends":    func(s *bpfmap.Sizes) { s.Frontends = 3 },
		"tables.maxServices":     func(s *bpfmap.Sizes) { s.Services = 4096 },
		"tables.maxBackends":     func(s *bpfmap.Sizes) { s.Backends = 4096 },
		"tables.maxSlots":        func(s *bpfmap.Sizes) { s.Slots = 16384 },
		"tables.maxSourceRanges": func(s *bpfmap.Sizes) { s.SourceRanges = 1 },
	} {
		sizes := maptest.Small
		shrink(&sizes)
		m, err := bpfmap.Load(dir, sizes)
		if err == nil {
			m.Close()
			t.Errorf("%s: taken over", setting)
			continue
		}
		if !errors.Is(err, tables.ErrFull) || !strings.Contains(err.Error(), "raise "+setting) {
			t.Errorf("%s: error %q", setting, err)
		}
	}
	wantContent(t, m.Table, want)
}

func TestBarrier(t *testing.T) {
	m := load(t, bpffs.New(t), maptest.Small)
	must(t, m.Barrier())
	want := fill(t, m)
	must(t, m.Barrier())
	wantContent(t, m.Table, want)
}

// memoryOf returns all that is mapped into memory.
func memoryOf(s *Store) []byte {
	m := s.maps
	return slices.Concat(chunkBytes(m.Service), chunkBytes(m.ServiceName), chunkBytes(m.Backend),
		chunkBytes(m.Slot), bytesOf(m.Entries.Aggregate), bytesOf(m.Entries.Filter))
}

func bytesOf[T any](entry *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(entry)), unsafe.Sizeof(*entry))
}

func chunkBytes[T any](t *bpfmap.Table[T]) (all []byte) {
	t.Read(0, t.Len(), func(entries []T) {
		all = append(all, unsafe.Slice((*byte)(unsafe.Pointer(&entries[0])), len(entries)*int(unsafe.Sizeof(entries[0])))...)
	})
	return all
}

// TestRestore starts again over pinned maps with the same Services: the memory is
// the same to the byte.
func TestRestore(t *testing.T) {
	dir := bpffs.New(t)
	m := load(t, dir, maptest.Small)
	var want []tables.Desired
	node := &model.LocalNode{Name: "here"}
	for i := range 200 {
		name := model.Name{Namespace: "ns", Name: fmt.Sprint("svc-", i)}
		svc := &model.Service{
			Name:            name,
			ClusterIPs:      []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(i)})},
			Ports:           []model.ServicePort{{Name: "web", Protocol: model.TCP, Port: 80, NodePort: uint16(30000 + i)}},
			AffinitySeconds: uint32(i % 2),
			Algorithm:       model.Algorithm(i % 7),
			RingSize:        251,
		}
		slice := &model.Slice{
			Name: name, Service: name.Name, Family: model.IPv4,
			Ports: []model.SlicePort{{Name: "web", Protocol: model.TCP, Port: 8080}},
		}
		for e := range i % 40 {
			slice.Endpoints = append(slice.Endpoints, model.Endpoint{
				Addr: netip.AddrFrom4([4]byte{10, 1, byte(i), byte(e)}), Ready: true, Serving: true, NodeName: []string{"here", ""}[e%2],
			})
		}
		want = append(want, tables.Compile(svc, []*model.Slice{slice}, node))
	}
	applyAll := func(tb *tables.Tables) {
		t.Helper()
		for _, d := range want {
			if _, err := tb.Apply(d); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := tb.Prune(func(model.Name) bool { return true }); err != nil {
			t.Fatal(err)
		}
	}
	applyAll(tables.New(m))
	before, held := memoryOf(m), contentOf(t, m.Table)
	// Each family of a Service: ClusterIP and port, ClusterIP, NodePort.
	if len(held.Names) != 400 || len(held.Frontends) != 1200 {
		t.Fatalf("%d Service ports, %d frontends", len(held.Names), len(held.Frontends))
	}
	m = reload(t, m, dir, maptest.Small)
	s, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	applyAll(tables.Restore(m, s))
	if !bytes.Equal(memoryOf(m), before) {
		t.Error("the memory differs after a restart without a change")
	}
	wantContent(t, m.Table, held)
}

// TestTrafficOfIDs: the next user of an id begins without traffic, and a backend that changes keeps
// its own.
func TestTrafficOfIDs(t *testing.T) {
	sizes := maptest.Small
	sizes.CountTraffic = true
	m := load(t, bpffs.New(t), sizes)
	keys := []bpf.SockBlTrafficKey{
		{Kind: uint32(bpf.SockBlTrafficKindBL_TRAFFIC_SERVICE), Id: 3}, {Kind: uint32(bpf.SockBlTrafficKindBL_TRAFFIC_BACKEND), Id: 3},
	}
	b := tables.Backend{AddrPort: netip.MustParseAddrPort("10.1.0.1:80"), Service: 3, State: tables.InCluster, Generation: 1}
	must(t, m.PutServiceName(3, tables.ServiceName{Family: model.IPv4}), m.PutBackend(3, b))
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		must(t, m.maps.BlTraffic.Put(&key, make([]bpf.SockBlTrafficEntry, cpus)))
	}
	has := func(key bpf.SockBlTrafficKey) bool {
		var perCPU []bpf.SockBlTrafficEntry
		err := m.maps.BlTraffic.Lookup(&key, &perCPU)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatal(err)
		}
		return err == nil
	}
	b.State |= tables.Terminating
	must(t, m.PutBackend(3, b))
	if !has(keys[0]) || !has(keys[1]) {
		t.Error("a backend that changes loses its traffic")
	}
	b.Generation++
	must(t, m.PutBackend(3, b))
	if !has(keys[0]) || has(keys[1]) {
		t.Error("the next backend of an id has traffic of the former")
	}
	must(t, m.ClearServiceName(3))
	if has(keys[0]) {
		t.Error("a Service that has gone has traffic")
	}
}
