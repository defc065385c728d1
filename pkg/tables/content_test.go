package tables_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/maglev"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/pkg/tables/tablestest"
)

// weighed is onePort with weights for the endpoints, all in both sets.
func weighed(algorithm model.Algorithm, weights ...uint16) tables.Desired {
	all := endpoints(len(weights))
	d := onePort("a", vip(1), tables.FrontendClusterIP, all, all)
	sp := &d.Ports[0]
	sp.Algorithm = algorithm
	for i, w := range weights {
		sp.Sets.Backends[i].Weight = w
	}
	return d
}

// slotsOfOnly returns the last octets of the addresses in the slots of the only
// Service's sets.
func slotsOfOnly(t *testing.T, m *tablestest.Store) (cluster, local []byte) {
	t.Helper()
	if len(m.Services) != 1 {
		t.Fatalf("%d services", len(m.Services))
	}
	octets := func(set tables.Set) (list []byte) {
		for i := range set.Count {
			list = append(list, m.Backends[m.Slots[set.First+i]].AddrPort.Addr().As4()[3])
		}
		return list
	}
	return octets(m.Services[0].Cluster), octets(m.Services[0].Local)
}

// TestLayouts: weights take slots, those of the local set only where a frontend leads to it.
func TestLayouts(t *testing.T) {
	for _, tt := range []struct {
		algorithm model.Algorithm
		weights   []uint16
		want      string
	}{
		{model.Random, []uint16{1, 1, 1}, "[0 1 2]"},
		{model.Random, []uint16{2, 1, 3}, "[0 0 1 2 2 2]"},
		{model.Random, []uint16{20, 10, 30}, "[0 0 1 2 2 2]"},
		{model.Random, []uint16{2, 0, 1}, "[0 0 2]"},
		{model.RoundRobin, []uint16{2, 1, 3}, "[0 1 2]"},
		{model.RoundRobin, []uint16{2, 0, 3}, "[0 2]"},
		{model.LeastConn, []uint16{2, 0, 3}, "[0 2]"},
		{model.WeightedLeastConn, []uint16{2, 0, 3}, "[0 2]"},
		{model.WeightedRoundRobin, []uint16{5, 1, 1}, "[0 0 1 0 2 0 0]"},
		{model.WeightedRoundRobin, []uint16{7, 7, 0}, "[0 1]"},
	} {
		for _, used := range []bool{false, true} {
			d := weighed(tt.algorithm, tt.weights...)
			if used {
				d.Ports[0].Frontends[0].Flags = tables.InternalLocal
			}
			store := tablestest.New(t, tablestest.Roomy)
			apply(t, tables.New(store), d)
			cluster, local := slotsOfOnly(t, store)
			if got := fmt.Sprint(cluster); got != tt.want {
				t.Errorf("%s %v: %s, want %s", tt.algorithm, tt.weights, got, tt.want)
			}
			if !used {
				slices.Sort(cluster)
				cluster = slices.Compact(cluster)
			}
			if !slices.Equal(cluster, local) {
				t.Errorf("%s %v, local set used %t: it is %v", tt.algorithm, tt.weights, used, local)
			}
		}
	}
}

// TestRings: a set of a hashing algorithm is the ring of pkg/maglev, the local one
// only where a frontend leads to it.
func TestRings(t *testing.T) {
	for _, algorithm := range []model.Algorithm{model.SourceHash, model.DestinationHash, model.Maglev} {
		for _, used := range []bool{false, true} {
			for _, prepared := range []bool{false, true} {
				d := weighed(algorithm, 3, 1, 0, 2)
				if used {
					d.Ports[0].Frontends[0].Flags = tables.InternalLocal
				}
				store := tablestest.New(t, tablestest.Roomy)
				tbl := tables.New(store)
				if prepared {
					tbl.Prepare([]tables.Desired{d})
					if d.Ports[0].Rings()[0] == nil || d.Ports[0].Rings()[1] != nil != used {
						t.Fatalf("%s: prepared %d and %d slots", algorithm, len(d.Ports[0].Rings()[0]), len(d.Ports[0].Rings()[1]))
					}
				}
				apply(t, tbl, d)
				var list []maglev.Backend
				for _, b := range d.Ports[0].Sets.Backends {
					list = append(list, maglev.Backend{AddrPort: b.AddrPort, Weight: uint32(b.Weight)})
				}
				var want []byte
				for _, b := range maglev.Ring(16381, list) {
					want = append(want, byte(b))
				}
				cluster, local := slotsOfOnly(t, store)
				if !slices.Equal(cluster, want) {
					t.Errorf("%s, prepared %t: the slots are not the ring", algorithm, prepared)
				}
				if !used {
					want = []byte{0, 1, 3}
				}
				if !slices.Equal(local, want) {
					t.Errorf("%s, local set used %t: %d slots", algorithm, used, len(local))
				}
				if store.Services[0].Algorithm != algorithm {
					t.Errorf("the algorithm is %s", store.Services[0].Algorithm)
				}
			}
		}
	}
}

