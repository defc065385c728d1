package tables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

func named(name string) model.Name { return model.Name{Namespace: "ns", Name: name} }

func web(name string) ServicePortName {
	return ServicePortName{model.PortName{Service: named(name), Port: "web", Protocol: model.TCP}, model.IPv4}
}

// endpoints returns the addresses of n endpoints.
func endpoints(n int) []netip.AddrPort {
	list := make([]netip.AddrPort, n)
	for i := range list {
		list[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 8080)
	}
	return list
}

// sets returns those of these endpoints.
func sets(cluster, local []netip.AddrPort) policy.Sets {
	var s policy.Sets
	all := slices.SortedFunc(slices.Values(slices.Concat(cluster, local)), netip.AddrPort.Compare)
	for _, a := range slices.Compact(all) {
		s.Backends = append(s.Backends, policy.Backend{
			AddrPort: a, Ready: true, Serving: true, Weight: 1,
			InCluster: slices.Contains(cluster, a), InLocal: slices.Contains(local, a),
		})
	}
	if len(cluster) > 0 {
		s.Cluster = policy.Backends
	}
	if len(local) > 0 {
		s.Local = policy.Backends
	}
	return s
}

// onePort is a Service of one port with these endpoints in its cluster set, local
// ones in the other, and a frontend.
func onePort(name string, key FrontendKey, kind FrontendKind, cluster, local []netip.AddrPort) Desired {
	return Desired{Name: named(name), Ports: []ServicePort{{
		Name:      ServiceName{Port: web(name).Port, Family: model.IPv4, Type: "ClusterIP", Number: 80},
		Sets:      sets(cluster, local),
		Frontends: []DesiredFrontend{{Key: key, Kind: kind}},
	}}}
}

// vip is the ClusterIP frontend number n.
func vip(n int) FrontendKey {
	return FrontendKey{netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)}), 80, model.TCP}
}

func apply(t *testing.T, tables *Tables, desired Desired) []model.Name {
	t.Helper()
	affected, err := tables.Apply(desired)
	if err != nil {
		t.Fatal(err)
	}
	return affected
}

// grace does what the agent does between two syncs.
func grace(store *memory, tables *Tables) {
	retired := tables.Retire()
	store.Barrier()
	tables.Release(retired)
}

// backendAt returns id and entry of the only backend in use of that address.
func (m *memory) backendAt(addr netip.AddrPort) (uint32, Backend) {
	m.t.Helper()
	for id, b := range m.backends {
		if b.AddrPort == addr && b.State != 0 {
			return id, b
		}
	}
	m.t.Fatalf("no backend at %s", addr)
	return 0, Backend{}
}

// valid is what the programs ask of a remembered backend.
func (m *memory) valid(id, generation uint32, member BackendState) bool {
	b := m.backends[id]
	return b.Generation == generation && b.State&member != 0
}

// TestComeBack follows what a client remembers of a backend: id and generation.
func TestComeBack(t *testing.T) {
	all := endpoints(3)
	rest, gone := all[:2], all[2]
	tests := []struct {
		name string
		// after the backend left and before it comes back
		between func(*memory, **Tables)
	}{
		{"at once", func(*memory, **Tables) {}},
		{"after a grace period", func(m *memory, t **Tables) { grace(m, *t) }},
		{"after a restart", func(m *memory, t **Tables) { m.Barrier(); *t = Restore(m, m.snapshot()) }},
	}
	for _, tt := range tests {
		for _, member := range []BackendState{InCluster, InLocal} {
			t.Run(fmt.Sprintf("%s, set %b", tt.name, member), func(t *testing.T) {
				store := newMemory(t, roomy)
				tables := New(store)
				without := onePort("a", vip(1), FrontendClusterIP, rest, all)
				if member == InLocal {
					without = onePort("a", vip(1), FrontendClusterIP, all, rest)
				}
				apply(t, tables, onePort("a", vip(1), FrontendClusterIP, all, all))
				id, b := store.backendAt(gone)
				stayed, s := store.backendAt(rest[0])
				apply(t, tables, without)
				if store.valid(id, b.Generation, member) {
					t.Error("valid after it left the set")
				}
				if !store.valid(id, b.Generation, membership&^member) {
					t.Error("void in the set that it did not leave")
				}
				tt.between(store, &tables)
				apply(t, tables, onePort("a", vip(1), FrontendClusterIP, all, all))
				if store.valid(id, b.Generation, member) {
					t.Error("valid after it came back")
				}
				if again, b := store.backendAt(rest[0]); again != stayed || b.Generation != s.Generation {
					t.Errorf("the backend that stayed goes from %d/%d to %d/%d", stayed, s.Generation, again, b.Generation)
				}
			})
		}
	}
}

