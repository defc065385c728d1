package tables_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/pkg/tables/tablestest"
)

func named(name string) model.Name { return model.Name{Namespace: "ns", Name: name} }

func web(name string) tables.ServicePortName {
	return tables.ServicePortName{Port: model.PortName{Service: named(name), Port: "web", Protocol: model.TCP}, Family: model.IPv4}
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
func onePort(name string, key tables.FrontendKey, kind tables.FrontendKind, cluster, local []netip.AddrPort) tables.Desired {
	return tables.Desired{Name: named(name), Ports: []tables.ServicePort{{
		Name:      tables.ServiceName{Port: web(name).Port, Family: model.IPv4, Type: "ClusterIP", Number: 80},
		Sets:      sets(cluster, local),
		Frontends: []tables.DesiredFrontend{{Key: key, Kind: kind}},
	}}}
}

// vip is the ClusterIP frontend number n.
func vip(n int) tables.FrontendKey {
	return tables.FrontendKey{Addr: netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)}), Port: 80, Protocol: model.TCP}
}

func apply(t *testing.T, tbl *tables.Tables, desired tables.Desired) []model.Name {
	t.Helper()
	affected, err := tbl.Apply(desired)
	if err != nil {
		t.Fatal(err)
	}
	return affected
}

// grace does what the agent does between two syncs.
func grace(store *tablestest.Store, tbl *tables.Tables) {
	retired := tbl.Retire()
	store.Barrier()
	tbl.Release(retired)
}

// restored returns what a new agent makes of what the store holds.
func restored(store *tablestest.Store) *tables.Tables {
	have, _ := store.Snapshot() // never fails
	return tables.Restore(store, have)
}

// membership masks the bits that decide whether a remembered backend is valid.
const membership = tables.InCluster | tables.InLocal

// TestComeBack follows what a client remembers of a backend: id and generation.
func TestComeBack(t *testing.T) {
	all := endpoints(3)
	rest, gone := all[:2], all[2]
	tests := []struct {
		name string
		// after the backend left and before it comes back
		between func(*tablestest.Store, **tables.Tables)
	}{
		{"at once", func(*tablestest.Store, **tables.Tables) {}},
		{"after a grace period", func(m *tablestest.Store, t **tables.Tables) { grace(m, *t) }},
		{"after a restart", func(m *tablestest.Store, t **tables.Tables) { m.Barrier(); *t = restored(m) }},
	}
	for _, tt := range tests {
		for _, member := range []tables.BackendState{tables.InCluster, tables.InLocal} {
			t.Run(fmt.Sprintf("%s, set %b", tt.name, member), func(t *testing.T) {
				store := tablestest.New(t, tablestest.Roomy)
				tbl := tables.New(store)
				without := onePort("a", vip(1), tables.FrontendClusterIP, rest, all)
				if member == tables.InLocal {
					without = onePort("a", vip(1), tables.FrontendClusterIP, all, rest)
				}
				apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, all, all))
				id, b := store.BackendAt(gone)
				stayed, s := store.BackendAt(rest[0])
				apply(t, tbl, without)
				if store.Valid(id, b.Generation, member) {
					t.Error("valid after it left the set")
				}
				if !store.Valid(id, b.Generation, membership&^member) {
					t.Error("void in the set that it did not leave")
				}
				tt.between(store, &tbl)
				apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, all, all))
				if store.Valid(id, b.Generation, member) {
					t.Error("valid after it came back")
				}
				if again, b := store.BackendAt(rest[0]); again != stayed || b.Generation != s.Generation {
					t.Errorf("the backend that stayed goes from %d/%d to %d/%d", stayed, s.Generation, again, b.Generation)
				}
			})
		}
	}
}

// TestComeBackFromNowhere is the backend that leaves all sets.
func TestComeBackFromNowhere(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	tbl := tables.New(store)
	all := endpoints(2)
	apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, all, nil))
	id, b := store.BackendAt(all[1])
	for range 3 {
		apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, all[:1], nil))
		if store.Valid(id, b.Generation, membership) {
			t.Fatal("valid after it left")
		}
		grace(store, tbl)
		apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, all, nil))
		if store.Valid(id, b.Generation, membership) {
			t.Fatal("valid after it came back")
		}
	}
}

