package tables_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/pkg/tables/tablestest"
)

// ringed is a Service whose ports ask for rings of a size.
func ringed(name model.Name, ports, endpointCount int, size uint32) tables.Desired {
	d := tables.Desired{Name: name}
	for i := range ports {
		d.Ports = append(d.Ports, tables.ServicePort{
			Name:      tables.ServiceName{Port: model.PortName{Service: name, Port: fmt.Sprint(i), Protocol: model.TCP}, Family: model.IPv4},
			Sets:      sets(endpoints(endpointCount), nil),
			Algorithm: model.Maglev,
			RingSize:  size,
		})
	}
	return d
}

// given returns the greatest size of the rings of each Service; 1 is one slot for each
// endpoint.
func given(t *tables.Tables, wants []tables.Desired) map[model.Name]uint32 {
	sizes := make(map[model.Name]uint32)
	for _, d := range wants {
		d.Ports = slices.Clone(d.Ports)
		t.Bound(&d)
		sp := &d.Ports[0]
		sizes[d.Name] = 1
		if sp.Algorithm.Hashes() {
			sizes[d.Name] = sp.ClusterSize()
		}
	}
	return sizes
}

// share returns the Services whose share has changed.
func share(t *tables.Tables) []model.Name {
	changed, _ := t.Share()
	return slices.Collect(maps.Keys(changed))
}

