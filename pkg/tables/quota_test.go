package tables

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

// limited is a store that has nothing but limits.
type limited struct {
	Store
	limits Limits
}

func (l limited) Limits() Limits { return l.limits }

// givenOf returns what each Service has of the tables.
func givenOf(t *Tables) map[model.Name]Demand {
	all := make(map[model.Name]Demand)
	for _, asks := range t.room.asks {
		for name, a := range asks {
			all[name] = a.given
		}
	}
	return all
}

// TestQuotas: what each Service gets is the same whatever the order is in which Services come,
// change and go. It fits, and who asks for little gets it.
func TestQuotas(t *testing.T) {
	limits := Limits{
		Services: Limit{Size: 1 << 12}, Frontends: Limit{Size: 1 << 14}, Backends: Limit{Size: 1 << 16},
		SourceRanges: Limit{Size: 1 << 13}, Slots: Limit{Size: 1 << 20},
	}
	asked := make(map[model.Name]Demand)
	var names []model.Name
	add := func(namespace string, n int, d Demand) {
		for i := range n {
			name := model.Name{Namespace: namespace, Name: fmt.Sprint("s-", i)}
			asked[name] = d
			names = append(names, name)
		}
	}
	add("all", 40, Demand{2000, 10_000, 100_000, 1 << 30})
	add("ranges", 20, Demand{1, 2, 3, 700})
	add("backends", 1, Demand{1, 2, 9000, 1})
	add("backends", 5, Demand{1, 2, 10_000, 1})
	for i := range 50 {
		add(fmt.Sprint("shop-", i), 2, Demand{3, 8, 200, 5})
	}
	var first map[model.Name]Demand
	for try := range 20 {
		tables := New(limited{limits: limits})
		rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for i, name := range names {
			if try%2 == 0 { // it asks for something else first
				tables.Want(name, &Desired{}, Demand{uint32(i), 5000, 7, 800})
				tables.Share()
				if i%3 == 0 {
					tables.Want(name, nil, Demand{})
				}
			}
			tables.Want(name, &Desired{}, asked[name])
		}
		tables.Share()
		got := givenOf(tables)
		if first == nil {
			first = got
		} else if !maps.Equal(got, first) {
			t.Fatalf("shares %v, in another order %v", got, first)
		}
	}
	var sums [resources]uint64
	for name, got := range first {
		for of, n := range got {
			sums[of] += uint64(n)
		}
		if name.Namespace != "all" && name.Namespace != "ranges" && name.Namespace != "backends" && got != asked[name] {
			t.Errorf("%s gets %d of %d", name, got, asked[name])
		}
		if ranges := got[ofSourceRanges]; ranges != 0 && ranges != asked[name][ofSourceRanges] {
			t.Errorf("%s gets %d of %d source ranges", name, ranges, asked[name][ofSourceRanges])
		}
		if got[ofPorts] == 0 || got[ofFrontends] == 0 || got[ofBackends] == 0 {
			t.Errorf("%s gets %d, which is nothing to be served with", name, got)
		}
	}
	for of, q := range New(limited{limits: limits}).room.quotas {
		if sums[of] > uint64(q.Size) || sums[of] < uint64(q.Size)/2 && of != int(ofPorts) {
			t.Errorf("table %d: %d entries are shared out of %d", of, sums[of], q.Size)
		}
	}
}

// TestQuotaEnds: when others of a namespace, or of another one, are gone, the Services that got less get what
// they ask for. Those of namespaces that ask for little have it all the time.
func TestQuotaEnds(t *testing.T) {
	tables := New(limited{limits: Limits{
		Services: Limit{Size: 1 << 12}, Frontends: Limit{Size: 1 << 12}, Backends: Limit{Size: 1 << 12},
		SourceRanges: Limit{Size: 1 << 12}, Slots: Limit{Size: 1 << 20},
	}})
	want := func(namespace string, from, to int, d *Desired, demand Demand) (names []model.Name) {
		for i := from; i < to; i++ {
			name := model.Name{Namespace: namespace, Name: fmt.Sprint("s-", i)}
			tables.Want(name, d, demand)
			names = append(names, name)
		}
		return names
	}
	wide := Demand{1, 2, 500, 5}
	want("little", 0, 10, &Desired{}, Demand{1, 2, 3, 5})
	stay := setOf(append(want("one", 0, 5, &Desired{}, wide), want("two", 0, 2, &Desired{}, wide)...))
	tables.Share()
	want("two", 2, 6, &Desired{}, wide)
	if changed, less := tables.Share(); !maps.Equal(changed, stay) || !maps.Equal(less, stay) {
		t.Errorf("when others come, something else have %v, less %v; want %v", changed, less, stay)
	}
	gone := setOf(want("two", 2, 6, nil, Demand{}))
	if changed, less := tables.Share(); !maps.Equal(changed, stay) || !maps.Equal(less, gone) {
		t.Errorf("when they go, something else have %v, less %v; want %v and %v", changed, less, stay, gone)
	}
	for name, given := range givenOf(tables) {
		if want := tables.room.ask(name).want; given != want {
			t.Errorf("%s gets %d of %d", name, given, want)
		}
	}
}