// TestStay changes everything but the endpoint.
func TestStay(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	tbl := tables.New(store)
	all := endpoints(100)
	want := onePort("a", vip(1), tables.FrontendClusterIP, all, all)
	apply(t, tbl, want)
	id, before := store.BackendAt(all[50])
	service := store.Frontends[vip(1)].Service

	changed := onePort("a", vip(2), tables.FrontendExternalIP, all[40:], all[50:])
	changed.Ports[0].AffinitySeconds = 5
	changed.Ports[0].Name.Type = "LoadBalancer"
	changed.Ports[0].Sets.Backends[10].Ready = false
	changed.Ports[0].Sets.Backends[10].Terminating = true
	apply(t, tbl, changed)
	grace(store, tbl)
	apply(t, tbl, onePort("b", vip(3), tables.FrontendClusterIP, all, all))
	apply(t, tbl, want)
	for range 2 {
		for again, b := range store.Backends {
			if b.AddrPort == all[50] && b.Service == service && (again != id || b.Generation != before.Generation) {
				t.Errorf("goes from %d/%d to %d/%d", id, before.Generation, again, b.Generation)
			}
		}
		if got := store.Frontends[vip(1)].Service; got != service {
			t.Errorf("service id goes from %d to %d", service, got)
		}
		store.Barrier()
		tbl = restored(store)
		apply(t, tbl, want)
	}
}

// TestFailedWrites lets each write of a change fail in turn: what served goes on
// serving, and repeating the change completes it.
func TestFailedWrites(t *testing.T) {
	before := onePort("a", vip(1), tables.FrontendClusterIP, endpoints(3), endpoints(2))
	after := onePort("a", vip(2), tables.FrontendClusterIP, endpoints(5)[2:], endpoints(5)[3:])
	before.Ports[0].SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for n := 1; ; n++ {
		store := tablestest.New(t, tablestest.Roomy)
		failing := &failAt{Store: store}
		tbl := tables.New(failing)
		apply(t, tbl, before)
		grace(store, tbl)
		failing.count, failing.at = 0, n
		_, err := tbl.Apply(after)
		if failing.count < n {
			if n < 5 {
				t.Fatalf("only %d writes", failing.count)
			}
			return
		}
		if !errors.Is(err, tablestest.ErrWrite) {
			t.Fatalf("write %d fails, the error is %v", n, err)
		}
		if v := store.View()[web("a")]; v.Cluster.Kind != policy.Backends || v.Local.Kind != policy.Backends {
			t.Errorf("write %d fails, the sets are %s and %s", n, v.Cluster, v.Local)
		}
		apply(t, tbl, after)
		v := store.View()[web("a")]
		if !slices.Equal(v.Cluster.Backends, endpoints(5)[2:]) || !slices.Equal(v.Local.Backends, endpoints(5)[3:]) {
			t.Errorf("write %d failed, the sets are %s and %s", n, v.Cluster, v.Local)
		}
		if len(store.Frontends) != 1 || len(v.Backends) != 3 || len(v.Ranges) != 0 {
			t.Errorf("write %d failed, left are %v, %v, %v", n, store.Frontends, v.Backends, v.Ranges)
		}
	}
}

// failAt lets the writes that change a Service fail at the n-th.
type failAt struct {
	*tablestest.Store
	count, at int
}

func (f *failAt) fail() error {
	f.count++
	if f.count == f.at {
		return tablestest.ErrWrite
	}
	return nil
}

func (f *failAt) PutBackend(id uint32, b tables.Backend) error {
	return unless(f.fail(), func() error { return f.Store.PutBackend(id, b) })
}

func (f *failAt) PutSlots(first uint32, ids []uint32) error {
	return unless(f.fail(), func() error { return f.Store.PutSlots(first, ids) })
}

func (f *failAt) PutService(id uint32, s tables.Service) error {
	return unless(f.fail(), func() error { return f.Store.PutService(id, s) })
}

func (f *failAt) PutFrontend(k tables.FrontendKey, e tables.Frontend) error {
	return unless(f.fail(), func() error { return f.Store.PutFrontend(k, e) })
}

func (f *failAt) DeleteFrontend(k tables.FrontendKey) error {
	return unless(f.fail(), func() error { return f.Store.DeleteFrontend(k) })
}

func (f *failAt) DeleteSourceRange(r tables.SourceRange) error {
	return unless(f.fail(), func() error { return f.Store.DeleteSourceRange(r) })
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
	var full *tables.FullError
	if !errors.As(err, &full) || !errors.Is(err, tables.ErrFull) || full.Table != table {
		t.Fatalf("error %v, want one of a full %s", err, table)
	}
	for _, part := range []string{table, fmt.Sprintf("(%d entries)", full.Size), setting} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}

