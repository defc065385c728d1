package reconcile_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/pkg/tables/tablestest"
)

// ofTenant returns a Service with ports and a slice of two endpoints.
func ofTenant(namespace, name string, number, ports int) (*model.Service, *model.Slice) {
	svc := &model.Service{
		Name: model.Name{Namespace: namespace, Name: name}, Type: "ClusterIP",
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(number)})},
	}
	slice := &model.Slice{Name: model.Name{Namespace: namespace, Name: name + "-1"}, Service: name, Family: model.IPv4}
	for i := range ports {
		port := fmt.Sprint("p", i)
		svc.Ports = append(svc.Ports, model.ServicePort{Name: port, Protocol: model.TCP, Port: uint16(80 + i)})
		slice.Ports = append(slice.Ports, model.SlicePort{Name: port, Protocol: model.TCP, Port: uint16(8080 + i)})
	}
	for i := range 2 {
		addr := netip.AddrFrom4([4]byte{10, 1, byte(number), byte(i)})
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: addr, Ready: true, Serving: true})
	}
	return svc, slice
}

// TestGreedyService: whatever rings and weights one tenant asks for, all Services are served,
// its own with smaller ones; it is told; and a restart changes nothing.
func TestGreedyService(t *testing.T) {
	held := newStore(t)
	faults := make(map[model.Name][]model.Fault)
	opts := reconcile.Options{Faults: func(name model.Name, list, _ []model.Fault) { faults[name] = list }}
	var u source.Update
	put := func(svc *model.Service, slice *model.Slice) {
		u.PutServices, u.PutSlices = append(u.PutServices, svc), append(u.PutSlices, slice)
	}
	rings, slice := ofTenant("greedy", "rings", 1, 8)
	rings.Algorithm, rings.RingSize = model.Maglev, 2097143
	put(rings, slice)
	weight := uint8(255)
	for i := range 9 {
		svc, slice := ofTenant("greedy", fmt.Sprint("weights-", i), 2+i, 20)
		other := *slice
		other.Name.Name, other.Weight = slice.Name.Name+"w", &weight
		other.Endpoints = nil
		for n := range 1000 {
			addr := netip.AddrFrom4([4]byte{10, byte(100 + i), byte(n >> 8), byte(n)})
			other.Endpoints = append(other.Endpoints, model.Endpoint{Addr: addr, Ready: true, Serving: true})
		}
		put(svc, slice)
		u.PutSlices = append(u.PutSlices, &other)
	}
	others := []model.Name{}
	for i := range 20 {
		svc, slice := ofTenant("shop", fmt.Sprint("web-", i), 100+i, 2)
		if i == 0 {
			svc.Algorithm = model.Maglev
		}
		put(svc, slice)
		others = append(others, svc.Name)
	}

	l := start(t, held, asIs, opts)
	l.Apply(u)
	l.Synced()
	if s := l.applied(); len(s.Full) > 0 || s.Pending > 0 {
		t.Errorf("tables full %v, %d Services wait", s.Full, s.Pending)
	}
	first, err := held.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	served := make(map[model.Name]int)
	for id, name := range first.Names {
		set := first.Services[id].Cluster
		if set.Kind == policy.Backends && set.Count >= 2 {
			served[name.Port.Service]++
		}
		if name.Port.Service == rings.Name && (set.Count < 1000 || set.Count > 1<<18 || name.Bound == 0) {
			t.Errorf("port %s has a ring of %d slots, bound %d", name.Port, set.Count, name.Bound)
		}
		if name.Port.Service == others[0] && (set.Count != 16381 || name.Bound != 0) {
			t.Errorf("port %s has a ring of %d slots, bound %d", name.Port, set.Count, name.Bound)
		}
	}
	for _, svc := range u.PutServices {
		if served[svc.Name] != len(svc.Ports) {
			t.Errorf("%s: %d of %d ports are served", svc.Name, served[svc.Name], len(svc.Ports))
		}
		if told := len(faults[svc.Name]) > 0; told != (svc.Name.Namespace == "greedy") {
			t.Errorf("%s: told %v", svc.Name, faults[svc.Name])
		}
	}

	slices.Reverse(u.PutServices)
	again := start(t, held, func(s tables.Store) tables.Store { return readOnlySlots{s} }, opts)
	again.Apply(u)
	again.Synced()
	again.applied()
	after, err := held.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for id, before := range first.Services {
		if !reflect.DeepEqual(after.Services[id], before) || !slices.Equal(after.Slots(before.Cluster), first.Slots(before.Cluster)) {
			t.Fatalf("%v: %+v, before the restart %+v", first.Names[id].Port, after.Services[id], before)
		}
	}
}

