package main

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/pkg/tables/tablestest"
)

// TestTablesMendedWithinAMinute: an entry that somebody changes right after it was looked at is as before within
// a minute, where the looks themselves take no time.
func TestTablesMendedWithinAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := tablestest.New(t, tablestest.Roomy)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var damaged, mended time.Time
		r := reconcile.New(tables.New(store), store, reconcile.Options{
			LocalNode:   model.LocalNode{Name: "n"},
			CheckPeriod: checkPeriod,
			Complete:    func(context.Context) error { return nil },
			Checked: func(c reconcile.Checked) { // in the loop, so that nobody else uses the store
				if damaged.IsZero() {
					clear(store.Frontends)
					damaged = time.Now()
				} else if mended = time.Now(); len(c.Found) == 0 || len(store.Frontends) == 0 {
					t.Errorf("the next check has found %v and left %v", c.Found, store.Frontends)
				}
				if !mended.IsZero() {
					cancel()
				}
			},
		})
		name := model.Name{Namespace: "ns", Name: "web"}
		r.Apply(source.Update{PutServices: []*model.Service{{
			Name: name, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
		}}})
		r.Synced()
		if err := r.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if took := mended.Sub(damaged); took > time.Minute {
			t.Errorf("mended after %s", took)
		}
	})
}
