package tables_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/pkg/tables/tablestest"
	"github.com/beeline-lb/beeline/tests/tier"
)

var seed = flag.Uint64("seed", 0, "seed of the random tests; 0 takes new ones")

// TestRandom changes random Services, with writes that fail and agents that die,
// over a store that checks every write; in the end the store holds what a fresh
// one would.
func TestRandom(t *testing.T) {
	eachSeed(t, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed, tablestest.Roomy)
		for range 150 {
			w.step()
		}
		w.settle()
		w.check()
	})
}

// TestRandomFull is TestRandom in tables that have no room for all; what is left
// when most has gone is served as if there had always been room.
func TestRandomFull(t *testing.T) {
	limits := tablestest.Roomy
	limits.Services.Size, limits.Backends.Size = 14, 24
	limits.Slots.Size, limits.Frontends.Size = 64, 20
	limits.Nodes.Size, limits.NodeIDs.Size = 8, 10
	eachSeed(t, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed, limits)
		for range 150 {
			w.step()
		}
		w.settle()
		one := model.Name{Namespace: "ns", Name: "svc-1"}
		last := randomDesired(w.rand, one)
		last.Ports = last.Ports[:min(1, len(last.Ports))]
		for i := range last.Ports {
			last.Ports[i].Algorithm = model.Random // no ring would fit
		}
		w.desired = map[model.Name]tables.Desired{one: last}
		w.nodes = w.nodes[:min(4, len(w.nodes))]
		w.settle()
		w.settle() // what did not fit beside what went
		w.check()
	})
}

// TestRandomHandOver: without trouble, each address that is wanted is had by one of those that come first,
// after each sync and with no more Services applied than those that are affected. One that was free, or that its
// owner gave up, is had by the oldest of them, whatever else the sync changes.
func TestRandomHandOver(t *testing.T) {
	eachSeed(t, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed, tablestest.Roomy)
		for range 60 {
			before := w.owners()
			var changed []model.Name
			for range 1 + w.rand.IntN(3) {
				name := randomName(w.rand)
				if delete(w.desired, name); w.rand.IntN(3) > 0 {
					w.desired[name] = randomDesired(w.rand, name)
				}
				changed = append(changed, name)
			}
			w.sync(changed)
			w.checkFrontends()
			w.checkOwners(before)
		}
		w.store = tablestest.New(t, tablestest.Roomy)
		w.tables = tables.New(w.store)
		w.sync(slices.Collect(maps.Keys(w.desired)))
		w.checkOwners(nil)
	})
}

// sync brings Services to what is desired by age, and those that are affected after them, as pkg/reconcile does.
func (w *world) sync(names []model.Name) {
	for n := 0; len(names) > 0; n++ {
		if n > 100 {
			w.t.Fatal("Services go on affecting one another")
		}
		slices.SortFunc(names, func(a, b model.Name) int {
			return model.Age{Created: w.desired[a].Created, Name: a}.Compare(model.Age{Created: w.desired[b].Created, Name: b})
		})
		var next []model.Name
		for _, name := range slices.Compact(names) {
			affected, err := w.applyOne(name)
			w.tolerate(err)
			next = append(next, affected...)
		}
		names = next
	}
}

// owners returns the names of the Services that have frontends.
func (w *world) owners() map[tables.FrontendKey]string {
	owners := make(map[tables.FrontendKey]string)
	for key := range w.store.Frontends {
		owners[key] = w.store.OwnerOf(key)
	}
	return owners
}

// checkOwners verifies that frontends are had by the Service that comes first, but for those that another one
// had before and still wants.
func (w *world) checkOwners(before map[tables.FrontendKey]string) {
	w.t.Helper()
	type claim struct {
		owner      string
		precedence int
	}
	first := make(map[tables.FrontendKey]claim)
	kept := make(map[tables.FrontendKey]bool)
	for _, d := range slices.SortedFunc(maps.Values(w.desired), func(a, b tables.Desired) int {
		return model.Age{Created: a.Created, Name: a.Name}.Compare(model.Age{Created: b.Created, Name: b.Name})
	}) {
		seen := make(map[tables.FrontendKey]bool)
		for _, sp := range d.Ports {
			for _, f := range sp.Frontends {
				if seen[f.Key] {
					continue
				}
				seen[f.Key] = true
				kept[f.Key] = kept[f.Key] || before[f.Key] == d.Name.Name
				c := claim{d.Name.Name, tables.Precedence(tables.Frontend{Kind: f.Kind, Flags: f.Flags})}
				if other, ok := first[f.Key]; !ok || c.precedence > other.precedence {
					first[f.Key] = c
				}
			}
		}
	}
	for key, c := range first {
		if got := w.store.OwnerOf(key); got != c.owner && !kept[key] {
			w.t.Errorf("%s has %s, want %s", got, key, c.owner)
		}
	}
}