// TestComeBackFromNowhere is the backend that leaves all sets.
func TestComeBackFromNowhere(t *testing.T) {
	store := newMemory(t, roomy)
	tables := New(store)
	all := endpoints(2)
	apply(t, tables, onePort("a", vip(1), FrontendClusterIP, all, nil))
	id, b := store.backendAt(all[1])
	for range 3 {
		apply(t, tables, onePort("a", vip(1), FrontendClusterIP, all[:1], nil))
		if store.valid(id, b.Generation, membership) {
			t.Fatal("valid after it left")
		}
		grace(store, tables)
		apply(t, tables, onePort("a", vip(1), FrontendClusterIP, all, nil))
		if store.valid(id, b.Generation, membership) {
			t.Fatal("valid after it came back")
		}
	}
}

// TestStay changes everything but the endpoint.
func TestStay(t *testing.T) {
	store := newMemory(t, roomy)
	tables := New(store)
	all := endpoints(100)
	want := onePort("a", vip(1), FrontendClusterIP, all, all)
	apply(t, tables, want)
	id, before := store.backendAt(all[50])
	service := store.frontends[vip(1)].Service

	changed := onePort("a", vip(2), FrontendExternalIP, all[40:], all[50:])
	changed.Ports[0].AffinitySeconds = 5
	changed.Ports[0].Name.Type = "LoadBalancer"
	changed.Ports[0].Sets.Backends[10].Ready = false
	changed.Ports[0].Sets.Backends[10].Terminating = true
	apply(t, tables, changed)
	grace(store, tables)
	apply(t, tables, onePort("b", vip(3), FrontendClusterIP, all, all))
	apply(t, tables, want)
	for range 2 {
		for again, b := range store.backends {
			if b.AddrPort == all[50] && b.Service == service && (again != id || b.Generation != before.Generation) {
				t.Errorf("goes from %d/%d to %d/%d", id, before.Generation, again, b.Generation)
			}
		}
		if got := store.frontends[vip(1)].Service; got != service {
			t.Errorf("service id goes from %d to %d", service, got)
		}
		store.Barrier()
		tables = Restore(store, store.snapshot())
		apply(t, tables, want)
	}
}

// TestFailedWrites lets each write of a change fail in turn: what served goes on
// serving, and repeating the change completes it.
func TestFailedWrites(t *testing.T) {
	before := onePort("a", vip(1), FrontendClusterIP, endpoints(3), endpoints(2))
	after := onePort("a", vip(2), FrontendClusterIP, endpoints(5)[2:], endpoints(5)[3:])
	before.Ports[0].SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for n := 1; ; n++ {
		store := newMemory(t, roomy)
		failing := &failAt{memory: store}
		tables := New(failing)
		apply(t, tables, before)
		grace(store, tables)
		failing.count, failing.at = 0, n
		_, err := tables.Apply(after)
		if failing.count < n {
			if n < 5 {
				t.Fatalf("only %d writes", failing.count)
			}
			return
		}
		if !errors.Is(err, errWrite) {
			t.Fatalf("write %d fails, the error is %v", n, err)
		}
		if v := store.view()[web("a")]; v.cluster.kind != policy.Backends || v.local.kind != policy.Backends {
			t.Errorf("write %d fails, the sets are %s and %s", n, v.cluster, v.local)
		}
		apply(t, tables, after)
		v := store.view()[web("a")]
		if !slices.Equal(v.cluster.backends, endpoints(5)[2:]) || !slices.Equal(v.local.backends, endpoints(5)[3:]) {
			t.Errorf("write %d failed, the sets are %s and %s", n, v.cluster, v.local)
		}
		if len(store.frontends) != 1 || len(v.backends) != 3 || len(v.ranges) != 0 {
			t.Errorf("write %d failed, left are %v, %v, %v", n, store.frontends, v.backends, v.ranges)
		}
	}
}

// failAt lets the writes that change a Service fail at the n-th.
type failAt struct {
	*memory
	count, at int
}

func (f *failAt) fail() error {
	f.count++
	if f.count == f.at {
		return errWrite
	}
	return nil
}

