package tables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

// ringed is a Service whose ports ask for rings of a size.
func ringed(name model.Name, ports, endpointCount int, size uint32) Desired {
	d := Desired{Name: name}
	for i := range ports {
		d.Ports = append(d.Ports, ServicePort{
			Name:      ServiceName{Port: model.PortName{Service: name, Port: fmt.Sprint(i), Protocol: model.TCP}, Family: model.IPv4},
			Sets:      sets(endpoints(endpointCount), nil),
			Algorithm: model.Maglev,
			RingSize:  size,
		})
	}
	return d
}

// given returns the greatest size of the rings of each Service; 1 is one slot for each
// endpoint.
func given(t *Tables, wants []Desired) map[model.Name]uint32 {
	sizes := make(map[model.Name]uint32)
	for _, d := range wants {
		d.Ports = slices.Clone(d.Ports)
		t.Bound(&d)
		sp := &d.Ports[0]
		sizes[d.Name] = 1
		if sp.Algorithm.Hashes() {
			want := sp.cluster()
			sizes[d.Name] = want.size(want.count())
		}
	}
	return sizes
}

// share returns the Services whose share has changed.
func share(t *Tables) []model.Name {
	changed, _ := t.Share()
	return slices.Collect(maps.Keys(changed))
}

// TestShare: whoever asks for much yields, the same whatever the order is in which Services
// come and go.
func TestShare(t *testing.T) {
	wants := []Desired{
		ringed(model.Name{Namespace: "greedy", Name: "rings"}, 8, 3, 2097143),
		ringed(model.Name{Namespace: "greedy", Name: "small"}, 1, 3, 16381),
		ringed(model.Name{Namespace: "shop", Name: "web"}, 1, 3, 65521),
		ringed(model.Name{Namespace: "large", Name: "one"}, 1, 3, 2097143),
		ringed(model.Name{Namespace: "large", Name: "two"}, 1, 3, 2097143),
	}
	for i := range 12 {
		wants = append(wants, ringed(model.Name{Namespace: fmt.Sprint("tenant-", i), Name: "web"}, 4, 3, 524287))
	}
	var first map[model.Name]uint32
	for try := range 20 {
		tables := New(newMemory(t, Limits{Slots: Limit{Size: 1 << 24}, Backends: Limit{Size: 1 << 21}}))
		rand.Shuffle(len(wants), func(i, j int) { wants[i], wants[j] = wants[j], wants[i] })
		gone := ringed(model.Name{Namespace: "gone", Name: "gone"}, 8, 3, 2097143)
		tables.Want(gone.Name, &gone, Demand{ofBackends: 3})
		for i := range wants {
			tables.Want(wants[i].Name, &wants[i], Demand{ofBackends: 24})
			if try%2 == 0 {
				share(tables)
			}
		}
		tables.Want(gone.Name, nil, Demand{})
		share(tables)
		got := given(tables, wants)
		if first == nil {
			first = got
		} else if !maps.Equal(got, first) {
			t.Fatalf("shares %v, in another order %v", got, first)
		}
		if all := tables.room.shared(); all > 3<<22 {
			t.Errorf("%d slots are shared out, of which %d are reserved", all, 1<<22)
		}
	}
	for name, want := range map[model.Name]uint32{
		{Namespace: "shop", Name: "web"}:     65521,
		{Namespace: "greedy", Name: "small"}: 16381,
		{Namespace: "greedy", Name: "rings"}: 131071,
	} {
		if first[name] != want {
			t.Errorf("%s has rings of %d slots, want %d", name, first[name], want)
		}
	}
}

// TestShareEnds: when those who ask for much are gone, the others get what they ask for and
// are to be applied again.
func TestShareEnds(t *testing.T) {
	tables := New(newMemory(t, Limits{Slots: Limit{Size: 1 << 20}, Backends: Limit{Size: 1 << 21}}))
	a := ringed(model.Name{Namespace: "a", Name: "a"}, 1, 3, 131071)
	tables.Want(a.Name, &a, Demand{ofBackends: 3})
	if changed := share(tables); !slices.Equal(changed, []model.Name{a.Name}) {
		t.Fatalf("changed %v", changed)
	}
	// Endpoints of others leave no room for it.
	plain := Desired{Name: model.Name{Namespace: "b", Name: "b"}}
	tables.Want(plain.Name, &plain, Demand{ofBackends: 1 << 19})
	if changed := share(tables); !slices.Equal(changed, []model.Name{a.Name}) {
		t.Fatalf("without room changed %v", changed)
	}
	if got := given(tables, []Desired{a})[a.Name]; got != 1 {
		t.Errorf("without room the ring has %d slots", got)
	}
	tables.Want(plain.Name, nil, Demand{})
	if changed := share(tables); !slices.Equal(changed, []model.Name{a.Name}) {
		t.Fatalf("with room changed %v", changed)
	}
	if got := given(tables, []Desired{a})[a.Name]; got != 131071 {
		t.Errorf("with room the ring has %d slots", got)
	}
	if changed := share(tables); changed != nil {
		t.Errorf("changed without a change: %v", changed)
	}
}

// TestBoundWeights: weights that ask for more slots than they may take keep their
// proportions, roughly.
func TestBoundWeights(t *testing.T) {
	store := newMemory(t, Limits{Slots: Limit{Size: 1 << 12}, Backends: Limit{Size: 100}, Services: Limit{Size: 10}, Frontends: Limit{Size: 10}})
	tables := New(store)
	d := weighed(model.Random, 255, 254, 1)
	tables.Want(d.Name, &d, Demand{ofBackends: 3})
	share(tables)
	tables.SetBounds(Bounds{SlotsPerService: 600})
	tables.Want(d.Name, &d, Demand{ofBackends: 3})
	share(tables)
	faults := tables.Bound(&d)
	apply(t, tables, d)
	cluster, _ := slotsOfOnly(t, store)
	count := make(map[byte]int)
	for _, b := range cluster {
		count[b]++
	}
	if len(faults) != 1 || len(cluster) > 256 || len(cluster) < 200 || len(count) != 3 || count[cluster[0]] < 100 {
		t.Errorf("%d slots, %v; faults %v", len(cluster), count, faults)
	}
}