// TestReservedSlots: sets with one slot for each endpoint find room beside rings that have taken
// what they get, also where all endpoints are on this node and so in two sets.
func TestReservedSlots(t *testing.T) {
	const tenants, ports, endpointCount = 10, 20, 9 // 9 take a block of 16
	narrow := limits
	narrow.Slots.Size, narrow.Backends.Size = 1<<14, 1<<11
	held := tablestest.New(t, narrow)
	l := start(t, held, asIs, reconcile.Options{LocalNode: model.LocalNode{Name: "here"}})
	var rings, plain source.Update
	for i := range tenants {
		svc, slice := ofTenant(fmt.Sprint("rings-", i), "rings", i, 8)
		svc.Algorithm, svc.RingSize = model.Maglev, 1021
		rings.PutServices, rings.PutSlices = append(rings.PutServices, svc), append(rings.PutSlices, slice)

		svc, slice = ofTenant(fmt.Sprint("plain-", i), "plain", 100+i, ports)
		slice.Endpoints = nil
		for n := range endpointCount {
			addr := netip.AddrFrom4([4]byte{10, 2, byte(i), byte(n)})
			slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: addr, NodeName: "here", Ready: true, Serving: true})
		}
		plain.PutServices, plain.PutSlices = append(plain.PutServices, svc), append(plain.PutSlices, slice)
	}
	for _, u := range []source.Update{rings, plain} {
		l.Apply(u)
		l.Synced()
		if s := l.applied(); len(s.Full) > 0 || s.Pending > 0 {
			t.Errorf("tables full %v, %d Services wait", s.Full, s.Pending)
		}
	}
	have, err := held.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	whole, served := 0, 0
	for id, name := range have.Names {
		switch set := have.Services[id]; {
		case name.Port.Service.Name == "rings" && set.Cluster.Count >= 2:
			served++
		case set.Cluster.Count == endpointCount && set.Local.Count == endpointCount:
			whole++
		}
	}
	if whole != tenants*ports || served != tenants*8 {
		t.Errorf("%d of %d ports have all endpoints in both sets, %d of %d with rings are served", whole, tenants*ports, served, tenants*8)
	}
}

// readOnlySlots is a store whose slots are not to be written.
type readOnlySlots struct{ tables.Store }

func (readOnlySlots) PutSlots(first uint32, backends []uint32) error {
	return fmt.Errorf("slots %d to %d are written anew", first, first+uint32(len(backends)))
}

// hoarder returns a Service that asks for much of all tables.
func hoarder(number, sourceRanges int) (*model.Service, *model.Slice) {
	svc, slice := ofTenant("greedy", fmt.Sprint("all-", number), number, 20)
	svc.LoadBalancerIPs = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(number)})}
	for i := range 100 {
		svc.ExternalIPs = append(svc.ExternalIPs, netip.AddrFrom4([4]byte{172, 16, byte(number), byte(i)}))
	}
	for i := range sourceRanges {
		svc.SourceRanges = append(svc.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(i), 0}), 24))
	}
	for i := range 500 {
		addr := netip.AddrFrom4([4]byte{10, byte(100 + number), byte(i >> 8), byte(i)})
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: addr, Ready: true, Serving: true})
	}
	return svc, slice
}

// TestGreedyNamespace: when one tenant's Services have filled the tables, those of others are
// served in full as they come; its own are cut, on each node and after a restart the same
// ones, and it is told.
func TestGreedyNamespace(t *testing.T) {
	narrow := limits
	narrow.Frontends.Size, narrow.Backends.Size, narrow.SourceRanges.Size = 1<<13, 1<<15, 1<<12
	var greedy, others source.Update
	for i := range 12 {
		svc, slice := hoarder(i, 30+i)
		if i == 0 {
			svc, slice = hoarder(i, 100) // 2,020 of 1,024
		}
		greedy.PutServices, greedy.PutSlices = append(greedy.PutServices, svc), append(greedy.PutSlices, slice)
	}
	for i := range 20 {
		svc, slice := ofTenant("shop", fmt.Sprint("web-", i), 100+i, 2)
		svc.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)})}
		svc.LoadBalancerIPs = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(200 + i)})}
		svc.SourceRanges = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
		others.PutServices, others.PutSlices = append(others.PutServices, svc), append(others.PutSlices, slice)
	}
	told := make(map[model.Name]bool)
	opts := reconcile.Options{Faults: func(name model.Name, list, _ []model.Fault) { told[name] = len(list) > 0 }}

	held := tablestest.New(t, narrow)
	l := start(t, held, asIs, opts)
	for _, u := range []source.Update{greedy, others} {
		l.Apply(u)
		l.Synced()
		if s := l.applied(); len(s.Full) > 0 || s.Pending > 0 {
			t.Errorf("tables full %v, %d Services wait", s.Full, s.Pending)
		} else if s.Limited != len(greedy.PutServices) {
			t.Errorf("%d Services get less than they ask for, want %d", s.Limited, len(greedy.PutServices))
		}
	}
	first := entriesOf(t, held)
	for _, svc := range others.PutServices {
		if got, want := first[svc.Name], (entries{ports: 2, frontends: 9, backends: 4, ranges: 2}); got != want || told[svc.Name] {
			t.Errorf("%s has %+v, told %v, want %+v", svc.Name, got, told[svc.Name], want)
		}
	}
	for _, svc := range greedy.PutServices {
		got := first[svc.Name]
		if all := 20 * len(svc.SourceRanges); got.ranges != 0 && got.ranges != all {
			t.Errorf("%s has %d of %d source ranges", svc.Name, got.ranges, all)
		}
		if got.ports != 20 || got.frontends < 21 || got.backends < 20 || !told[svc.Name] ||
			!strings.Contains(got.lost, "its addresses") || strings.Contains(got.lost, "admit no client") != (got.ranges == 0) {
			t.Errorf("%s has %+v, told %v", svc.Name, got, told[svc.Name])
		}
	}
	if first[greedy.PutServices[0].Name].ranges != 0 || first[greedy.PutServices[1].Name].ranges == 0 {
		t.Errorf("source ranges: %+v of a Service with too many, %+v of one with fewer",
			first[greedy.PutServices[0].Name], first[greedy.PutServices[1].Name])
	}

	restarted := start(t, held, asIs, opts)
	other := tablestest.New(t, narrow)
	elsewhere := start(t, other, asIs, opts)
	for _, l := range []*loop{restarted, elsewhere} {
		for _, u := range []source.Update{others, greedy} {
			slices.Reverse(u.PutServices)
			l.Apply(u)
		}
		l.Synced()
		l.applied()
		if got := entriesOf(t, l.store); !reflect.DeepEqual(got, first) {
			t.Errorf("in another order %+v, before %+v", got, first)
		}
	}
}