// TestQuotasOfLargeClusters: with the default sizes, clusters that fit are not bounded.
func TestQuotasOfLargeClusters(t *testing.T) {
	limits := Limits{
		Services: Limit{Size: 1 << 18}, Frontends: Limit{Size: 1 << 18}, Backends: Limit{Size: 1 << 21},
		SourceRanges: Limit{Size: 1 << 16}, Slots: Limit{Size: 1 << 24},
	}
	for name, namespace := range map[string]func(i int) string{
		"5,000 Services in one namespace":  func(i int) string { return fmt.Sprint("n-", max(0, i-5000)/20) },
		"50,000 Services in one namespace": func(int) string { return "default" },
	} {
		t.Run(name, func(t *testing.T) {
			tables := New(limited{limits: limits})
			for i := range 50_000 {
				d := Demand{2, 4, 20, 0} // both families
				switch {
				case i == 0:
					d[ofBackends] = 2 * 5000
				case i%100 == 0:
					d[ofSourceRanges] = 60
				}
				tables.Want(model.Name{Namespace: namespace(i), Name: fmt.Sprint(i)}, &Desired{}, d)
			}
			if changed, less := tables.Share(); len(changed)+len(less) > 0 {
				t.Errorf("%d Services get something else, %d less", len(changed), len(less))
			}
			for name, given := range givenOf(tables) {
				if want := tables.room.ask(name).want; given != want {
					t.Errorf("%s gets %d of %d", name, given, want)
				}
			}
		})
	}
}

// TestDemand: a Service asks for what Compile makes of it.
func TestDemand(t *testing.T) {
	ips := func(list ...string) (addrs []netip.Addr) {
		for _, a := range list {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		return addrs
	}
	name := model.Name{Namespace: "shop", Name: "web"}
	svc := &model.Service{
		Name: name, ClusterIPs: ips("10.96.0.1", "fd00::1"), ExternalIPs: ips("192.0.2.1", "192.0.2.2"),
		LoadBalancerIPs: ips("198.51.100.1", "2001:db8::1"),
		SourceRanges:    []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("10.0.0.0/8")},
		Ports: []model.ServicePort{
			{Name: "a", Protocol: model.TCP, Port: 80, NodePort: 30080},
			{Name: "b", Protocol: model.UDP, Port: 53},
		},
	}
	slice := &model.Slice{
		Name: name, Service: "web", Family: model.IPv4,
		Ports: []model.SlicePort{{Name: "a", Protocol: model.TCP, Port: 8080}, {Name: "c", Protocol: model.TCP, Port: 1}},
	}
	for _, a := range ips("10.1.0.1", "10.1.0.2", "10.1.0.3") {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: a, Ready: true, Serving: true})
	}
	slices := []*model.Slice{slice}
	want := Demand{}
	for _, sp := range Compile(svc, slices, &model.LocalNode{}).Ports {
		want[ofPorts]++
		want[ofFrontends] += uint32(len(sp.Frontends))
		want[ofBackends] += uint32(len(sp.Sets.Backends))
		want[ofSourceRanges] += uint32(len(sp.SourceRanges))
	}
	if got := DemandOf(svc, slices); got != want {
		t.Errorf("the Service asks for %d, Compile makes %d", got, want)
	}
}