// TestShare: whoever asks for much yields, the same whatever the order is in which Services
// come and go.
func TestShare(t *testing.T) {
	wants := []tables.Desired{
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
		tbl := tables.New(tablestest.New(t, tables.Limits{Slots: tables.Limit{Size: 1 << 24}, Backends: tables.Limit{Size: 1 << 21}}))
		rand.Shuffle(len(wants), func(i, j int) { wants[i], wants[j] = wants[j], wants[i] })
		gone := ringed(model.Name{Namespace: "gone", Name: "gone"}, 8, 3, 2097143)
		tbl.Want(gone.Name, &gone, tables.Demand{tables.OfBackends: 3})
		for i := range wants {
			tbl.Want(wants[i].Name, &wants[i], tables.Demand{tables.OfBackends: 24})
			if try%2 == 0 {
				share(tbl)
			}
		}
		tbl.Want(gone.Name, nil, tables.Demand{})
		share(tbl)
		got := given(tbl, wants)
		if first == nil {
			first = got
		} else if !maps.Equal(got, first) {
			t.Fatalf("shares %v, in another order %v", got, first)
		}
		if all := tbl.SharedSlots(); all > 3<<22 {
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

// TestShareOnEachNode: nodes with endpoints of a Service and others give it the same, and have the same fault.
func TestShareOnEachNode(t *testing.T) {
	all := endpoints(3)
	for _, tt := range []struct {
		name  string
		port  tables.ServicePort // with its algorithm and size
		flags tables.FrontendFlags
		want  int // slots of the cluster set
		fault bool
	}{
		{"a ring of a Local Service", tables.ServicePort{Algorithm: model.Maglev, RingSize: 131071}, tables.ExternalLocal, 65521, true},
		{"a ring that fits beside that of a local set", tables.ServicePort{Algorithm: model.Maglev, RingSize: 65521}, tables.ExternalLocal, 65521, false},
		{"a ring of a Service without a local one", tables.ServicePort{Algorithm: model.Maglev, RingSize: 131071}, 0, 131071, false},
		{"weights of a Local Service", tables.ServicePort{Algorithm: model.WeightedRoundRobin}, tables.InternalLocal, 65533, true},
		{"weights of a Service without a local set", tables.ServicePort{Algorithm: model.WeightedRoundRobin}, 0, 131071, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var reasons []string
			for _, local := range [][]netip.AddrPort{nil, all[:1], all} {
				store := tablestest.New(t, tables.Limits{Slots: tables.Limit{Size: 1 << 20}, Backends: tables.Limit{Size: 100}, Services: tables.Limit{Size: 10}, Frontends: tables.Limit{Size: 10}})
				tbl := tables.New(store)
				d := weighed(tt.port.Algorithm)
				sp := &d.Ports[0]
				sp.RingSize, sp.Sets = tt.port.RingSize, sets(all, local)
				for i := range sp.Frontends {
					sp.Frontends[i].Flags = tt.flags
				}
				for i := range all {
					sp.Sets.Backends[i].Weight = uint16(43690 + i%2)
				}
				tbl.Want(d.Name, &d, tables.Demand{tables.OfBackends: 3})
				share(tbl)
				faults := tbl.Bound(&d)
				apply(t, tbl, d)
				if cluster, _ := slotsOfOnly(t, store); len(cluster) != tt.want || (len(faults) > 0) != tt.fault {
					t.Errorf("with %d of the endpoints on the node the cluster set has %d slots, want %d; faults %v", len(local), len(cluster), tt.want, faults)
				}
				for _, f := range faults {
					reasons = append(reasons, f.Reason)
				}
			}
			if len(slices.Compact(reasons)) > 1 {
				t.Errorf("nodes differ in their faults: %q", reasons)
			}
		})
	}
}

// TestShareEnds: when those who ask for much are gone, the others get what they ask for and
// are to be applied again.
func TestShareEnds(t *testing.T) {
	tbl := tables.New(tablestest.New(t, tables.Limits{Slots: tables.Limit{Size: 1 << 20}, Backends: tables.Limit{Size: 1 << 21}}))
	a := ringed(model.Name{Namespace: "a", Name: "a"}, 1, 3, 131071)
	tbl.Want(a.Name, &a, tables.Demand{tables.OfBackends: 3})
	if changed := share(tbl); !slices.Equal(changed, []model.Name{a.Name}) {
		t.Fatalf("changed %v", changed)
	}
	// Endpoints of others leave no room for it.
	plain := tables.Desired{Name: model.Name{Namespace: "b", Name: "b"}}
	tbl.Want(plain.Name, &plain, tables.Demand{tables.OfBackends: 1 << 19})
	if changed := share(tbl); !slices.Equal(changed, []model.Name{a.Name}) {
		t.Fatalf("without room changed %v", changed)
	}
	if got := given(tbl, []tables.Desired{a})[a.Name]; got != 1 {
		t.Errorf("without room the ring has %d slots", got)
	}
	tbl.Want(plain.Name, nil, tables.Demand{})
	if changed := share(tbl); !slices.Equal(changed, []model.Name{a.Name}) {
		t.Fatalf("with room changed %v", changed)
	}
	if got := given(tbl, []tables.Desired{a})[a.Name]; got != 131071 {
		t.Errorf("with room the ring has %d slots", got)
	}
	if changed := share(tbl); changed != nil {
		t.Errorf("changed without a change: %v", changed)
	}
}

// TestBoundWeights: weights that ask for more slots than they may take keep their
// proportions, roughly.
func TestBoundWeights(t *testing.T) {
	store := tablestest.New(t, tables.Limits{Slots: tables.Limit{Size: 1 << 12}, Backends: tables.Limit{Size: 100}, Services: tables.Limit{Size: 10}, Frontends: tables.Limit{Size: 10}})
	tbl := tables.New(store)
	d := weighed(model.Random, 255, 254, 1)
	tbl.Want(d.Name, &d, tables.Demand{tables.OfBackends: 3})
	share(tbl)
	tbl.SetBounds(tables.Bounds{SlotsPerService: 400})
	tbl.Want(d.Name, &d, tables.Demand{tables.OfBackends: 3})
	share(tbl)
	faults := tbl.Bound(&d)
	apply(t, tbl, d)
	cluster, _ := slotsOfOnly(t, store)
	count := make(map[byte]int)
	for _, b := range cluster {
		count[b]++
	}
	if len(faults) != 1 || len(cluster) > 256 || len(cluster) < 200 || len(count) != 3 || count[cluster[0]] < 100 {
		t.Errorf("%d slots, %v; faults %v", len(cluster), count, faults)
	}
}