// TestGreedyNamespaceChanges: when a Service comes or goes of a tenant whose many Services have less than
// they ask for, few of them are applied for that, and a change of another tenant before those.
func TestGreedyNamespaceChanges(t *testing.T) {
	const wide, most = 100, 20
	narrow := limits
	narrow.Backends.Size = 1 << 14
	order := &backendOrder{}
	l := start(t, tablestest.New(t, narrow), func(s tables.Store) tables.Store { order.Store = s; return order }, reconcile.Options{})
	hoards := func(number int) source.Update { // 10,000 backends
		svc, slice := hoarder(number, 0)
		svc.Created = time.Unix(0, 0)
		svc.LoadBalancerIPs, svc.ExternalIPs = nil, nil
		return put(svc, slice)
	}
	web := func(addrs ...string) source.Update {
		return put(service("web", "10.97.0.1", createdAt(1)), slice("web-1", "web", addrs...))
	}
	for i := range wide {
		l.Apply(hoards(i))
	}
	l.Apply(web("10.3.0.1"))
	l.Synced()
	if s := l.applied(); s.Limited != wide {
		t.Errorf("%d Services get less than they ask for", s.Limited)
	}
	for round := range 5 {
		l.Apply(hoards(wide))
		if s := l.applied(); s.Services > 1+most || s.Pending > 0 {
			t.Errorf("round %d: %d Services are applied when one has come, %d wait", round, s.Services, s.Pending)
		}
		order.reset()
		u := web("10.3.0.1", fmt.Sprint("10.3.0.", 2+round))
		u.DeleteServices = []model.Name{{Namespace: "greedy", Name: fmt.Sprint("all-", wide)}}
		l.Apply(u)
		s := l.applied()
		if s.Services < 1+1+1 || s.Services > 1+1+most || s.Pending > 0 {
			t.Errorf("round %d: %d Services are applied when one has gone, %d wait", round, s.Services, s.Pending)
		}
		added := netip.MustParseAddrPort(fmt.Sprintf("10.3.0.%d:8080", 2+round))
		if got := order.added(); len(got) < 2 || got[0] != added {
			t.Errorf("round %d: backends come in the order %v", round, got[:min(len(got), 3)])
		}
	}
}

// backendOrder notes the order in which backends come.
type backendOrder struct {
	tables.Store
	mu   sync.Mutex
	list []netip.AddrPort
}

func (o *backendOrder) PutBackend(id uint32, b tables.Backend) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if b.State != 0 {
		o.list = append(o.list, b.AddrPort)
	}
	return o.Store.PutBackend(id, b)
}

func (o *backendOrder) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = nil
}

func (o *backendOrder) added() []netip.AddrPort {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.list)
}

// entries counts what a Service has in the tables.
type entries struct {
	ports, frontends, backends, ranges int
	lost                               string // what it says of it
}

func entriesOf(t *testing.T, held store) map[model.Name]entries {
	t.Helper()
	have, err := held.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	counts := make(map[model.Name]entries)
	count := func(id uint32, add entries) {
		name := have.Names[id].Port.Service
		c := counts[name]
		lost := strings.Join(have.Names[id].Cut.Lost(), "; ")
		counts[name] = entries{c.ports + add.ports, c.frontends + add.frontends, c.backends + add.backends, c.ranges + add.ranges, lost}
	}
	for id := range have.Names {
		count(id, entries{ports: 1})
	}
	for _, f := range have.Frontends {
		count(f.Service, entries{frontends: 1})
	}
	for _, b := range have.Backends {
		count(b.Service, entries{backends: 1})
	}
	for _, r := range have.SourceRanges {
		count(r.Service, entries{ranges: 1})
	}
	return counts
}
