package reconcile_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/wait"
)

// next returns the next sync that brought in a Service.
func (l *loop) next() outcome {
	l.t.Helper()
	for {
		select {
		case s := <-l.syncs:
			if s.Services > 0 {
				return s
			}
		case <-time.After(wait.Limit):
			l.t.Fatalf("no sync within %s", wait.Limit)
		}
	}
}

func balanced(s *model.Service) {
	s.Type, s.ExternalLocal, s.HealthCheckPort = "LoadBalancer", true, 32000
}

func TestChecksFollowEndpointsOfThisNode(t *testing.T) {
	l := start(t, newStore(t), asIs, reconcile.Options{LocalNode: model.LocalNode{Name: "here"}})
	name := model.Name{Namespace: "default", Name: "a"}
	check := func(port uint16, local int) []policy.HealthCheck {
		return []policy.HealthCheck{{Service: name, Family: model.IPv4, Port: port, Local: local}}
	}
	at := func(node string) *model.Slice {
		s := slice("a-1", "a", "10.0.0.1", "10.0.0.2")
		s.Endpoints[0].NodeName = node
		return s
	}
	l.Synced()
	for _, step := range []struct {
		what    string
		update  source.Update
		checks  []policy.HealthCheck
		noLocal int
	}{
		{"without endpoints", put(service("a", "10.96.0.1", balanced)), check(32000, 0), 0},
		{"none on this node", put(at("there")), nil, 1},
		{"one on this node", put(at("here")), check(32000, 1), 0},
		{"nothing new for the check", put(service("a", "10.96.0.1", balanced, func(s *model.Service) { s.AffinitySeconds = 9 })), nil, 0},
		{"gone again", put(at("there")), check(32000, 0), 1},
		{"no check any more", put(service("a", "10.96.0.1")), check(0, 0), 0},
		{"a check again", put(service("a", "10.96.0.1", balanced)), check(32000, 0), 1},
		{"deleted", source.Update{DeleteServices: []model.Name{name}}, check(0, 0), 0},
	} {
		l.Apply(step.update)
		got := l.next()
		if !slices.Equal(got.Checks, step.checks) || got.NoLocal[model.IPv4] != step.noLocal {
			t.Errorf("%s: checks %+v, without local endpoints %+v; want %+v, %d",
				step.what, got.Checks, got.NoLocal, step.checks, step.noLocal)
		}
	}
}

// TestSyncedIsLast: whoever is told of a sync knows what came of it when Synced is called, and
// of nodes and endpoints of UDP only when there is something to tell.
func TestSyncedIsLast(t *testing.T) {
	held := newStore(t)
	told := make(chan string, 100)
	r := reconcile.New(tables.New(held), held, reconcile.Options{
		LocalNode:    model.LocalNode{Name: "here", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}},
		Complete:     func(context.Context) error { return nil },
		Forwarding:   model.DSR,
		HealthChecks: func([]policy.HealthCheck, []netip.Addr) { told <- "checks" },
		Nodes:        func(list []tables.NodeUse) { told <- fmt.Sprint(len(list), " nodes") },
		UDPLeft:      func() { told <- "UDP" },
		Synced:       func(reconcile.Sync) { told <- "synced" },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	expect := func(want ...string) {
		t.Helper()
		for _, w := range want {
			select {
			case got := <-told:
				if got != w {
					t.Fatalf("told %q, want %q", got, w)
				}
			case <-time.After(wait.Limit):
				t.Fatalf("nobody is told %q", w)
			}
		}
	}
	r.Apply(put(service("a", "10.96.0.1"), on("a", "n1"), node("n1", "192.0.2.1")))
	r.Synced()
	expect("checks", "2 nodes", "UDP", "synced")
	r.Apply(put(service("b", "10.96.0.2")))
	expect("checks", "synced")
}

func TestTriggersAreReportedOnce(t *testing.T) {
	l := start(t, newStore(t), asIs, reconcile.Options{})
	soon := time.Now().Add(time.Second) // by the clock of another machine
	at := func(when time.Time, addrs ...string) *model.Slice {
		s := slice("a-1", "a", addrs...)
		s.Triggered = when
		return s
	}
	l.Apply(put(service("a", "10.96.0.1"), at(soon, "10.0.0.1")))
	l.Synced()
	for _, step := range []struct {
		what   string
		update source.Update
		want   []trigger
	}{
		{"found at the start", put(service("b", "10.96.0.2")), nil},
		{"from before the start", put(at(time.Now().Add(-time.Hour), "10.0.0.2")), nil},
		{"a change", put(at(soon, "10.0.0.3")), []trigger{{model.IPv4, soon}}},
		{"yet to come", put(at(time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC), "10.0.0.6")), nil},
		{"another Service", put(service("c", "10.96.0.3")), nil},
		{"two at once", put(at(soon, "10.0.0.4"), at(soon.Add(1), "10.0.0.5")), []trigger{
			{model.IPv4, soon}, {model.IPv4, soon.Add(1)},
		}},
		{"deleted", source.Update{DeleteSlices: []model.Name{{Namespace: "default", Name: "a-1"}}}, nil},
	} {
		if step.what == "found at the start" {
			if got := l.next().Triggers; got != nil {
				t.Errorf("at the start: %v", got)
			}
		}
		l.Apply(step.update)
		if got := l.next().Triggers; !slices.Equal(got, step.want) {
			t.Errorf("%s: %v, want %v", step.what, got, step.want)
		}
	}
}