func TestFullServices(t *testing.T) {
	limits := tablestest.Roomy
	limits.Services.Size = 2
	store := tablestest.New(t, limits)
	tbl := tables.New(store)
	apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, endpoints(1), nil))
	apply(t, tbl, onePort("b", vip(2), tables.FrontendClusterIP, endpoints(1), nil))
	c := onePort("c", vip(3), tables.FrontendClusterIP, endpoints(1), nil)
	_, err := tbl.Apply(c)
	wantFull(t, err, "bl_service", "tables.maxServices")
	if len(store.Frontends) != 2 || len(store.Names) != 2 {
		t.Errorf("served are %v", store.Names)
	}
	if _, err := tbl.Remove(named("a")); err != nil {
		t.Fatal(err)
	}
	apply(t, tbl, c) // waits for the readers of a's id by itself
	if v := store.View()[web("c")]; v.Cluster.Kind != policy.Backends {
		t.Errorf("set %s", v.Cluster)
	}
}

func TestFullBackends(t *testing.T) {
	limits := tablestest.Roomy
	limits.Backends.Size = 10
	store := tablestest.New(t, limits)
	tbl := tables.New(store)
	apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, endpoints(4), nil))
	b := onePort("b", vip(2), tables.FrontendClusterIP, endpoints(8), nil)
	_, err := tbl.Apply(b)
	wantFull(t, err, "bl_backend", "tables.maxBackends")
	if !strings.Contains(err.Error(), "2 of 8 endpoints are not used") {
		t.Errorf("error %q does not tell how many", err)
	}
	if v := store.View()[web("b")]; !slices.Equal(v.Cluster.Backends, endpoints(6)) {
		t.Errorf("served are %s, want six endpoints", v.Cluster)
	}
	apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, endpoints(1), nil))
	apply(t, tbl, b)
	if v := store.View()[web("b")]; len(v.Cluster.Backends) != 8 {
		t.Errorf("served are %s, want eight endpoints", v.Cluster)
	}
}

// TestFullBackendsRolling replaces all endpoints where there is room for half.
func TestFullBackendsRolling(t *testing.T) {
	limits := tablestest.Roomy
	limits.Backends.Size = 6
	store := tablestest.New(t, limits)
	tbl := tables.New(store)
	apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, endpoints(4), nil))
	apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, endpoints(8)[4:], nil))
	if v := store.View()[web("a")]; !slices.Equal(v.Cluster.Backends, endpoints(8)[4:]) {
		t.Errorf("served are %s", v.Cluster)
	}
}

// TestFullSlotsRolling replaces an endpoint where there is no room for a second
// row.
func TestFullSlotsRolling(t *testing.T) {
	limits := tablestest.Roomy
	limits.Slots.Size = 16
	store := tablestest.New(t, limits)
	tbl := tables.New(store)
	apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, endpoints(9), nil))
	apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, endpoints(10)[1:], nil))
	if v := store.View()[web("a")]; !slices.Equal(v.Cluster.Backends, endpoints(10)[1:]) {
		t.Errorf("served are %s", v.Cluster)
	}
}

func TestFullSlots(t *testing.T) {
	limits := tablestest.Roomy
	limits.Slots.Size = 16 + 8
	store := tablestest.New(t, limits)
	tbl := tables.New(store)
	apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, endpoints(9), nil))
	b := onePort("b", vip(2), tables.FrontendClusterIP, endpoints(13), nil)
	_, err := tbl.Apply(b)
	wantFull(t, err, "bl_slot", "tables.maxSlots")
	if !strings.Contains(err.Error(), "5 of 13 endpoints are not used") {
		t.Errorf("error %q does not tell how many", err)
	}
	if v := store.View()[web("b")]; !slices.Equal(v.Cluster.Backends, endpoints(8)) {
		t.Errorf("served are %s, want eight endpoints", v.Cluster)
	}
	c := onePort("c", vip(3), tables.FrontendClusterIP, endpoints(1), nil)
	_, err = tbl.Apply(c)
	wantFull(t, err, "bl_slot", "tables.maxSlots")
	if v := store.View()[web("c")]; v.Cluster.Kind != policy.Reject {
		t.Errorf("served are %s", v.Cluster)
	}
	if _, err := tbl.Remove(named("a")); err != nil {
		t.Fatal(err)
	}
	apply(t, tbl, c)
	if _, err := tbl.Remove(named("c")); err != nil {
		t.Fatal(err)
	}
	apply(t, tbl, b)
	if v := store.View()[web("b")]; len(v.Cluster.Backends) != 13 {
		t.Errorf("served are %s, want 13 endpoints", v.Cluster)
	}
}

