package tables_test

import (
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/pkg/tables/tablestest"
)

// serving is a Service with these endpoints in both sets, and others that serve in none.
func serving(in, none []netip.AddrPort) tables.Desired {
	d := onePort("a", vip(1), tables.FrontendClusterIP, in, in)
	for _, addr := range none {
		d.Ports[0].Sets.Backends = append(d.Ports[0].Sets.Backends, policy.Backend{AddrPort: addr, Serving: true, Terminating: true, Weight: 1})
	}
	return d
}

// TestServesInNoSet: an endpoint that has left its sets keeps what goes to it as long as it serves,
// also with a new agent, and gets no new connections of clients that it had. Its id is another's
// only after that, and a grace period.
func TestServesInNoSet(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	tbl := tables.New(store)
	all := endpoints(3)
	in, leaves := all[:1], all[1:2]
	apply(t, tbl, serving(all[:2], nil))
	id, b := store.BackendAt(leaves[0])
	want := func(what string, keeps, affinity bool) {
		t.Helper()
		if got := store.Serving(id, b.Generation); got != keeps {
			t.Errorf("%s: it keeps what goes to it: %t, want %t", what, got, keeps)
		}
		if got := store.Valid(id, b.Generation, membership); got != affinity {
			t.Errorf("%s: it is remembered for new connections: %t, want %t", what, got, affinity)
		}
	}
	want("in the sets", true, true)
	for range 3 {
		apply(t, tbl, serving(in, leaves))
		want("out of the sets", true, false)
		store.Barrier()
		tbl = restored(store)
		before := store.Writes
		apply(t, tbl, serving(in, leaves))
		if n := store.Writes - before; n != 0 {
			t.Errorf("a restart makes %d writes", n)
		}
		want("after a restart", true, false)
		apply(t, tbl, serving(all[:2], nil))
		want("back", true, false)
	}
	apply(t, tbl, serving(in, leaves))
	apply(t, tbl, serving(in, nil))
	want("gone", false, false)
	apply(t, tbl, serving(all, nil))
	want("come back after that", false, false)
}

// TestServesWithoutSet: an endpoint that has been in no set takes no id.
func TestServesWithoutSet(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	tbl := tables.New(store)
	all := endpoints(3)
	apply(t, tbl, serving(all[:1], all[1:]))
	if used := tbl.Usage()[1].Used; used != 1 {
		t.Errorf("%d backends are used, want 1", used)
	}
}

// TestServesBounded: endpoints in no set are the first that a Service gives up which gets less room.
func TestServesBounded(t *testing.T) {
	limits := tablestest.Roomy
	limits.Backends.Size = 1 << 13
	store := tablestest.New(t, limits)
	tbl := tables.New(store)
	svc := &model.Service{
		Name:       named("a"),
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports:      []model.ServicePort{{Protocol: model.UDP, Port: 53}},
	}
	slice := &model.Slice{
		Name: named("a-1"), Service: "a", Family: model.IPv4, Ports: []model.SlicePort{{Protocol: model.UDP, Port: 8080}},
	}
	const ready = 700
	for i, addr := range endpoints(1100) {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{
			Addr: addr.Addr(), Ready: i >= 1100-ready, Serving: true, Terminating: i < 1100-ready,
		})
	}
	d := tbl.CompileAsk(svc, []*model.Slice{slice}, &model.LocalNode{})
	members, kept := 0, 0
	for _, b := range d.Ports[0].Sets.Backends {
		if b.InSet() {
			members++
		} else {
			kept++
		}
	}
	if members != ready || kept != 1024-ready {
		t.Errorf("%d in sets and %d in none, want %d and %d", members, kept, ready, 1024-ready)
	}
}