func (f *failAt) PutBackend(id uint32, b Backend) error {
	return unless(f.fail(), func() error { return f.memory.PutBackend(id, b) })
}

func (f *failAt) PutSlots(first uint32, ids []uint32) error {
	return unless(f.fail(), func() error { return f.memory.PutSlots(first, ids) })
}

func (f *failAt) PutService(id uint32, s Service) error {
	return unless(f.fail(), func() error { return f.memory.PutService(id, s) })
}

func (f *failAt) PutFrontend(k FrontendKey, e Frontend) error {
	return unless(f.fail(), func() error { return f.memory.PutFrontend(k, e) })
}

func (f *failAt) DeleteFrontend(k FrontendKey) error {
	return unless(f.fail(), func() error { return f.memory.DeleteFrontend(k) })
}

func (f *failAt) DeleteSourceRange(r SourceRange) error {
	return unless(f.fail(), func() error { return f.memory.DeleteSourceRange(r) })
}

// unless returns err, or what write returns when it is nil.
func unless(err error, write func() error) error {
	if err != nil {
		return err
	}
	return write()
}

// wantFull fails the test unless err is about that table, with what to do.
func wantFull(t *testing.T, err error, table, setting string) {
	t.Helper()
	var full *FullError
	if !errors.As(err, &full) || !errors.Is(err, ErrFull) || full.Table != table {
		t.Fatalf("error %v, want one of a full %s", err, table)
	}
	for _, part := range []string{table, fmt.Sprintf("(%d entries)", full.Size), setting} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}

func TestFullServices(t *testing.T) {
	limits := roomy
	limits.Services.Size = 2
	store := newMemory(t, limits)
	tables := New(store)
	apply(t, tables, onePort("a", vip(1), FrontendClusterIP, endpoints(1), nil))
	apply(t, tables, onePort("b", vip(2), FrontendClusterIP, endpoints(1), nil))
	c := onePort("c", vip(3), FrontendClusterIP, endpoints(1), nil)
	_, err := tables.Apply(c)
	wantFull(t, err, "bl_service", "tables.maxServices")
	if len(store.frontends) != 2 || len(store.names) != 2 {
		t.Errorf("served are %v", store.names)
	}
	if _, err := tables.Remove(named("a")); err != nil {
		t.Fatal(err)
	}
	apply(t, tables, c) // waits for the readers of a's id by itself
	if v := store.view()[web("c")]; v.cluster.kind != policy.Backends {
		t.Errorf("set %s", v.cluster)
	}
}

func TestFullBackends(t *testing.T) {
	limits := roomy
	limits.Backends.Size = 10
	store := newMemory(t, limits)
	tables := New(store)
	apply(t, tables, onePort("a", vip(1), FrontendClusterIP, endpoints(4), nil))
	b := onePort("b", vip(2), FrontendClusterIP, endpoints(8), nil)
	_, err := tables.Apply(b)
	wantFull(t, err, "bl_backend", "tables.maxBackends")
	if !strings.Contains(err.Error(), "2 of 8 endpoints are not used") {
		t.Errorf("error %q does not tell how many", err)
	}
	if v := store.view()[web("b")]; !slices.Equal(v.cluster.backends, endpoints(6)) {
		t.Errorf("served are %s, want six endpoints", v.cluster)
	}
	apply(t, tables, onePort("a", vip(1), FrontendClusterIP, endpoints(1), nil))
	apply(t, tables, b)
	if v := store.view()[web("b")]; len(v.cluster.backends) != 8 {
		t.Errorf("served are %s, want eight endpoints", v.cluster)
	}
}

// TestFullBackendsRolling replaces all endpoints where there is room for half.
func TestFullBackendsRolling(t *testing.T) {
	limits := roomy
	limits.Backends.Size = 6
	store := newMemory(t, limits)
	tables := New(store)
	apply(t, tables, onePort("a", vip(1), FrontendClusterIP, endpoints(4), nil))
	apply(t, tables, onePort("a", vip(1), FrontendClusterIP, endpoints(8)[4:], nil))
	if v := store.view()[web("a")]; !slices.Equal(v.cluster.backends, endpoints(8)[4:]) {
		t.Errorf("served are %s", v.cluster)
	}
}