func TestFullFrontends(t *testing.T) {
	limits := tablestest.Roomy
	limits.Frontends.Size = 1
	store := tablestest.New(t, limits)
	tbl := tables.New(store)
	apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, endpoints(1), nil))
	b := onePort("b", vip(2), tables.FrontendClusterIP, endpoints(1), nil)
	_, err := tbl.Apply(b)
	wantFull(t, err, "bl_frontend", "tables.maxFrontends")
	if _, err := tbl.Remove(named("a")); err != nil {
		t.Fatal(err)
	}
	apply(t, tbl, b)
	if _, ok := store.Frontends[vip(2)]; !ok {
		t.Error("not served after room was made")
	}
}

// TestBarrierFails keeps what is served when a full table cannot wait for the
// readers.
func TestBarrierFails(t *testing.T) {
	limits := tablestest.Roomy
	limits.Slots.Size = 8
	store := tablestest.New(t, limits)
	tbl := tables.New(store)
	apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, endpoints(4), nil))
	apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, endpoints(3), nil))
	store.BarrierErr = errors.New("no barrier")
	next := onePort("a", vip(1), tables.FrontendClusterIP, endpoints(5)[1:], nil)
	if _, err := tbl.Apply(next); !errors.Is(err, store.BarrierErr) {
		t.Fatalf("error %v", err)
	}
	if v := store.View()[web("a")]; !slices.Equal(v.Cluster.Backends, endpoints(3)) {
		t.Errorf("served are %s", v.Cluster)
	}
	store.BarrierErr = nil
	apply(t, tbl, next)
	if v := store.View()[web("a")]; !slices.Equal(v.Cluster.Backends, endpoints(5)[1:]) || len(v.Backends) != 4 {
		t.Errorf("served are %s of %v", v.Cluster, v.Backends)
	}
}

// TestClash: of Services that want one address as the same kind, the one that has it keeps it; then the
// oldest of those that wait is told, and the next when that one wants it no more.
func TestClash(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	tbl := tables.New(store)
	key := vip(1)
	a := onePort("a", key, tables.FrontendExternalIP, endpoints(1), nil)
	b := onePort("b", key, tables.FrontendExternalIP, endpoints(1), nil)
	c := onePort("c", key, tables.FrontendExternalIP, endpoints(1), nil)
	b.Created, c.Created = time.Unix(2, 0), time.Unix(1, 0)
	apply(t, tbl, a)
	for _, d := range []tables.Desired{b, c, b} {
		_, err := tbl.Apply(d)
		var clash *tables.ClashError
		if !errors.As(err, &clash) || clash.Owner != named("a") || clash.Key != key {
			t.Fatalf("error %v, want a clash with a", err)
		}
	}
	if got := store.OwnerOf(key); got != "a" {
		t.Fatalf("%s has the address, want a", got)
	}

	// The owner changes its address.
	affected := apply(t, tbl, onePort("a", vip(2), tables.FrontendExternalIP, endpoints(1), nil))
	if want := []model.Name{named("c")}; !slices.Equal(affected, want) {
		t.Fatalf("affected are %v, want %v", affected, want)
	}
	// It does not want it any more, and then it does.
	affected = apply(t, tbl, onePort("c", vip(3), tables.FrontendExternalIP, endpoints(1), nil))
	if want := []model.Name{named("b")}; !slices.Equal(affected, want) {
		t.Fatalf("affected are %v, want %v", affected, want)
	}
	apply(t, tbl, c)
	if _, err := tbl.Apply(b); err == nil {
		t.Fatal("no clash with c")
	}
	if got := store.OwnerOf(key); got != "c" {
		t.Fatalf("%s has the address, want c", got)
	}

	// A waiting Service that gives up is not told.
	apply(t, tbl, onePort("b", vip(3), tables.FrontendExternalIP, endpoints(1), nil))
	if affected, err := tbl.Remove(named("c")); err != nil || len(affected) != 0 {
		t.Fatalf("affected are %v, %v", affected, err)
	}
	if got := store.OwnerOf(key); got != "nobody" {
		t.Fatalf("%s has the address", got)
	}
}