func eachSeed(t *testing.T, test func(*testing.T, uint64)) {
	seeds := []uint64{*seed}
	if *seed == 0 {
		seeds = nil
		first := uint64(time.Now().UnixNano())
		for i := range uint64(tier.Rounds(60)) {
			seeds = append(seeds, first+i)
		}
	}
	for _, s := range seeds {
		if !t.Run(fmt.Sprintf("seed=%d", s), func(t *testing.T) { test(t, s) }) {
			t.Fatalf("repeat with -seed=%d", s)
		}
	}
}

// world is a cluster and an agent.
type world struct {
	t       *testing.T
	rand    *rand.Rand
	store   *tablestest.Store
	tables  *tables.Tables
	desired map[model.Name]tables.Desired
	nodes   []*model.Node
	retired []tables.Retired // waiting for Release
}

func newWorld(t *testing.T, seed uint64, limits tables.Limits) *world {
	store := tablestest.New(t, limits)
	return &world{
		t:       t,
		rand:    rand.New(rand.NewPCG(seed, 1)),
		store:   store,
		tables:  tables.New(store),
		desired: make(map[model.Name]tables.Desired),
	}
}

// step does one random thing, with or without trouble.
func (w *world) step() {
	w.store.Failing, w.store.KillAt = nil, 0
	switch w.rand.IntN(4) {
	case 0:
		w.store.Failing = w.rand
	case 1:
		if w.rand.IntN(3) == 0 {
			w.store.KillAt = w.store.Writes + 1 + w.rand.IntN(20)
		}
	}
	w.mayDie(func() {
		switch w.rand.IntN(14) {
		case 0, 1, 2, 3, 4, 5:
			name := randomName(w.rand)
			w.desired[name] = randomDesired(w.rand, name)
			w.apply(name)
		case 6, 7:
			name := randomName(w.rand)
			delete(w.desired, name)
			w.apply(name)
		case 8:
			w.retired = append(w.retired, w.tables.Retire())
		case 9:
			w.release()
		case 10:
			w.applyAll()
		case 11:
			w.restart()
			w.setNodes()
			w.applyAll()
			w.prune()
			w.tolerate(w.tables.DropNodes())
		case 12, 13:
			w.nodes = randomNodes(w.rand)
			w.setNodes()
			w.tolerate(w.tables.DropNodes())
		}
	})
}

// setNodes brings in the nodes, and applies the Services that are affected.
func (w *world) setNodes() {
	affected, err := w.tables.SetNodes(w.nodes, "here")
	w.tolerate(err)
	for _, name := range affected {
		w.apply(name)
	}
}

// mayDie runs f; an agent that dies in it is started again.
func (w *world) mayDie(f func()) {
	defer func() {
		switch r := recover(); r.(type) {
		case nil:
		case tablestest.Killed:
			w.restart()
		default:
			panic(r)
		}
	}()
	f()
}

// restart takes the place of the agent. No reader outlives that.
func (w *world) restart() {
	w.store.KillAt = 0
	w.store.Barrier()
	w.retired = nil
	w.tables = restored(w.store)
}

func (w *world) release() {
	w.store.Barrier()
	for _, r := range w.retired {
		w.tables.Release(r)
	}
	w.retired = nil
}

// apply brings a Service, and those that are affected, to what is desired.
func (w *world) apply(name model.Name) {
	queue := []model.Name{name}
	for n := 0; len(queue) > 0; n++ {
		if n > 100 {
			w.t.Fatal("Services go on affecting one another")
		}
		name, queue = queue[0], queue[1:]
		affected, err := w.applyOne(name)
		w.tolerate(err)
		for _, a := range affected {
			if a == (model.Name{}) {
				w.t.Fatal("the Service without a name is affected")
			}
		}
		queue = append(queue, affected...)
	}
}

