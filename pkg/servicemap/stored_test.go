package servicemap

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/maptest"
)

// fillServices applies Services with ten endpoints each.
func fillServices(t testing.TB, m *Store, services int) *tables.Tables {
	t.Helper()
	tbl := tables.New(m)
	node := &model.LocalNode{Name: "n"}
	for i := range services {
		name := model.Name{Namespace: "ns", Name: fmt.Sprintf("s%d", i)}
		slice := &model.Slice{
			Name: name, Service: name.Name, Family: model.IPv4, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}},
		}
		for j := range 10 {
			slice.Endpoints = append(slice.Endpoints, model.Endpoint{
				Addr: netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j)}), Ready: true, Serving: true, NodeName: []string{"n", "m"}[j%2],
			})
		}
		svc := &model.Service{
			Name: name, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})},
			Algorithm: model.Random, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
		}
		if _, err := tbl.Apply(tables.Compile(svc, []*model.Slice{slice}, node)); err != nil {
			t.Fatal(err)
		}
	}
	return tbl
}

func runCheck(t testing.TB, tbl *tables.Tables, m *Store) []tables.Difference {
	t.Helper()
	c := tbl.NewCheck(m)
	for c.Step() {
	}
	found, _, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestFrontendAt: a NodePort is found where NodePorts answer alone, and a frontend of the address comes
// before it.
func TestFrontendAt(t *testing.T) {
	m := load(t, t.TempDir(), maptest.Small)
	key := func(addr string, port uint16) tables.FrontendKey {
		return tables.FrontendKey{Addr: netip.MustParseAddr(addr), Port: port, Protocol: model.UDP}
	}
	must(t,
		m.PutFrontend(key("10.96.0.1", 53), tables.Frontend{Service: 1}),
		m.PutFrontend(key("0.0.0.0", 30053), tables.Frontend{Service: 2, Kind: tables.FrontendNodePort}),
		m.PutFrontend(key("192.0.2.2", 30053), tables.Frontend{Service: 3}),
		m.PutNodeAddr(netip.MustParseAddr("192.0.2.1"), tables.NodeAddr{}),
		m.PutNodeAddr(netip.MustParseAddr("192.0.2.2"), tables.NodeAddr{}))
	for _, tc := range []struct {
		key  tables.FrontendKey
		want uint32 // 0: none
	}{
		{key("10.96.0.1", 53), 1}, {key("10.96.0.1", 54), 0}, {key("192.0.2.1", 30053), 2}, {key("192.0.2.2", 30053), 3},
		{key("198.51.100.1", 30053), 0}, {key("2001:db8::1", 30053), 0},
	} {
		got, found, err := m.FrontendAt(tc.key)
		if err != nil || found != (tc.want != 0) || found && got.Service != tc.want {
			t.Errorf("%s leads to %+v, %t, %v, want Service %d", tc.key, got, found, err, tc.want)
		}
	}
}

// TestStored: the kernel's maps hold what was written, after a restart too, and an entry that
// somebody changes is found and written again.
func TestStored(t *testing.T) {
	m := load(t, t.TempDir(), maptest.Small)
	tbl := fillServices(t, m, 900)
	if found := runCheck(t, tbl, m); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	have, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if found := runCheck(t, tables.Restore(m, have), m); len(found) > 0 {
		t.Errorf("found after a restart: %v", found)
	}
	for _, tc := range []struct {
		name   string
		damage func() error
	}{
		{"backend", func() error { m.maps.Backend.At(3).Weight++; return nil }},
		{"service", func() error { m.maps.Service.At(3).Affinity++; return nil }},
		{"name", func() error { m.maps.ServiceName.At(3).Port++; return nil }},
		{"slot", func() error { *m.maps.Slot.At(3)++; return nil }},
		{"filter", func() error { clear(m.maps.Entries.Filter.Word[:100]); return nil }},
		{"frontend", func() error {
			k := frontendKey(tables.FrontendKey{Addr: netip.MustParseAddr("11.0.0.3"), Port: 80, Protocol: model.TCP})
			return bpfmap.Remove(m.maps.BlFrontend, &k)
		}},
		{"frontend of nobody", func() error {
			k := frontendKey(tables.FrontendKey{Addr: netip.MustParseAddr("11.9.9.9"), Port: 80, Protocol: model.TCP})
			return bpfmap.Put(m.maps.BlFrontend, &k, &bpf.SockBlFrontendEntry{})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.damage(); err != nil {
				t.Fatal(err)
			}
			if found := runCheck(t, tbl, m); len(found) == 0 {
				t.Error("nothing found")
			}
			if tc.name != "slot" { // which another sync mends
				if found := runCheck(t, tbl, m); len(found) > 0 {
					t.Errorf("found again: %v", found)
				}
			}
		})
	}
}

// derived returns what differs of what follows from other entries, by what the agent remembers and by
// what the maps hold.
func derived(t testing.TB, m *Store) (all []tables.Difference) {
	t.Helper()
	for _, check := range []func() iter.Seq2[[]tables.Difference, error]{m.Table.CheckDerived, m.CheckDerived} {
		for found, err := range check() {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, found...)
		}
	}
	return all
}