// TestClashNext: an address that is free, or that the owner wants less than before, is not taken by one that is
// applied before the Service that is to have it, nor if that does not want it any more by one that waits behind others.
func TestClashNext(t *testing.T) {
	key := vip(1)
	of := func(name string, created int64, kind tables.FrontendKind) tables.Desired {
		d := onePort(name, key, kind, endpoints(1), nil)
		d.Created = time.Unix(created, 0)
		return d
	}
	const external, balancer = tables.FrontendExternalIP, tables.FrontendLoadBalancer
	for _, c := range []struct {
		when  string
		gives tables.Desired // what becomes of the owner
	}{
		{"free", onePort("owner", vip(2), balancer, endpoints(1), nil)},
		{"lowered", of("owner", 1, external)},
	} {
		store := tablestest.New(t, tablestest.Roomy)
		tbl := tables.New(store)
		apply(t, tbl, of("owner", 1, balancer))
		clashes := func(d tables.Desired, with string) {
			t.Helper()
			affected, err := tbl.Apply(d)
			var clash *tables.ClashError
			if !errors.As(err, &clash) || clash.Owner != named(with) || len(affected) > 0 {
				t.Errorf("%s: error %v and affected %v, want a clash with %s", c.when, err, affected, with)
			}
		}
		next := func(d tables.Desired, want ...model.Name) {
			t.Helper()
			if affected := apply(t, tbl, d); !slices.Equal(affected, want) {
				t.Errorf("%s: affected are %v, want %v", c.when, affected, want)
			}
		}
		clashes(of("waits", 2, balancer), "owner")
		clashes(of("young", 3, balancer), "owner")
		next(c.gives, named("waits"))
		clashes(of("young", 3, balancer), "waits")
		clashes(of("younger", 4, balancer), "waits")
		next(onePort("waits", vip(3), balancer, endpoints(1), nil), named("young"))
		clashes(of("younger", 4, balancer), "young")
		apply(t, tbl, of("oldest", 0, balancer)) // the owner waits again, where it still wants it
		if got := store.OwnerOf(key); got != "oldest" {
			t.Errorf("%s: %s has the address, want the oldest", c.when, got)
		}
	}
}

// TestClashKinds: a ClusterIP goes before a load-balancer IP, and that before an external IP, whichever
// comes first, and when the kind of the one that has the address changes.
func TestClashKinds(t *testing.T) {
	kinds := []tables.FrontendKind{tables.FrontendExternalIP, tables.FrontendLoadBalancer, tables.FrontendClusterIP}
	for _, addr := range []string{"192.0.2.1", "2001:db8::1"} {
		for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
			key := tables.FrontendKey{Addr: netip.MustParseAddr(addr), Port: 80, Protocol: protocol}
			of := func(name string, kind tables.FrontendKind) tables.Desired {
				return onePort(name, key, kind, endpoints(1), nil)
			}
			for i, kind := range kinds[1:] {
				store := tablestest.New(t, tablestest.Roomy)
				tbl := tables.New(store)
				wantOwner := func(want string) {
					t.Helper()
					if got := store.OwnerOf(key); got != want {
						t.Errorf("%s as %s and %s: %s has it, want %s", key, kinds[i], kind, got, want)
					}
				}
				apply(t, tbl, of("lower", kinds[i]))
				if affected := apply(t, tbl, of("higher", kind)); !slices.Equal(affected, []model.Name{named("lower")}) {
					t.Errorf("affected are %v, want the lower", affected)
				}
				wantOwner("higher")
				if _, err := tbl.Apply(of("lower", kinds[i])); err == nil {
					t.Error("no clash for the lower")
				}
				// Of one kind, and then the owner's is lower.
				if _, err := tbl.Apply(of("third", kind)); err == nil {
					t.Error("no clash with the same kind")
				}
				if affected := apply(t, tbl, of("higher", kinds[i])); !slices.Equal(affected, []model.Name{named("third")}) {
					t.Errorf("affected are %v, want the third", affected)
				}
				apply(t, tbl, of("third", kind))
				wantOwner("third")
			}
		}
	}
}

// TestClashClusterIP is the address that the cluster gave: it goes before one
// that somebody wrote.
func TestClashClusterIP(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	tbl := tables.New(store)
	key := vip(1)
	squatter := onePort("squatter", key, tables.FrontendExternalIP, endpoints(1), nil)
	owner := onePort("owner", key, tables.FrontendClusterIP, endpoints(1), nil)
	apply(t, tbl, squatter)
	if affected := apply(t, tbl, owner); !slices.Equal(affected, []model.Name{named("squatter")}) {
		t.Fatalf("affected are %v, want the squatter", affected)
	}
	if got := store.OwnerOf(key); got != "owner" {
		t.Fatalf("%s has the address", got)
	}
	var clash *tables.ClashError
	if _, err := tbl.Apply(squatter); !errors.As(err, &clash) || clash.Owner != named("owner") {
		t.Fatalf("error %v, want a clash", err)
	}
	// A restart keeps the winner.
	store.Barrier()
	tbl = restored(store)
	if _, err := tbl.Apply(squatter); !errors.As(err, &clash) {
		t.Fatalf("error %v, want a clash", err)
	}
	apply(t, tbl, owner)
	affected, err := tbl.Remove(named("owner"))
	if err != nil || !slices.Equal(affected, []model.Name{named("squatter")}) {
		t.Fatalf("affected are %v, %v", affected, err)
	}
	apply(t, tbl, squatter)
	if got := store.OwnerOf(key); got != "squatter" {
		t.Fatalf("%s has the address", got)
	}
}