// TestFullSlotsRolling replaces an endpoint where there is no room for a second
// row.
func TestFullSlotsRolling(t *testing.T) {
	limits := roomy
	limits.Slots.Size = 16
	store := newMemory(t, limits)
	tables := New(store)
	apply(t, tables, onePort("a", vip(1), FrontendClusterIP, endpoints(9), nil))
	apply(t, tables, onePort("a", vip(1), FrontendClusterIP, endpoints(10)[1:], nil))
	if v := store.view()[web("a")]; !slices.Equal(v.cluster.backends, endpoints(10)[1:]) {
		t.Errorf("served are %s", v.cluster)
	}
}

func TestFullSlots(t *testing.T) {
	limits := roomy
	limits.Slots.Size = 16 + 8
	store := newMemory(t, limits)
	tables := New(store)
	apply(t, tables, onePort("a", vip(1), FrontendClusterIP, endpoints(9), nil))
	b := onePort("b", vip(2), FrontendClusterIP, endpoints(13), nil)
	_, err := tables.Apply(b)
	wantFull(t, err, "bl_slot", "tables.maxSlots")
	if !strings.Contains(err.Error(), "5 of 13 endpoints are not used") {
		t.Errorf("error %q does not tell how many", err)
	}
	if v := store.view()[web("b")]; !slices.Equal(v.cluster.backends, endpoints(8)) {
		t.Errorf("served are %s, want eight endpoints", v.cluster)
	}
	c := onePort("c", vip(3), FrontendClusterIP, endpoints(1), nil)
	_, err = tables.Apply(c)
	wantFull(t, err, "bl_slot", "tables.maxSlots")
	if v := store.view()[web("c")]; v.cluster.kind != policy.Reject {
		t.Errorf("served are %s", v.cluster)
	}
	if _, err := tables.Remove(named("a")); err != nil {
		t.Fatal(err)
	}
	apply(t, tables, c)
	if _, err := tables.Remove(named("c")); err != nil {
		t.Fatal(err)
	}
	apply(t, tables, b)
	if v := store.view()[web("b")]; len(v.cluster.backends) != 13 {
		t.Errorf("served are %s, want 13 endpoints", v.cluster)
	}
}

func TestFullFrontends(t *testing.T) {
	limits := roomy
	limits.Frontends.Size = 1
	store := newMemory(t, limits)
	tables := New(store)
	apply(t, tables, onePort("a", vip(1), FrontendClusterIP, endpoints(1), nil))
	b := onePort("b", vip(2), FrontendClusterIP, endpoints(1), nil)
	_, err := tables.Apply(b)
	wantFull(t, err, "bl_frontend", "tables.maxFrontends")
	if _, err := tables.Remove(named("a")); err != nil {
		t.Fatal(err)
	}
	apply(t, tables, b)
	if _, ok := store.frontends[vip(2)]; !ok {
		t.Error("not served after room was made")
	}
}

// TestBarrierFails keeps what is served when a full table cannot wait for the
// readers.
func TestBarrierFails(t *testing.T) {
	limits := roomy
	limits.Slots.Size = 8
	store := newMemory(t, limits)
	tables := New(store)
	apply(t, tables, onePort("a", vip(1), FrontendClusterIP, endpoints(4), nil))
	apply(t, tables, onePort("a", vip(1), FrontendClusterIP, endpoints(3), nil))
	store.barrierErr = errors.New("no barrier")
	next := onePort("a", vip(1), FrontendClusterIP, endpoints(5)[1:], nil)
	if _, err := tables.Apply(next); !errors.Is(err, store.barrierErr) {
		t.Fatalf("error %v", err)
	}
	if v := store.view()[web("a")]; !slices.Equal(v.cluster.backends, endpoints(3)) {
		t.Errorf("served are %s", v.cluster)
	}
	store.barrierErr = nil
	apply(t, tables, next)
	if v := store.view()[web("a")]; !slices.Equal(v.cluster.backends, endpoints(5)[1:]) || len(v.backends) != 4 {
		t.Errorf("served are %s of %v", v.cluster, v.backends)
	}
}

// ownerOf returns whose frontend a key is.
func (m *memory) ownerOf(key FrontendKey) string {
	f, ok := m.frontends[key]
	if !ok {
		return "nobody"
	}
	return m.names[f.Service].Port.Service.Name
}