func (w *world) applyOne(name model.Name) ([]model.Name, error) {
	if d, ok := w.desired[name]; ok {
		if w.rand.IntN(2) == 0 {
			w.tables.Prepare([]tables.Desired{d})
		}
		return w.tables.Apply(d)
	}
	return w.tables.Remove(name)
}

func (w *world) applyAll() {
	names := slices.SortedFunc(maps.Keys(w.desired), model.Name.Compare)
	w.rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names {
		w.apply(name)
	}
}

func (w *world) prune() {
	affected, err := w.tables.Prune(func(name model.Name) bool { _, ok := w.desired[name]; return ok })
	w.tolerate(err)
	for _, name := range affected {
		w.apply(name)
	}
}

// tolerate fails the test unless every error in err is a clash or was asked for.
func (w *world) tolerate(err error) {
	w.t.Helper()
	for _, e := range leaves(err) {
		var clash *tables.ClashError
		expected := errors.As(e, &clash) ||
			w.store.Failing != nil && errors.Is(e, tablestest.ErrWrite) ||
			w.store.Limits() != tablestest.Roomy && errors.Is(e, tables.ErrFull)
		if !expected {
			w.t.Fatal(e)
		}
	}
}

// leaves returns the errors that err joins.
func leaves(err error) []error {
	var list []error
	switch e := err.(type) {
	case nil:
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			list = append(list, leaves(err)...)
		}
	case interface{ Unwrap() error }:
		if inner := leaves(e.Unwrap()); len(inner) > 0 {
			return inner
		}
		list = append(list, err)
	default:
		list = append(list, err)
	}
	return list
}

// settle ends the trouble and applies everything.
func (w *world) settle() {
	w.store.Failing, w.store.KillAt = nil, 0
	w.setNodes()
	w.applyAll()
	w.prune()
	w.tolerate(w.tables.DropNodes())
	w.retired = append(w.retired, w.tables.Retire())
	w.release()
}

// check compares the store with what is desired and with a fresh one, and
// restarts without a change.
func (w *world) check() {
	w.t.Helper()
	fresh := &world{t: w.t, rand: w.rand, store: tablestest.New(w.t, w.store.Limits()), desired: w.desired, nodes: w.nodes}
	fresh.tables = tables.New(fresh.store)
	fresh.settle()
	got, want := w.store.View(), fresh.store.View()
	kept := w.withoutKept(got)
	for name := range want {
		if g, w0 := got[name], want[name]; !reflect.DeepEqual(g, w0) {
			w.t.Errorf("%v:\n got %+v\nwant %+v", name, g, w0)
		}
	}
	if len(got) != len(want) {
		w.t.Errorf("%d Service ports, want %d", len(got), len(want))
	}
	w.checkFrontends()
	w.checkNodes(fresh)
	usage := w.tables.Usage()
	usage[1].Used -= kept // of backends
	if want := fresh.tables.Usage(); !slices.Equal(usage, want) {
		w.t.Errorf("usage is %+v without %d that are in no set, want %+v", usage, kept, want)
	}
	w.checkRestart()
}

// withoutKept removes the backends from a view that serve and are in no set: a fresh store has none.
// It returns how many those are.
func (w *world) withoutKept(view map[tables.ServicePortName]tablestest.PortView) (kept uint32) {
	w.t.Helper()
	for _, d := range w.desired {
		for i := range d.Ports {
			v := view[d.Ports[i].Name.ServicePortName()]
			for _, b := range d.Ports[i].Sets.Backends {
				if _, there := v.Backends[b.AddrPort]; b.InSet() || !there {
					continue
				}
				kept++
				delete(v.Backends, b.AddrPort)
				delete(v.Weights, b.AddrPort)
				delete(v.Nodes, b.AddrPort)
			}
		}
	}
	return kept
}

