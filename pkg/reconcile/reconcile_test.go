package reconcile_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/pkg/tables/tablestest"
	"github.com/beeline-lb/beeline/tests/servicetest"
	"github.com/beeline-lb/beeline/tests/wait"
)

// store is what a reconciler works over: tables in memory or the kernel's maps.
type store interface {
	tables.Store
	Snapshot() (tables.Snapshot, error)
}

// loop is a reconciler at work over a store.
type loop struct {
	*reconcile.Reconciler
	t     *testing.T
	store store
	syncs chan outcome
}

// outcome is a sync and what was told of it.
type outcome struct {
	reconcile.Sync
	NoLocal  map[model.Family]int // of external traffic
	Triggers []trigger
	Full     map[string]bool
	Checks   []policy.HealthCheck
	UDPLeft  bool
}

// trigger is what made a slice change.
type trigger struct {
	family model.Family
	time   time.Time
}

// recorder takes what is measured of a sync.
type recorder struct{ now outcome }

func (*recorder) Synced(time.Time, time.Duration, int, bool) {}

func (r *recorder) NoLocal(family model.Family, _, external int) { r.now.NoLocal[family] = external }

func (r *recorder) Programmed(family model.Family, triggered, _ time.Time) {
	r.now.Triggers = append(r.now.Triggers, trigger{family, triggered})
}

func (r *recorder) Tables(_ []tables.Fill, full map[string]bool) { r.now.Full = full }

// start runs a reconciler over what is held until the test ends. wrap may put something
// between the tables and it.
func start(t *testing.T, holds store, wrap func(tables.Store) tables.Store, opts reconcile.Options) *loop {
	t.Helper()
	writes := wrap(holds)
	have, err := holds.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	l := &loop{t: t, store: holds, syncs: make(chan outcome, 1000)}
	if opts.Complete == nil {
		opts.Complete = func(context.Context) error { return nil }
	}
	l.record(&opts)
	l.Reconciler = reconcile.New(tables.Restore(writes, have), writes, opts)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

// record has each sync sent to l.syncs with all that was told of it.
func (l *loop) record(opts *reconcile.Options) {
	none := func() outcome { return outcome{NoLocal: make(map[model.Family]int)} }
	r := &recorder{none()}
	opts.Metrics = r
	opts.HealthChecks = func(changed []policy.HealthCheck, _ []netip.Addr) { r.now.Checks = changed }
	opts.UDPLeft = func() { r.now.UDPLeft = true }
	opts.Synced = func(s reconcile.Sync) {
		r.now.Sync = s
		l.syncs <- r.now
		r.now = none()
	}
}

// applied waits for a sync in which Services were applied. There may be others before.
func (l *loop) applied() outcome {
	s := <-l.syncs
	for s.Services == 0 {
		s = <-l.syncs
	}
	return s
}

func asIs(s tables.Store) tables.Store { return s }

// newStore makes tables in memory, with the sizes that the agent has by default.
func newStore(t *testing.T) *tablestest.Store {
	t.Helper()
	return tablestest.New(t, limits)
}

// limits are those of the agent's maps by default.
var limits = func() tables.Limits {
	l := tablestest.Roomy
	l.Services.Size, l.Backends.Size, l.Slots.Size = bpfmap.DefaultSizes.Services, bpfmap.DefaultSizes.Backends, bpfmap.DefaultSizes.Slots
	l.Frontends.Size, l.SourceRanges.Size = bpfmap.DefaultSizes.Frontends, bpfmap.DefaultSizes.SourceRanges
	return l
}()

// newMaps makes maps of the kernel that are pinned nowhere, and what writes to them.
func newMaps(t *testing.T) (*bpfmap.Maps, *servicemap.Store) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF maps")
	}
	sizes := bpfmap.DefaultSizes
	sizes.Affinity, sizes.UDPPeers = 16, 16
	maps, err := bpfmap.Load(t.TempDir(), sizes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := maps.Close(); err != nil {
			t.Error(err)
		}
	})
	return maps, servicetest.Open(t, maps)
}