func TestClash(t *testing.T) {
	store := newMemory(t, roomy)
	tables := New(store)
	key := vip(1)
	a := onePort("a", key, FrontendExternalIP, endpoints(1), nil)
	b := onePort("b", key, FrontendLoadBalancer, endpoints(1), nil)
	c := onePort("c", key, FrontendExternalIP, endpoints(1), nil)
	apply(t, tables, a)
	for _, d := range []Desired{b, c, b} {
		_, err := tables.Apply(d)
		var clash *ClashError
		if !errors.As(err, &clash) || clash.Owner != named("a") || clash.Key != key {
			t.Fatalf("error %v, want a clash with a", err)
		}
	}
	if got := store.ownerOf(key); got != "a" {
		t.Fatalf("%s has the address, want a", got)
	}

	// The owner changes its address; both that wait are told, once each.
	affected := apply(t, tables, onePort("a", vip(2), FrontendExternalIP, endpoints(1), nil))
	if want := []model.Name{named("b"), named("c")}; !slices.Equal(affected, want) {
		t.Fatalf("affected are %v, want %v", affected, want)
	}
	apply(t, tables, c)
	if _, err := tables.Apply(b); err == nil {
		t.Fatal("no clash with c")
	}
	if got := store.ownerOf(key); got != "c" {
		t.Fatalf("%s has the address, want c", got)
	}

	// A waiting Service that gives up is not told.
	apply(t, tables, onePort("b", vip(3), FrontendExternalIP, endpoints(1), nil))
	if affected, err := tables.Remove(named("c")); err != nil || len(affected) != 0 {
		t.Fatalf("affected are %v, %v", affected, err)
	}
	if got := store.ownerOf(key); got != "nobody" {
		t.Fatalf("%s has the address", got)
	}
}

// TestClashClusterIP is the address that the cluster gave: it goes before one
// that somebody wrote.
func TestClashClusterIP(t *testing.T) {
	store := newMemory(t, roomy)
	tables := New(store)
	key := vip(1)
	squatter := onePort("squatter", key, FrontendExternalIP, endpoints(1), nil)
	owner := onePort("owner", key, FrontendClusterIP, endpoints(1), nil)
	apply(t, tables, squatter)
	if affected := apply(t, tables, owner); !slices.Equal(affected, []model.Name{named("squatter")}) {
		t.Fatalf("affected are %v, want the squatter", affected)
	}
	if got := store.ownerOf(key); got != "owner" {
		t.Fatalf("%s has the address", got)
	}
	var clash *ClashError
	if _, err := tables.Apply(squatter); !errors.As(err, &clash) || clash.Owner != named("owner") {
		t.Fatalf("error %v, want a clash", err)
	}
	// A restart keeps the winner.
	store.Barrier()
	tables = Restore(store, store.snapshot())
	if _, err := tables.Apply(squatter); !errors.As(err, &clash) {
		t.Fatalf("error %v, want a clash", err)
	}
	apply(t, tables, owner)
	affected, err := tables.Remove(named("owner"))
	if err != nil || !slices.Equal(affected, []model.Name{named("squatter")}) {
		t.Fatalf("affected are %v, %v", affected, err)
	}
	apply(t, tables, squatter)
	if got := store.ownerOf(key); got != "squatter" {
		t.Fatalf("%s has the address", got)
	}
}

// TestSharedAddress: Services may have an external address in common, each with its
// own ports; the address is there as long as one of them is. That of a ClusterIP
// goes before it.
func TestSharedAddress(t *testing.T) {
	store := newMemory(t, roomy)
	tables := New(store)
	key := FrontendKey{Addr: vip(1).Addr}
	a := onePort("a", key, FrontendAddress, endpoints(1), nil)
	b := onePort("b", key, FrontendAddress, endpoints(1), nil)
	apply(t, tables, a)
	apply(t, tables, b)
	if got := store.ownerOf(key); got != "a" {
		t.Fatalf("%s has the address, want a", got)
	}
	affected, err := tables.Remove(named("a"))
	if err != nil || !slices.Equal(affected, []model.Name{named("b")}) {
		t.Fatalf("affected are %v, %v, want b", affected, err)
	}
	apply(t, tables, b)
	if got := store.ownerOf(key); got != "b" {
		t.Fatalf("%s has the address, want b", got)
	}
	owner := onePort("owner", key, FrontendAddress, endpoints(1), nil)
	owner.Ports[0].Frontends[0].Flags = RefuseOthers
	if affected := apply(t, tables, owner); !slices.Equal(affected, []model.Name{named("b")}) {
		t.Fatalf("affected are %v, want b", affected)
	}
	apply(t, tables, b)
	if got := store.frontends[key]; store.ownerOf(key) != "owner" || got.Flags != RefuseOthers {
		t.Fatalf("%s has the address: %+v", store.ownerOf(key), got)
	}
}