// checkFrontends verifies that each frontend that a Service wants is there and
// leads to the one with the claim of highest precedence, or to one of them.
func (w *world) checkFrontends() {
	w.t.Helper()
	type claim struct {
		port  tables.ServicePortName
		kind  tables.FrontendKind
		flags tables.FrontendFlags
	}
	claims := make(map[tables.FrontendKey][]claim)
	for _, d := range w.desired {
		seen := make(map[tables.FrontendKey]bool)
		for _, sp := range d.Ports {
			for _, f := range sp.Frontends {
				if !seen[f.Key] {
					seen[f.Key] = true
					claims[f.Key] = append(claims[f.Key], claim{sp.Name.ServicePortName(), f.Kind, f.Flags})
				}
			}
		}
	}
	for key, list := range claims {
		precedence := func(c claim) int { return tables.Precedence(tables.Frontend{Kind: c.kind, Flags: c.flags}) }
		most := 0
		for _, c := range list {
			most = max(most, precedence(c))
		}
		list = slices.DeleteFunc(list, func(c claim) bool { return precedence(c) < most })
		f, ok := w.store.Frontends[key]
		got := claim{w.store.Names[f.Service].ServicePortName(), f.Kind, f.Flags}
		if !ok || !slices.Contains(list, got) {
			w.t.Errorf("frontend %s leads (%t) to %+v, wanted by %+v", key, ok, got, list)
		}
	}
	for key := range w.store.Frontends {
		if len(claims[key]) == 0 {
			w.t.Errorf("frontend %s is wanted by nobody", key)
		}
	}
}

// checkRestart verifies that a restart without a change writes nothing and leads
// to the same state.
func (w *world) checkRestart() {
	w.t.Helper()
	before, usage := w.store.Writes, w.tables.Usage()
	w.restart()
	if got := w.tables.Usage(); !slices.Equal(got, usage) {
		w.t.Errorf("usage after a restart is %+v, was %+v", got, usage)
	}
	w.setNodes()
	w.applyAll()
	w.prune()
	w.tolerate(w.tables.DropNodes())
	if n := w.store.Writes - before; n != 0 {
		w.t.Errorf("a restart without a change makes %d writes", n)
	}
	if got := w.tables.Usage(); !slices.Equal(got, usage) {
		w.t.Errorf("usage after a restart and no change is %+v, was %+v", got, usage)
	}
	if !w.tables.Retire().Empty() {
		w.t.Error("a restart without a change retires something")
	}
}

// checkNodes compares the nodes with those of a fresh store, but for their ids.
func (w *world) checkNodes(fresh *world) {
	w.t.Helper()
	got, want := w.store.ViewNodes(), fresh.store.ViewNodes()
	if w.store.Limits() == tablestest.Roomy && !reflect.DeepEqual(got, want) {
		w.t.Errorf("the nodes are\n%+v, want\n%+v", got, want)
	}
	for node, counted := range w.tables.KnownNodes() {
		backends := 0
		for _, b := range w.store.Backends {
			if b.State != 0 && w.store.Nodes[b.Node] == node {
				backends++
			}
		}
		if backends != counted {
			w.t.Errorf("node %s has %d backends, %d are counted", node.Name, backends, counted)
		}
	}
}

func randomName(r *rand.Rand) model.Name {
	return model.Name{Namespace: "ns", Name: fmt.Sprintf("svc-%d", r.IntN(7))}
}

// pick returns a random part of list, in order.
func pick[T any](r *rand.Rand, one int, list ...T) []T {
	var some []T
	for _, x := range list {
		if r.IntN(one) == 0 {
			some = append(some, x)
		}
	}
	return some
}

// Addresses that several Services want.
var contested = []netip.Addr{
	netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"),
	netip.MustParseAddr("10.96.0.3"), netip.MustParseAddr("2001:db8::1"),
}