// TestCheckDerived: what follows from other entries is found when it differs, and written anew.
func TestCheckDerived(t *testing.T) {
	m := load(t, t.TempDir(), maptest.Small)
	fillServices(t, m, 100)
	if err := m.PutServiceCIDR(netip.MustParsePrefix("10.96.0.0/16")); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		kind   string
		damage func() error
	}{
		{"", func() error { return nil }},
		{"filter-missing", func() error { clear(m.maps.Entries.Filter.Word[:]); return nil }},
		{"filter-surplus", func() error { m.maps.Entries.Filter.Word[0] = ^uint64(0); return nil }},
		{"aggregate", func() error { m.maps.Entries.Aggregate.Mask4++; return nil }},
		{"hairpin", func() error {
			return bpfmap.Put(m.maps.BlDevice, uint32(bpf.SockBlDeviceLimitBL_DEVICE_HAIRPIN), &bpf.SockBlDeviceEntry{})
		}},
		{"endpoint-missing", func() error {
			key, _ := writtenEndpoint(m.maps.Backend.At(0))
			return bpfmap.Remove(m.maps.BlEndpoint, &key)
		}},
		{"endpoint-surplus", func() error {
			key := endpointKey(bpf.SockBlAddr{}, 1, 2)
			return bpfmap.Put(m.maps.BlEndpoint, &key, uint32(1))
		}},
		{"frontend-digest", func() error {
			k := frontendKey(tables.FrontendKey{Addr: netip.MustParseAddr("11.0.0.3"), Port: 80, Protocol: model.TCP})
			e := frontendEntry(&k, tables.Frontend{Service: 3, Kind: tables.FrontendClusterIP})
			e.Check++
			return bpfmap.Put(m.maps.BlFrontend, &k, &e)
		}},
	} {
		if err := tc.damage(); err != nil {
			t.Fatal(err)
		}
		found := derived(t, m)
		of := func(d tables.Difference) bool { return d.Kind == tc.kind }
		if tc.kind == "" && len(found) > 0 || tc.kind != "" && !slices.ContainsFunc(found, of) {
			t.Errorf("%s: found %v", tc.kind, found)
		}
		if err := m.Rederive(); err != nil {
			t.Fatal(err)
		}
		if found := derived(t, m); len(found) > 0 {
			t.Errorf("%s: found afterwards %v", tc.kind, found)
		}
	}
}

// BenchmarkCheck compares the tables of a large cluster.
func BenchmarkCheck(b *testing.B) {
	sizes := bpfmap.DefaultSizes
	sizes.Affinity, sizes.UDPPeers, sizes.Flows, sizes.Clients = 1000, 1000, 1000, 1000
	m := load(b, b.TempDir(), sizes)
	tbl := fillServices(b, m, 50_000)
	var before, after unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &before); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if found := runCheck(b, tbl, m); len(found) > 0 {
			b.Fatalf("found %v", found)
		}
	}
	if err := unix.Getrusage(unix.RUSAGE_SELF, &after); err != nil {
		b.Fatal(err)
	}
	used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(used)/float64(b.N)/1e6, "cpu-ms/op")
}