// TestSharedAddress: Services may have an external address in common, each with its
// own ports; the address is there as long as one of them is. That of a ClusterIP
// goes before it.
func TestSharedAddress(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	tbl := tables.New(store)
	key := tables.FrontendKey{Addr: vip(1).Addr}
	a := onePort("a", key, tables.FrontendAddress, endpoints(1), nil)
	b := onePort("b", key, tables.FrontendAddress, endpoints(1), nil)
	apply(t, tbl, a)
	apply(t, tbl, b)
	if got := store.OwnerOf(key); got != "a" {
		t.Fatalf("%s has the address, want a", got)
	}
	affected, err := tbl.Remove(named("a"))
	if err != nil || !slices.Equal(affected, []model.Name{named("b")}) {
		t.Fatalf("affected are %v, %v, want b", affected, err)
	}
	apply(t, tbl, b)
	if got := store.OwnerOf(key); got != "b" {
		t.Fatalf("%s has the address, want b", got)
	}
	owner := onePort("owner", key, tables.FrontendAddress, endpoints(1), nil)
	owner.Ports[0].Frontends[0].Flags = tables.RefuseOthers
	if affected := apply(t, tbl, owner); !slices.Equal(affected, []model.Name{named("b")}) {
		t.Fatalf("affected are %v, want b", affected)
	}
	apply(t, tbl, b)
	if got := store.Frontends[key]; store.OwnerOf(key) != "owner" || got.Flags != tables.RefuseOthers {
		t.Fatalf("%s has the address: %+v", store.OwnerOf(key), got)
	}
}

func TestLarge(t *testing.T) {
	limits := tablestest.Roomy
	store := tablestest.New(t, limits)
	tbl := tables.New(store)
	big := onePort("big", vip(1), tables.FrontendClusterIP, endpoints(5000), endpoints(2500))
	apply(t, tbl, big)
	if v := store.View()[web("big")]; len(v.Cluster.Backends) != 5000 || len(v.Local.Backends) != 2500 {
		t.Fatalf("sets of %d and %d", len(v.Cluster.Backends), len(v.Local.Backends))
	}
	before := store.Writes
	apply(t, tbl, onePort("big", vip(1), tables.FrontendClusterIP, endpoints(5001), endpoints(2500)))
	if n := store.Writes - before; n != 3 { // backend, slots, set
		t.Errorf("one more endpoint makes %d writes, want 3", n)
	}
	grace(store, tbl)

	ports := &model.Service{Name: named("ports"), ClusterIPs: []netip.Addr{vip(2).Addr, netip.MustParseAddr("fd00::2")}}
	for i := range 300 {
		port := model.ServicePort{Name: fmt.Sprint("p", i), Protocol: model.TCP, Port: uint16(1000 + i), NodePort: uint16(30000 + i)}
		ports.Ports = append(ports.Ports, port)
	}
	apply(t, tbl, tables.Compile(ports, nil, &model.LocalNode{}))
	// Each port: two families, each a ClusterIP and a NodePort; and two addresses.
	if got := len(store.Frontends) - 1; got != 300*4+2 {
		t.Errorf("%d frontends", got)
	}
	ports.Ports = ports.Ports[150:]
	apply(t, tbl, tables.Compile(ports, nil, &model.LocalNode{}))
	if got := len(store.Frontends) - 1; got != 150*4+2 {
		t.Errorf("%d frontends after half of the ports went", got)
	}
	for _, name := range []string{"ports", "big"} {
		if _, err := tbl.Remove(named(name)); err != nil {
			t.Fatal(err)
		}
	}
	grace(store, tbl)
	for _, f := range tbl.Usage() {
		if f.Used != 0 {
			t.Errorf("%d entries of %s are in use, want none", f.Used, f.Table)
		}
	}
}