// randomDesired makes a Service that competes with others for its addresses,
// endpoints from a small pool, and compiles both.
func randomDesired(r *rand.Rand, name model.Name) tables.Desired {
	index := name.Name[len("svc-"):]
	svc := &model.Service{
		Name:            name,
		Created:         []time.Time{{}, time.Unix(1, 0), time.Unix(2, 0)}[r.IntN(3)],
		Type:            "LoadBalancer",
		ExternalIPs:     pick(r, 3, contested...),
		LoadBalancerIPs: pick(r, 3, contested...),
		InternalLocal:   r.IntN(3) == 0,
		ExternalLocal:   r.IntN(3) == 0,
		AffinitySeconds: uint32(r.IntN(2)) * 60,
		Algorithm:       model.Algorithm(r.IntN(int(model.NeverQueue) + 1)),
		Forwarding:      model.Forwarding(r.IntN(int(model.Hybrid) + 1)),
		RingSize:        []uint32{251, 509}[r.IntN(2)],
	}
	if r.IntN(3) == 0 {
		svc.ZoneWeights = map[string]uint8{"z": uint8(r.IntN(3)), "y": uint8(r.IntN(4))}
	}
	if r.IntN(4) > 0 {
		svc.ClusterIPs = append(svc.ClusterIPs, netip.MustParseAddr("10.96.0."+index))
	}
	if r.IntN(2) == 0 {
		svc.ClusterIPs = append(svc.ClusterIPs, netip.MustParseAddr("fd00::"+index))
	}
	if r.IntN(3) == 0 {
		svc.SourceRanges = pick(r, 2, netip.MustParsePrefix("10.1.0.0/16"),
			netip.MustParsePrefix("10.2.0.0/16"), netip.MustParsePrefix("fd01::/32"))
	}
	for i, proto := range []model.Protocol{model.TCP, model.UDP, model.TCP} {
		port := model.ServicePort{Name: fmt.Sprintf("p%d", i), Protocol: proto, Port: uint16(80 + i)}
		if r.IntN(2) == 0 {
			port.NodePort = uint16(30000 + 3*i + r.IntN(3))
		}
		svc.Ports = append(svc.Ports, port)
	}
	svc.Ports = pick(r, 2, svc.Ports...)
	return tables.Compile(svc, randomSlices(r, svc), &model.LocalNode{Name: "here", Zone: "z"})
}

// randomNodes makes nodes that share addresses, have none, or are more than there is
// room for.
func randomNodes(r *rand.Rand) []*model.Node {
	var list []*model.Node
	names := []string{"here", "there", "far", "away"}
	for i := range 12 {
		names = append(names, fmt.Sprint("other-", i))
	}
	for _, name := range names {
		if r.IntN(4) == 0 {
			continue
		}
		p := &model.Node{Name: name}
		for range r.IntN(3) {
			p.Addrs = append(p.Addrs, netip.AddrFrom4([4]byte{192, 0, 2, byte(r.IntN(24))}))
			p.Tunnel = p.Addrs[0]
		}
		list = append(list, p)
	}
	return list
}

func randomSlices(r *rand.Rand, svc *model.Service) []*model.Slice {
	var list []*model.Slice
	for i, prefix := range []string{"10.244.0.", "fd44::"} {
		s := &model.Slice{
			Name:    model.Name{Namespace: svc.Name.Namespace, Name: fmt.Sprint(svc.Name.Name, i)},
			Service: svc.Name.Name,
			Family:  model.Families[i],
		}
		if weight := uint8(r.IntN(4)); r.IntN(3) == 0 {
			s.Weight = &weight
		}
		for _, p := range svc.Ports {
			s.Ports = append(s.Ports, model.SlicePort{Name: p.Name, Protocol: p.Protocol, Port: 8080})
		}
		for n := 1; n <= 6; n++ {
			if r.IntN(3) == 0 {
				s.Endpoints = append(s.Endpoints, randomEndpoint(r, fmt.Sprint(prefix, n)))
			}
		}
		list = append(list, s)
	}
	return list
}

func randomEndpoint(r *rand.Rand, addr string) model.Endpoint {
	ep := model.Endpoint{Addr: netip.MustParseAddr(addr), NodeName: []string{"here", "there", "far", "away"}[r.IntN(4)]}
	ep.Ready = r.IntN(3) > 0
	ep.Serving = ep.Ready || r.IntN(2) == 0
	ep.Terminating = !ep.Ready && r.IntN(2) == 0
	ep.Zone = []string{"z", "y", "x"}[r.IntN(3)]
	if r.IntN(2) == 0 {
		ep.ZoneHints = []string{[]string{"z", "y"}[r.IntN(2)]}
	}
	return ep
}