// restatedCut leaves of all that a Service asks for what is given, with no thought of cost.
func restatedCut(d *Desired, asked, given Demand) {
	d.Ports = d.Ports[:min(len(d.Ports), int(given[ofPorts]))]
	if given[ofFrontends] < asked[ofFrontends] {
		var all []DesiredFrontend
		for _, sp := range d.Ports {
			all = append(all, sp.Frontends...)
		}
		slices.SortFunc(all, func(a, b DesiredFrontend) int {
			return cmp.Or(cmp.Compare(restatedRank(a), restatedRank(b)), a.Key.Compare(b.Key))
		})
		kept := setOf(all[:min(len(all), int(given[ofFrontends]))])
		for i := range d.Ports {
			d.Ports[i].Frontends = slices.DeleteFunc(d.Ports[i].Frontends, func(f DesiredFrontend) bool {
				_, ok := kept[f]
				return !ok
			})
		}
	}
	for i := range d.Ports {
		if given[ofSourceRanges] < asked[ofSourceRanges] {
			d.Ports[i].SourceRanges = nil
		}
	}
}

func restatedRank(f DesiredFrontend) int {
	switch {
	case ofCluster(Frontend{Kind: f.Kind, Flags: f.Flags}):
		return 0
	case f.Kind == FrontendNodePort:
		return 1
	case f.Kind == FrontendLoadBalancer:
		return 2
	case f.Kind == FrontendExternalIP:
		return 3
	}
	return 4
}

// TestCompileWithin compares what is made of a Service within bounds with what is left of all that it
// asks for. What fits is not touched.
func TestCompileWithin(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	addrs := func(prefix string) (list []netip.Addr) {
		for n := range r.IntN(5) {
			list = append(list, netip.MustParseAddr(fmt.Sprintf("%s%d", []string{prefix, "2001:db8::"}[r.IntN(2)], 1+r.IntN(4)+n)))
		}
		return list
	}
	met := make(map[string]int)
	for range 3000 {
		svc := &model.Service{
			Name: model.Name{Namespace: "shop", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00::1")}[r.IntN(2):],
			ExternalIPs: addrs("192.0.2."), LoadBalancerIPs: addrs("192.0.2."),
			InternalLocal: r.IntN(3) == 0, ExternalLocal: r.IntN(3) == 0,
		}
		for range r.IntN(3) {
			svc.SourceRanges = append(svc.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(r.IntN(3))}), 32))
		}
		slice := &model.Slice{Name: model.Name{Namespace: "shop", Name: "web-1"}, Service: "web", Family: model.IPv4}
		for i := range 1 + r.IntN(6) {
			port := model.ServicePort{Name: fmt.Sprint(i), Protocol: []model.Protocol{model.TCP, model.UDP}[r.IntN(2)], Port: uint16(1 + r.IntN(3))}
			if r.IntN(2) == 0 {
				port.NodePort = uint16(30000 + r.IntN(3))
			}
			svc.Ports = append(svc.Ports, port)
			slice.Ports = append(slice.Ports, model.SlicePort{Name: port.Name, Protocol: port.Protocol, Port: 8080})
		}
		for i := range r.IntN(6) {
			slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), Ready: true, Serving: true})
		}
		list, node := []*model.Slice{slice}, &model.LocalNode{}
		asked, given := DemandOf(svc, list), Demand{}
		for of, n := range asked {
			given[of] = uint32(r.IntN(int(n) + 3))
		}
		want, got := Compile(svc, list, node), compile(svc, list, node, given)
		if reflect.DeepEqual(compile(svc, list, node, asked), want) {
			met["all fits"]++
		}
		restatedCut(&want, asked, given)
		backends := 0
		for i := range got.Ports {
			backends += len(got.Ports[i].Sets.Backends)
			if given[ofBackends] < asked[ofBackends] {
				got.Ports[i].Sets, want.Ports[i].Sets = policy.Sets{}, policy.Sets{}
			}
			for _, d := range []*Desired{&got, &want} {
				if len(d.Ports[i].Frontends) == 0 {
					d.Ports[i].Frontends = nil
					met["none"]++
				}
			}
		}
		if backends > int(given[ofBackends]) || len(got.Ports) != len(want.Ports) || len(got.Ports) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: of %d is given %d: %+v with %d backends, want %+v", seed, asked, given, got, backends, want)
		}
	}
	if met["all fits"] != 3000 || met["none"] < 100 {
		t.Errorf("seed %d: met %v", seed, met)
	}
}