// TestRingIDs: neither ids nor the order in which endpoints came change a ring.
func TestRingIDs(t *testing.T) {
	all := endpoints(12)
	with := func(addrs []netip.AddrPort) tables.Desired {
		d := onePort("a", vip(1), tables.FrontendClusterIP, addrs, nil)
		d.Ports[0].Algorithm, d.Ports[0].RingSize = model.Maglev, 1021
		return d
	}
	store := tablestest.New(t, tablestest.Roomy)
	apply(t, tables.New(store), with(all))
	want, _ := slotsOfOnly(t, store)

	store = tablestest.New(t, tablestest.Roomy)
	tbl := tables.New(store)
	for _, some := range [][]netip.AddrPort{all[6:], all[3:9], all[:2], all[1:11], all} {
		apply(t, tbl, with(some))
		grace(store, tbl)
	}
	got, _ := slotsOfOnly(t, store)
	if !slices.Equal(got, want) {
		t.Error("the ring depends on what was there before")
	}
}

// TestPrepareUnchanged: a ring is made only when its set has changed.
func TestPrepareUnchanged(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	tbl := tables.New(store)
	apply(t, tbl, weighed(model.Maglev, 1, 2, 3))
	for _, tt := range []struct {
		name    string
		desired tables.Desired
		made    bool
	}{
		{"nothing", weighed(model.Maglev, 1, 2, 3), false},
		{"another hash", weighed(model.SourceHash, 1, 2, 3), false},
		{"conditions", func() tables.Desired {
			d := weighed(model.Maglev, 1, 2, 3)
			d.Ports[0].Sets.Backends[0].Terminating = true
			return d
		}(), false},
		{"one without a weight more", weighed(model.Maglev, 1, 2, 3, 0), false},
		{"a weight", weighed(model.Maglev, 1, 2, 4), true},
		{"one more", weighed(model.Maglev, 1, 2, 3, 1), true},
	} {
		tbl.Prepare([]tables.Desired{tt.desired})
		if made := tt.desired.Ports[0].Rings()[0] != nil; made != tt.made {
			t.Errorf("changed: %s; made a ring: %t", tt.name, made)
		}
	}
	before := store.Services[0].Cluster
	apply(t, tbl, weighed(model.SourceHash, 1, 2, 3, 0))
	if store.Services[0].Cluster != before {
		t.Error("a ring that did not change was written again")
	}
}

// TestNoWeight: who loses its weight keeps what it serves, and gets a new
// generation by neither losing nor regaining it.
func TestNoWeight(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	tbl := tables.New(store)
	apply(t, tbl, weighed(model.Random, 1, 1))
	id, b := store.BackendAt(endpoints(2)[1])
	apply(t, tbl, weighed(model.Random, 1, 0))
	if got := store.Backends[id]; !store.Valid(id, b.Generation, tables.InCluster) || got.State&tables.NoNew == 0 || got.Weight != 0 {
		t.Errorf("without a weight it is %+v", got)
	}
	none := weighed(model.Random, 0, 0)
	none.Ports[0].Sets.Cluster, none.Ports[0].Sets.Local = policy.Reject, policy.Reject
	apply(t, tbl, none)
	if got := store.Services[0].Cluster; got != (tables.Set{Kind: policy.Reject}) {
		t.Errorf("the set of no weight is %+v", got)
	}
	if !store.Valid(id, b.Generation, tables.InCluster) {
		t.Error("void when all lost their weight")
	}
	apply(t, tbl, weighed(model.Random, 1, 5))
	if got := store.Backends[id]; !store.Valid(id, b.Generation, tables.InCluster) || got.State&tables.NoNew != 0 || got.Weight != 5 {
		t.Errorf("with a weight again it is %+v", got)
	}
}

// TestRingDoesNotFit: endpoints are served without the ring, which is tried again.
func TestRingDoesNotFit(t *testing.T) {
	limits := tablestest.Roomy
	limits.Slots.Size = 1024
	store := tablestest.New(t, limits)
	tbl := tables.New(store)
	d := weighed(model.Maglev, 1, 1, 1)
	if _, err := tbl.Apply(d); !errors.Is(err, tables.ErrFull) {
		t.Fatalf("error %v", err)
	}
	if got, _ := slotsOfOnly(t, store); !slices.Equal(got, []byte{0, 1, 2}) {
		t.Errorf("slots %v", got)
	}
	d.Ports[0].RingSize = 251
	apply(t, tbl, d)
	grace(store, tbl)
	apply(t, tbl, d)
	if got, _ := slotsOfOnly(t, store); len(got) != 251 {
		t.Errorf("%d slots", len(got))
	}
	before := maps.Clone(store.Slots)
	tbl = restored(store)
	apply(t, tbl, d)
	if !maps.Equal(store.Slots, before) || !tbl.Retire().Empty() {
		t.Error("a restart wrote the ring again")
	}
}