func TestLarge(t *testing.T) {
	limits := roomy
	store := newMemory(t, limits)
	tables := New(store)
	big := onePort("big", vip(1), FrontendClusterIP, endpoints(5000), endpoints(2500))
	apply(t, tables, big)
	if v := store.view()[web("big")]; len(v.cluster.backends) != 5000 || len(v.local.backends) != 2500 {
		t.Fatalf("sets of %d and %d", len(v.cluster.backends), len(v.local.backends))
	}
	before := store.writes
	apply(t, tables, onePort("big", vip(1), FrontendClusterIP, endpoints(5001), endpoints(2500)))
	if n := store.writes - before; n != 3 { // backend, slots, set
		t.Errorf("one more endpoint makes %d writes, want 3", n)
	}
	grace(store, tables)

	ports := &model.Service{Name: named("ports"), ClusterIPs: []netip.Addr{vip(2).Addr, netip.MustParseAddr("fd00::2")}}
	for i := range 300 {
		port := model.ServicePort{Name: fmt.Sprint("p", i), Protocol: model.TCP, Port: uint16(1000 + i), NodePort: uint16(30000 + i)}
		ports.Ports = append(ports.Ports, port)
	}
	apply(t, tables, Compile(ports, nil, &model.LocalNode{}))
	// Each port: two families, each a ClusterIP and a NodePort; and two addresses.
	if got := len(store.frontends) - 1; got != 300*4+2 {
		t.Errorf("%d frontends", got)
	}
	ports.Ports = ports.Ports[150:]
	apply(t, tables, Compile(ports, nil, &model.LocalNode{}))
	if got := len(store.frontends) - 1; got != 150*4+2 {
		t.Errorf("%d frontends after half of the ports went", got)
	}
	for _, name := range []string{"ports", "big"} {
		if _, err := tables.Remove(named(name)); err != nil {
			t.Fatal(err)
		}
	}
	grace(store, tables)
	for _, f := range tables.Usage() {
		if f.Used != 0 {
			t.Errorf("%d entries of %s are in use, want none", f.Used, f.Table)
		}
	}
}

// TestPruneOrphans starts over a store that was left in a state no agent should
// leave: everything without a name goes, and nothing of it falls to a new user
// of its id.
func TestPruneOrphans(t *testing.T) {
	store := newMemory(t, roomy)
	foreign := netip.MustParsePrefix("198.51.100.0/24")
	left := Backend{AddrPort: endpoints(1)[0], Service: 0, State: InCluster | Ready, Generation: 7}
	store.backends[0] = left
	store.slots[0] = 0
	store.services[0] = Service{Cluster: Set{policy.Backends, 0, 1}}
	store.ranges[SourceRange{0, foreign}] = true
	store.frontends[vip(9)] = Frontend{Service: 5, Kind: FrontendClusterIP}
	store.frontends[vip(1)] = Frontend{Service: 6, Kind: FrontendClusterIP}
	tables := Restore(store, store.snapshot())

	d := onePort("a", vip(1), FrontendLoadBalancer, nil, nil)
	mine := netip.MustParsePrefix("10.0.0.0/8")
	d.Ports[0].SourceRanges = []netip.Prefix{mine}
	if affected := apply(t, tables, d); len(affected) != 0 {
		t.Errorf("affected are %v", affected)
	}
	affected, err := tables.Prune(func(name model.Name) bool { return name == named("a") })
	if err != nil || len(affected) != 0 {
		t.Fatalf("prune: %v, %v", affected, err)
	}
	v := store.view()[web("a")]
	if v.cluster.kind != policy.Reject || len(v.backends) != 0 || !slices.Equal(v.ranges, []netip.Prefix{mine}) {
		t.Errorf("the new Service got what another left: %+v", v)
	}
	if len(store.frontends) != 1 || len(store.ranges) != 1 || store.backends[0].State != 0 {
		t.Errorf("left are %v, %v, %v", store.frontends, store.ranges, store.backends)
	}
}