// leads returns the backends that a frontend's cluster set leads to; nil when
// there is no such frontend.
func (l *loop) leads(addr string) []string {
	l.t.Helper()
	have, err := l.store.Snapshot()
	if err != nil {
		l.t.Fatal(err)
	}
	a := netip.MustParseAddrPort(addr)
	f, ok := have.Frontends[tables.FrontendKey{Addr: a.Addr(), Port: a.Port(), Protocol: model.TCP}]
	if !ok {
		return nil
	}
	found := []string{}
	for _, id := range have.Slots(have.Services[f.Service].Cluster) {
		found = append(found, have.Backends[id].AddrPort.String())
	}
	return found
}

// eventually waits until the frontend leads to want.
func (l *loop) eventually(addr string, want ...string) {
	l.t.Helper()
	var got []string
	for deadline := time.Now().Add(wait.Limit); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if got = l.leads(addr); slices.Equal(got, want) {
			return
		}
	}
	l.t.Fatalf("%s leads to %q, want %q", addr, got, want)
}

func service(name, clusterIP string, change ...func(*model.Service)) *model.Service {
	s := &model.Service{
		Name:       model.Name{Namespace: "default", Name: name},
		Type:       "ClusterIP",
		ClusterIPs: []netip.Addr{netip.MustParseAddr(clusterIP)},
		Ports:      []model.ServicePort{{Protocol: model.TCP, Port: 80}},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func slice(name, service string, addrs ...string) *model.Slice {
	s := &model.Slice{
		Name:    model.Name{Namespace: "default", Name: name},
		Service: service,
		Family:  model.IPv4,
		Ports:   []model.SlicePort{{Protocol: model.TCP, Port: 8080}},
	}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.MustParseAddr(a), Ready: true, Serving: true})
	}
	return s
}

func put(objects ...any) source.Update {
	var u source.Update
	for _, o := range objects {
		switch o := o.(type) {
		case *model.Service:
			u.PutServices = append(u.PutServices, o)
		case *model.Slice:
			u.PutSlices = append(u.PutSlices, o)
		case *model.Node:
			u.PutNodes = append(u.PutNodes, o)
		case *model.LocalNode:
			u.LocalNode = o
		}
	}
	return u
}

func TestNothingIsRemovedBeforeTheSourceIsComplete(t *testing.T) {
	held := newStore(t)
	t.Run("first agent", func(t *testing.T) {
		l := start(t, held, asIs, reconcile.Options{})
		l.Apply(put(service("a", "10.96.0.1"), slice("a-1", "a", "10.0.0.1")))
		l.Apply(put(service("b", "10.96.0.2"), slice("b-1", "b", "10.0.0.2")))
		l.Synced()
		l.eventually("10.96.0.2:80", "10.0.0.2:8080")
	})
	synctest.Test(t, func(t *testing.T) {
		var complete atomic.Bool
		l := start(t, held, asIs, reconcile.Options{Complete: func(context.Context) error { complete.Store(true); return nil }})
		l.Apply(put(service("a", "10.96.0.1"), slice("a-1", "a", "10.0.0.9")))
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := l.leads("10.96.0.2:80"); !slices.Equal(got, []string{"10.0.0.2:8080"}) || complete.Load() {
			t.Fatalf("before the source was complete: b leads to %q, complete is %v", got, complete.Load())
		}
		l.Synced()
		l.eventually("10.96.0.1:80", "10.0.0.9:8080")
		<-l.syncs
		if got := l.leads("10.96.0.2:80"); got != nil || !complete.Load() {
			t.Fatalf("after the source was complete: b leads to %q, complete is %v", got, complete.Load())
		}
	})
}

// stubborn is a store in which a frontend cannot be written for a while.
type stubborn struct {
	tables.Store
	refuse netip.Addr
	times  atomic.Int32
}