// TestPruneOrphans starts over a store that was left in a state no agent should
// leave: everything without a name goes, and nothing of it falls to a new user
// of its id.
func TestPruneOrphans(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	foreign := netip.MustParsePrefix("198.51.100.0/24")
	left := tables.Backend{AddrPort: endpoints(1)[0], Service: 0, State: tables.InCluster | tables.Ready, Generation: 7}
	store.Backends[0] = left
	store.Slots[0] = 0
	store.Services[0] = tables.Service{Cluster: tables.Set{Kind: policy.Backends, First: 0, Count: 1}}
	store.Ranges[tables.SourceRange{Service: 0, Prefix: foreign}] = true
	store.Frontends[vip(9)] = tables.Frontend{Service: 5, Kind: tables.FrontendClusterIP}
	store.Frontends[vip(1)] = tables.Frontend{Service: 6, Kind: tables.FrontendClusterIP}
	tbl := restored(store)

	d := onePort("a", vip(1), tables.FrontendLoadBalancer, nil, nil)
	mine := netip.MustParsePrefix("10.0.0.0/8")
	d.Ports[0].SourceRanges = []netip.Prefix{mine}
	if affected := apply(t, tbl, d); len(affected) != 0 {
		t.Errorf("affected are %v", affected)
	}
	affected, err := tbl.Prune(func(name model.Name) bool { return name == named("a") })
	if err != nil || len(affected) != 0 {
		t.Fatalf("prune: %v, %v", affected, err)
	}
	v := store.View()[web("a")]
	if v.Cluster.Kind != policy.Reject || len(v.Backends) != 0 || !slices.Equal(v.Ranges, []netip.Prefix{mine}) {
		t.Errorf("the new Service got what another left: %+v", v)
	}
	if len(store.Frontends) != 1 || len(store.Ranges) != 1 || store.Backends[0].State != 0 {
		t.Errorf("left are %v, %v, %v", store.Frontends, store.Ranges, store.Backends)
	}
}

// TestServiceCIDRs: an address of another proxy passes while a range that has it drops others.
func TestServiceCIDRs(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	tbl := tables.New(store)
	v4, v6 := netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00::/112")
	a, b := netip.MustParseAddr("10.96.0.7"), netip.MustParseAddr("fd00::7")
	for _, want := range []struct {
		ranges  []netip.Prefix
		foreign []netip.Addr
	}{
		{[]netip.Prefix{v4, v6}, []netip.Addr{a, b}},
		{[]netip.Prefix{v6}, []netip.Addr{b}},
		{[]netip.Prefix{v6, v4}, []netip.Addr{a}},
		{},
	} {
		if err := tbl.SetServiceCIDRs(want.ranges, want.foreign); err != nil {
			t.Fatal(err)
		}
		writes := store.Writes
		if err := tbl.SetServiceCIDRs(want.ranges, want.foreign); err != nil || store.Writes != writes {
			t.Errorf("once more: %d writes, %v", store.Writes-writes, err)
		}
		snapshot, err := store.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		for _, tbl := range []*tables.Tables{tbl, tables.Restore(store, snapshot)} {
			if err := tbl.SetServiceCIDRs(want.ranges, want.foreign); err != nil || store.Writes != writes {
				t.Errorf("by another agent: %d writes, %v", store.Writes-writes, err)
			}
		}
		for _, p := range want.ranges {
			if !store.CIDRs[p] {
				t.Errorf("%v is no range", p)
			}
		}
		for _, addr := range want.foreign {
			if !store.Foreign[addr] {
				t.Errorf("%v is dropped", addr)
			}
		}
		if len(store.CIDRs) != len(want.ranges) || len(store.Foreign) != len(want.foreign) {
			t.Errorf("ranges are %v, of other proxies %v", store.CIDRs, store.Foreign)
		}
	}
}

func TestNodeAddrs(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	tbl := tables.New(store)
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("127.0.0.1")
	steps := []map[netip.Addr]tables.NodeAddr{
		{a: {}},
		{a: {}, b: {HostOnly: true}},
		{a: {HostOnly: true}},
		{},
	}
	for _, want := range steps {
		if err := tbl.SetNodeAddrs(want, nil); err != nil {
			t.Fatal(err)
		}
		before := store.Writes
		if err := tbl.SetNodeAddrs(want, nil); err != nil || store.Writes != before {
			t.Errorf("setting %v again makes %d writes, %v", want, store.Writes-before, err)
		}
		if fmt.Sprint(store.NodeAddrs) != fmt.Sprint(want) {
			t.Errorf("addresses are %v, want %v", store.NodeAddrs, want)
		}
	}
}

// fewNodeAddrs has room for so many addresses of the node.
type fewNodeAddrs struct {
	*tablestest.Store
	room uint32
}

func (f *fewNodeAddrs) PutNodeAddr(addr netip.Addr, a tables.NodeAddr) error {
	if _, known := f.NodeAddrs[addr]; !known && len(f.NodeAddrs) == int(f.room) {
		return tables.Limit{Table: "bl_node_addr", Size: f.room}.Full()
	}
	return f.Store.PutNodeAddr(addr, a)
}

