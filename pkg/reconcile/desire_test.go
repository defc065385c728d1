package reconcile_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/maglev"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/tests/wait"
)

// TestDefaultAlgorithm: a Service that names no algorithm has the configured one, more
// Services at once than are compiled ahead.
func TestDefaultAlgorithm(t *testing.T) {
	const services = 150
	l := start(t, newStore(t), asIs, reconcile.Options{Algorithm: model.Maglev})
	addrs := []string{"10.1.0.1", "10.1.0.2", "10.1.0.3"}
	ip := func(i int) string { return fmt.Sprintf("10.96.1.%d", i) }
	for i := range services {
		name := fmt.Sprint("svc-", i)
		l.Apply(put(service(name, ip(i), func(s *model.Service) {
			s.RingSize = 509
			if i%2 == 1 {
				s.Algorithm = model.RoundRobin
			}
		}), slice(name+"-1", name, addrs...)))
	}
	l.Synced()
	var turns, ring []string
	var list []maglev.Backend
	for _, a := range addrs {
		turns = append(turns, a+":8080")
		list = append(list, maglev.Backend{AddrPort: netip.MustParseAddrPort(a + ":8080"), Weight: 1})
	}
	for _, b := range maglev.Ring(509, list) {
		ring = append(ring, turns[b])
	}
	for i := range services {
		want := ring
		if i%2 == 1 {
			want = turns
		}
		l.eventually(ip(i)+":80", want...)
	}
}

// TestLocalityRefused: a Service that asks for an algorithm whose code is not loaded has a fault,
// and the default counts.
func TestLocalityRefused(t *testing.T) {
	told := make(chan []model.Fault, 10)
	l := start(t, newStore(t), asIs, reconcile.Options{
		Algorithm:       model.LeastConn,
		LocalityRefused: "cannot be had",
		Faults:          func(_ model.Name, faults, _ []model.Fault) { told <- faults },
	})
	l.Apply(put(service("a", "10.96.0.1", func(s *model.Service) { s.Algorithm = model.Locality }),
		slice("a-1", "a", "10.1.0.1")))
	l.Synced()
	have, err := l.store.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for id, n := range have.Names {
		if got := have.Services[id].Algorithm; got != model.LeastConn {
			t.Errorf("the algorithm of %v is %s, want %s", n.Port, got, model.LeastConn)
		}
	}
	want := model.Fault{Setting: model.AnnotationAlgorithm, Reason: `"lblc" cannot be had`}
	if got := <-told; len(got) != 1 || got[0] != want {
		t.Errorf("faults are %v, want %v", got, want)
	}
}

// TestFaults: wrong settings of a Service and its slices are told when they change, which of them are new,
// and that they are gone.
func TestFaults(t *testing.T) {
	told := make(chan [2][]model.Fault, 10)
	l := start(t, newStore(t), asIs, reconcile.Options{Faults: func(name model.Name, all, added []model.Fault) {
		if name.Name != "web" {
			t.Errorf("faults of %s: %v", name, all)
		}
		told <- [...][]model.Fault{all, added}
	}})
	ofService := model.Fault{Setting: "a", Reason: "wrong"}
	ofSlice := model.Fault{Object: "EndpointSlice web-2", Setting: "b", Reason: "wrong"}
	wrong := func(s *model.Service) { s.Faults = []model.Fault{ofService} }
	bad := slice("web-2", "web", "10.1.0.2")
	bad.Faults = []model.Fault{ofSlice}
	expect := func(want, added []model.Fault) {
		t.Helper()
		select {
		case got := <-told:
			if !slices.Equal(got[0], want) || !slices.Equal(got[1], added) {
				t.Errorf("faults %v, want %v; new are %v, want %v", got[0], want, got[1], added)
			}
		case <-time.After(wait.Limit):
			t.Fatalf("nobody tells of %v", want)
		}
	}
	l.Apply(put(service("web", "10.96.0.1", wrong), slice("web-1", "web", "10.1.0.1"), bad, service("dns", "10.96.0.2")))
	l.Synced()
	both := []model.Fault{ofService, ofSlice}
	expect(both, both)
	l.Apply(put(slice("web-1", "web", "10.1.0.3")))
	l.eventually("10.96.0.1:80", "10.1.0.2:8080", "10.1.0.3:8080")
	l.Apply(put(service("web", "10.96.0.1")))
	expect(both[1:], nil)
	l.Apply(put(service("web", "10.96.0.1", wrong)))
	expect(both, both[:1])
	l.Apply(put(service("web", "10.96.0.1"), slice("web-2", "web", "10.1.0.2")))
	expect(nil, nil)
	if len(told) > 0 {
		t.Errorf("told more: %v", <-told)
	}
}