func TestServiceCIDRs(t *testing.T) {
	store := newMemory(t, roomy)
	tables := New(store)
	v4, v6 := netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00::/112")
	if err := tables.SetServiceCIDRs([]netip.Prefix{v4, v6}); err != nil {
		t.Fatal(err)
	}
	if len(store.cidrs) != 2 || !store.cidrs[v4] || !store.cidrs[v6] {
		t.Errorf("ranges are %v", store.cidrs)
	}
	if err := tables.SetServiceCIDRs([]netip.Prefix{v6}); err != nil {
		t.Fatal(err)
	}
	if len(store.cidrs) != 1 || !store.cidrs[v6] {
		t.Errorf("ranges are %v", store.cidrs)
	}
}

func TestNodeAddrs(t *testing.T) {
	store := newMemory(t, roomy)
	tables := New(store)
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("127.0.0.1")
	steps := []map[netip.Addr]NodeAddr{
		{a: {}},
		{a: {}, b: {HostOnly: true}},
		{a: {HostOnly: true}},
		{},
	}
	for _, want := range steps {
		if err := tables.SetNodeAddrs(want); err != nil {
			t.Fatal(err)
		}
		before := store.writes
		if err := tables.SetNodeAddrs(want); err != nil || store.writes != before {
			t.Errorf("setting %v again makes %d writes, %v", want, store.writes-before, err)
		}
		if fmt.Sprint(store.nodeAddrs) != fmt.Sprint(want) {
			t.Errorf("addresses are %v, want %v", store.nodeAddrs, want)
		}
	}
}

// TestComeBackFails lets the write that makes a backend void fail: it does not
// come back without it.
func TestComeBackFails(t *testing.T) {
	store := newMemory(t, roomy)
	failing := &failAt{memory: store}
	tables := New(failing)
	all := endpoints(2)
	both := onePort("a", vip(1), FrontendClusterIP, all, all)
	apply(t, tables, both)
	id, b := store.backendAt(all[1])
	apply(t, tables, onePort("a", vip(1), FrontendClusterIP, all[:1], all))
	failing.count, failing.at = 0, 1
	if _, err := tables.Apply(both); !errors.Is(err, errWrite) {
		t.Fatalf("error %v", err)
	}
	if store.valid(id, b.Generation, InCluster) {
		t.Error("valid after the write failed")
	}
	apply(t, tables, both)
	if again, now := store.backendAt(all[1]); again != id || now.Generation == b.Generation || now.State&InCluster == 0 {
		t.Errorf("after all: id %d, %+v", again, now)
	}
}

// TestRestoreBroken starts over sets that share slots or lead to another
// Service's backends: the next Apply puts them right.
func TestRestoreBroken(t *testing.T) {
	want := []Desired{
		onePort("a", vip(1), FrontendClusterIP, endpoints(4), nil),
		onePort("b", vip(2), FrontendClusterIP, endpoints(4), endpoints(2)),
	}
	breaks := map[string]func(m *memory, a, b uint32){
		"shared run": func(m *memory, a, _ uint32) {
			s := m.services[a]
			s.Local = s.Cluster
			m.services[a] = s
		},
		"not aligned": func(m *memory, a, _ uint32) {
			s := m.services[a]
			s.Cluster.First, s.Cluster.Count = s.Cluster.First+1, 3
			m.services[a] = s
		},
		"foreign": func(m *memory, a, b uint32) {
			s := m.services[b]
			s.Cluster = m.services[a].Cluster
			m.services[b] = s
		},
		"overlapping": func(m *memory, a, _ uint32) {
			s := m.services[a]
			s.Local = Set{policy.Backends, s.Cluster.First + 1, 1}
			m.services[a] = s
		},
		"no such slots": func(m *memory, a, _ uint32) {
			s := m.services[a]
			s.Local = Set{policy.Backends, 1 << 12, 3}
			m.services[a] = s
		},
	}
	for name, damage := range breaks {
		t.Run(name, func(t *testing.T) {
			store := newMemory(t, roomy)
			tables := New(store)
			for _, d := range want {
				apply(t, tables, d)
			}
			damage(store, store.frontends[vip(1)].Service, store.frontends[vip(2)].Service)
			clear(store.owner)
			store.Barrier()
			tables = Restore(store, store.snapshot())
			for _, d := range want {
				apply(t, tables, d)
			}
			view := store.view()
			for i, name := range []string{"a", "b"} {
				v := view[web(name)]
				if !slices.Equal(v.cluster.backends, endpoints(4)) || len(v.local.backends) != 2*i {
					t.Errorf("%s has %s and %s", name, v.cluster, v.local)
				}
			}
		})
	}
}