// TestTooManyNodeAddrs: of more addresses than there is room for, the node's own IPs and loopback are in the table.
// Those that are gone make room for others at once.
func TestTooManyNodeAddrs(t *testing.T) {
	store := &fewNodeAddrs{tablestest.New(t, tablestest.Roomy), 8}
	tbl := tables.New(store)
	own, loopback := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("::1")
	addrs := func(from int) map[netip.Addr]tables.NodeAddr {
		all := map[netip.Addr]tables.NodeAddr{own: {}, loopback: {HostOnly: true}}
		for i := from; len(all) < 12; i++ {
			all[netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})] = tables.NodeAddr{}
		}
		return all
	}
	err := tbl.SetNodeAddrs(addrs(1), []netip.Addr{own})
	if !errors.Is(err, tables.ErrFull) {
		t.Errorf("the error is %v", err)
	}
	for _, addr := range []netip.Addr{own, loopback, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.6")} {
		if _, there := store.NodeAddrs[addr]; !there {
			t.Errorf("NodePorts do not answer at %v, but at %v", addr, slices.Collect(maps.Keys(store.NodeAddrs)))
		}
	}
	others := addrs(101)
	for addr := range others {
		if addr.Is4() && addr.As4()[3] > 106 {
			delete(others, addr)
		}
	}
	if err := tbl.SetNodeAddrs(others, []netip.Addr{own}); err != nil || !maps.Equal(store.NodeAddrs, others) {
		t.Errorf("with others, addresses are %v, %v", store.NodeAddrs, err)
	}
}

// TestComeBackFails lets the write that makes a backend void fail: it does not
// come back without it.
func TestComeBackFails(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	failing := &failAt{Store: store}
	tbl := tables.New(failing)
	all := endpoints(2)
	both := onePort("a", vip(1), tables.FrontendClusterIP, all, all)
	apply(t, tbl, both)
	id, b := store.BackendAt(all[1])
	apply(t, tbl, onePort("a", vip(1), tables.FrontendClusterIP, all[:1], all))
	failing.count, failing.at = 0, 1
	if _, err := tbl.Apply(both); !errors.Is(err, tablestest.ErrWrite) {
		t.Fatalf("error %v", err)
	}
	if store.Valid(id, b.Generation, tables.InCluster) {
		t.Error("valid after the write failed")
	}
	apply(t, tbl, both)
	if again, now := store.BackendAt(all[1]); again != id || now.Generation == b.Generation || now.State&tables.InCluster == 0 {
		t.Errorf("after all: id %d, %+v", again, now)
	}
}

// TestRestoreBroken starts over sets that share slots or lead to another
// Service's backends: the next Apply puts them right.
func TestRestoreBroken(t *testing.T) {
	want := []tables.Desired{
		onePort("a", vip(1), tables.FrontendClusterIP, endpoints(4), nil),
		onePort("b", vip(2), tables.FrontendClusterIP, endpoints(4), endpoints(2)),
	}
	breaks := map[string]func(m *tablestest.Store, a, b uint32){
		"shared run": func(m *tablestest.Store, a, _ uint32) {
			s := m.Services[a]
			s.Local = s.Cluster
			m.Services[a] = s
		},
		"not aligned": func(m *tablestest.Store, a, _ uint32) {
			s := m.Services[a]
			s.Cluster.First, s.Cluster.Count = s.Cluster.First+1, 3
			m.Services[a] = s
		},
		"foreign": func(m *tablestest.Store, a, b uint32) {
			s := m.Services[b]
			s.Cluster = m.Services[a].Cluster
			m.Services[b] = s
		},
		"overlapping": func(m *tablestest.Store, a, _ uint32) {
			s := m.Services[a]
			s.Local = tables.Set{Kind: policy.Backends, First: s.Cluster.First + 1, Count: 1}
			m.Services[a] = s
		},
		"no such slots": func(m *tablestest.Store, a, _ uint32) {
			s := m.Services[a]
			s.Local = tables.Set{Kind: policy.Backends, First: 1 << 12, Count: 3}
			m.Services[a] = s
		},
	}
	for name, damage := range breaks {
		t.Run(name, func(t *testing.T) {
			store := tablestest.New(t, tablestest.Roomy)
			tbl := tables.New(store)
			for _, d := range want {
				apply(t, tbl, d)
			}
			damage(store, store.Frontends[vip(1)].Service, store.Frontends[vip(2)].Service)
			clear(store.Owner)
			store.Barrier()
			tbl = restored(store)
			for _, d := range want {
				apply(t, tbl, d)
			}
			view := store.View()
			for i, name := range []string{"a", "b"} {
				v := view[web(name)]
				if !slices.Equal(v.Cluster.Backends, endpoints(4)) || len(v.Local.Backends) != 2*i {
					t.Errorf("%s has %s and %s", name, v.Cluster, v.Local)
				}
			}
		})
	}
}