func (s *stubborn) PutFrontend(key tables.FrontendKey, f tables.Frontend) error {
	if key.Addr == s.refuse && s.times.Add(-1) >= 0 {
		return errors.New("no memory")
	}
	return s.Store.PutFrontend(key, f)
}

func TestFailedServiceIsRetriedAlone(t *testing.T) {
	broken := &stubborn{refuse: netip.MustParseAddr("10.96.0.1")}
	broken.times.Store(4)
	l := start(t, newStore(t), func(s tables.Store) tables.Store { broken.Store = s; return broken }, reconcile.Options{})
	l.Apply(put(service("a", "10.96.0.1"), slice("a-1", "a", "10.0.0.1")))
	l.Apply(put(service("b", "10.96.0.2"), slice("b-1", "b", "10.0.0.2")))
	l.Synced()
	first := <-l.syncs
	if first.Pending != 1 {
		t.Errorf("first sync: %d Services pending, want 1", first.Pending)
	}
	if got := l.leads("10.96.0.2:80"); !slices.Equal(got, []string{"10.0.0.2:8080"}) {
		t.Errorf("b leads to %q in the first sync", got)
	}
	l.eventually("10.96.0.1:80", "10.0.0.1:8080")
	for s := range l.syncs {
		if s.Pending == 0 {
			return
		}
	}
}

func TestZoneOfTheNodeDecidesHints(t *testing.T) {
	l := start(t, newStore(t), asIs, reconcile.Options{LocalNode: model.LocalNode{Name: "n1", Zone: "east"}})
	hinted := slice("a-1", "a", "10.0.0.1", "10.0.0.2")
	hinted.Endpoints[0].ZoneHints = []string{"east"}
	hinted.Endpoints[1].ZoneHints = []string{"west"}
	l.Apply(put(service("a", "10.96.0.1"), hinted))
	l.Synced()
	l.eventually("10.96.0.1:80", "10.0.0.1:8080")
	l.Apply(put(&model.LocalNode{Zone: "west"}))
	l.eventually("10.96.0.1:80", "10.0.0.2:8080")
}

func TestSliceMovesToAnotherService(t *testing.T) {
	l := start(t, newStore(t), asIs, reconcile.Options{})
	l.Apply(put(service("a", "10.96.0.1"), service("b", "10.96.0.2"), slice("s", "a", "10.0.0.1")))
	l.Synced()
	l.eventually("10.96.0.1:80", "10.0.0.1:8080")
	l.Apply(put(slice("s", "b", "10.0.0.1")))
	l.eventually("10.96.0.2:80", "10.0.0.1:8080")
	l.eventually("10.96.0.1:80", []string{}...)
	l.Apply(source.Update{DeleteSlices: []model.Name{{Namespace: "default", Name: "s"}}})
	l.eventually("10.96.0.2:80", []string{}...)
}

func TestAddressGoesToTheNextWhenItsServiceGoes(t *testing.T) {
	external := func(s *model.Service) { s.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")} }
	l := start(t, newStore(t), asIs, reconcile.Options{})
	l.Apply(put(
		service("a", "10.96.0.1", external), slice("a-1", "a", "10.0.0.1"),
		service("b", "10.96.0.2", external), slice("b-1", "b", "10.0.0.2"),
	))
	l.Synced()
	l.eventually("192.0.2.1:80", "10.0.0.1:8080")
	l.eventually("10.96.0.2:80", "10.0.0.2:8080")
	l.Apply(source.Update{DeleteServices: []model.Name{{Namespace: "default", Name: "a"}}})
	l.eventually("192.0.2.1:80", "10.0.0.2:8080")
}

func TestRunEndsWhenTheTablesCannotBePutToWork(t *testing.T) {
	held := newStore(t)
	failure := errors.New("no cgroup")
	r := reconcile.New(tables.New(held), held, reconcile.Options{
		Complete: func(context.Context) error { return failure },
	})
	r.Synced()
	if err := r.Run(t.Context()); !errors.Is(err, failure) {
		t.Fatalf("got %v, want %v", err, failure)
	}
}
