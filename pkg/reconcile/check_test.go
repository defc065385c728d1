package reconcile

import (
	"context"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/pkg/tables/tablestest"
	"github.com/beeline-lb/beeline/tests/wait"
)

// TestChecksMend: what somebody changes in the store is as before after a check, of which the caller
// is told, also where that takes another sync.
func TestChecksMend(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	var want map[tables.ServicePortName]tablestest.PortView
	var found []tables.Difference
	r := New(tables.New(store), store, Options{
		LocalNode:   model.LocalNode{Name: "n"},
		CheckPeriod: time.Millisecond,
		Complete:    func(context.Context) error { return nil },
		Checked: func(c Checked) { // in the loop, so that nobody else uses the store
			switch {
			case c.Err != nil:
				t.Error(c.Err)
				cancel()
			case want == nil:
				if want = store.View(); len(c.Found) > 0 {
					t.Errorf("found %v before the damage", c.Found)
				}
				damage(store)
			case len(c.Found) > 0:
				found = append(found, c.Found...)
			case reflect.DeepEqual(store.View(), want) && len(store.Frontends) == 2:
				cancel()
			}
		},
	})
	name := model.Name{Namespace: "ns", Name: "web"}
	r.Apply(source.Update{
		PutServices: []*model.Service{{
			Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
		}},
		PutSlices: []*model.Slice{{
			Name: name, Service: name.Name, Family: model.IPv4, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}},
			Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr("10.1.0.1"), Ready: true, Serving: true}},
		}},
	})
	r.Synced()
	if err := r.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if len(found) != 2 {
		t.Errorf("found %v; want slots and a frontend", found)
	}
	if got := store.View(); !reflect.DeepEqual(got, want) || len(store.Frontends) != 2 {
		t.Errorf("afterwards %v, %v; want %v", got, store.Frontends, want)
	}
}

// damage changes the slots of Service ports and removes their frontends.
func damage(store *tablestest.Store) {
	for _, service := range store.Services {
		store.Slots[service.Cluster.First] = 99
	}
	for key := range store.Frontends {
		if key.Port != 0 {
			delete(store.Frontends, key)
		}
	}
}

// TestWaiting: who asks is told since when a change waits, and when none does any more.
func TestWaiting(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	told := make(chan time.Time, 100)
	ctx, cancel := context.WithCancel(t.Context())
	r := New(tables.New(store), store, Options{
		LocalNode: model.LocalNode{Name: "n"},
		Complete:  func(context.Context) error { return nil },
		Waiting:   func(since time.Time) { told <- since },
	})
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	r.Synced()
	before := time.Now()
	for _, u := range []source.Update{
		{PutServices: []*model.Service{{Name: model.Name{Namespace: "ns", Name: "web"}}}},
		{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}},
		{DeleteServices: []model.Name{{Namespace: "ns", Name: "web"}}},
	} {
		r.Apply(u)
		if since := <-told; since.Before(before) {
			t.Errorf("told %s, want a time after %s", since, before)
		}
		if since := <-told; !since.IsZero() {
			t.Errorf("told %s, want that nothing waits", since)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	// The source may still be at work, and the maps of who asks be gone.
	r.Apply(source.Update{DeleteServices: []model.Name{{Namespace: "ns", Name: "web"}}})
	if len(told) > 0 {
		t.Errorf("told %s after the end", <-told)
	}
}