// TestOldest: an error counts from when the change came in until it is overcome; what
// is a Service's own fault does not.
func TestOldest(t *testing.T) {
	broken := &stubborn{refuse: netip.MustParseAddr("10.96.0.1")}
	broken.times.Store(6)
	l := start(t, newStore(t), func(s tables.Store) tables.Store { broken.Store = s; return broken }, reconcile.Options{})
	if !l.Oldest().IsZero() {
		t.Errorf("oldest is %s before any change", l.Oldest())
	}
	l.Synced()
	before := time.Now()
	l.Apply(put(service("a", "10.96.0.1")))
	after := time.Now()
	for stuck := true; stuck; {
		s := l.next()
		stuck = s.Stuck
		if oldest := l.Oldest(); stuck && (oldest.Before(before) || oldest.After(after)) {
			t.Errorf("oldest is %s, want one from %s to %s", oldest, before, after)
		}
	}
	if !l.Oldest().IsZero() || broken.times.Load() > 0 {
		t.Errorf("oldest is %s when all is in the kernel, %d failures left", l.Oldest(), broken.times.Load())
	}

	external := func(s *model.Service) { s.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")} }
	l.Apply(put(service("b", "10.96.0.2", external), service("c", "10.96.0.3", external)))
	if s := l.next(); s.Pending != 1 || s.Stuck || !l.Oldest().IsZero() {
		t.Errorf("a clash: %d pending, stuck is %v, oldest is %s; want 1, false, none", s.Pending, s.Stuck, l.Oldest())
	}
}

func TestQueueCounts(t *testing.T) {
	l := start(t, newStore(t), asIs, reconcile.Options{})
	l.Apply(put(service("a", "10.96.0.1"), slice("a-1", "a", "10.0.0.1"), slice("a-2", "a", "10.0.0.2")))
	l.Apply(source.Update{LocalNode: &model.LocalNode{Zone: "z"}})
	got := l.Queue()
	if got.Services != 1 || got.ServicesTotal != 1 || got.Slices != 2 || got.SlicesTotal != 2 || time.Since(got.Last) > time.Minute {
		t.Errorf("before the source is complete: %+v", got)
	}
	l.Synced()
	l.next()
	if got := l.Queue(); got.Services != 0 || got.ServicesTotal != 1 || got.Slices != 0 || got.SlicesTotal != 2 {
		t.Errorf("afterwards: %+v", got)
	}
}
