package reconcile_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/tables"
)

const slowStart = 20 * time.Second

func slow(s *model.Service) { s.SlowStart = slowStart }

// shares returns how many slots lead to each endpoint, by the last number of its address.
func (l *loop) shares(addr string) string {
	l.t.Helper()
	synctest.Wait()
	count := make(map[string]int)
	for _, endpoint := range l.leads(addr) {
		host, _, _ := strings.Cut(endpoint, ":")
		count[host[strings.LastIndex(host, ".")+1:]]++
	}
	return fmt.Sprint(count)
}

// expect waits, and checks the shares.
func (l *loop) expect(when string, after time.Duration, want string) {
	l.t.Helper()
	time.Sleep(after)
	if got := l.shares("10.96.0.1:80"); got != want {
		l.t.Errorf("%s: slots %s, want %s", when, got, want)
	}
}

// writes counts what is written of backends and sets.
type writes struct {
	tables.Store
	count atomic.Int32
}

func (w *writes) PutBackend(id uint32, b tables.Backend) error {
	w.count.Add(1)
	return w.Store.PutBackend(id, b)
}

func (w *writes) PutService(id uint32, s tables.Service) error {
	w.count.Add(1)
	return w.Store.PutService(id, s)
}

// TestSlowStart: an endpoint that becomes ready gets a tenth of its share, and a tenth more at each
// step; those that were there keep theirs. Endpoints that come together are equal.
func TestSlowStart(t *testing.T) {
	held := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		l := start(t, held, asIs, reconcile.Options{MinSyncPeriod: time.Millisecond})
		l.Apply(put(service("a", "10.96.0.1", slow), slice("a-1", "a", "10.0.0.1", "10.0.0.2")))
		l.Synced()
		l.expect("a Service that is new", time.Second, "map[1:1 2:1]")
		l.expect("all have started", slowStart, "map[1:1 2:1]")

		l.Apply(put(slice("a-1", "a", "10.0.0.1", "10.0.0.2", "10.0.0.3")))
		l.expect("another one", 500*time.Millisecond, "map[1:10 2:10 3:1]")
		l.expect("a step later", time.Second, "map[1:5 2:5 3:1]")
		l.Apply(put(slice("a-2", "a", "10.0.0.4")))
		l.expect("yet another one", time.Second, "map[1:10 2:10 3:2 4:1]")
		l.expect("a step of both", time.Second, "map[1:10 2:10 3:3 4:2]")
		l.expect("both have started", slowStart, "map[1:1 2:1 3:1 4:1]")

		gone := slice("a-2", "a", "10.0.0.4")
		gone.Endpoints[0].Ready, gone.Endpoints[0].Serving = false, false
		l.Apply(put(gone))
		l.expect("one is not ready", time.Second, "map[1:1 2:1 3:1]")
		l.Apply(put(slice("a-2", "a", "10.0.0.4")))
		l.expect("it is ready again", 200*time.Millisecond, "map[1:10 2:10 3:10 4:1]")
		l.Apply(put(service("a", "10.96.0.1")))
		l.expect("without slow start", time.Second, "map[1:1 2:1 3:1 4:1]")
		l.Apply(put(service("a", "10.96.0.1", slow)))
		l.expect("with it again", time.Second, "map[1:1 2:1 3:1 4:1]")
		l.Apply(source.Update{DeleteServices: []model.Name{{Namespace: "default", Name: "a"}}})
		l.expect("no Service", time.Hour, "map[]")
		if !l.Oldest().IsZero() {
			t.Errorf("something waits since %s", l.Oldest())
		}
	})
}

// TestSlowStartGoesOn: the next agent finds in the tables how far endpoints have started, writes
// nothing, and goes on from there.
func TestSlowStartGoesOn(t *testing.T) {
	held := newStore(t)
	few := slice("a-1", "a", "10.0.0.1", "10.0.0.2")
	more := slice("a-1", "a", "10.0.0.1", "10.0.0.2", "10.0.0.3")
	synctest.Test(t, func(t *testing.T) {
		l := start(t, held, asIs, reconcile.Options{MinSyncPeriod: time.Millisecond})
		l.Apply(put(service("a", "10.96.0.1", slow), few))
		l.Synced()
		time.Sleep(slowStart)
		l.Apply(put(more))
		l.expect("two steps later", 5*time.Second, "map[1:10 2:10 3:3]")
	})
	synctest.Test(t, func(t *testing.T) {
		counted := new(writes)
		l := start(t, held, func(s tables.Store) tables.Store { counted.Store = s; return counted }, reconcile.Options{MinSyncPeriod: time.Millisecond})
		l.Apply(put(service("a", "10.96.0.1", slow), more))
		l.Synced()
		l.expect("the next agent", time.Second, "map[1:10 2:10 3:3]")
		if n := counted.count.Load(); n != 0 {
			t.Errorf("%d writes at the start", n)
		}
		l.Apply(put(slice("a-2", "a", "10.0.0.4")))
		l.expect("a step later", 2*time.Second, "map[1:5 2:5 3:2 4:1]")
		l.expect("all have started", slowStart, "map[1:1 2:1 3:1 4:1]")
	})
}

// TestSlowStartWeights: shares are of the weights that endpoints have otherwise, however large these
// are, and never none.
func TestSlowStartWeights(t *testing.T) {
	for weights, want := range map[[2]uint8]string{{3, 6}: "map[1:5 2:1]", {255, 255}: "map[1:65025 2:6502]", {1, 0}: "map[1:1]"} {
		held := newStore(t)
		synctest.Test(t, func(t *testing.T) {
			l := start(t, held, asIs, reconcile.Options{MinSyncPeriod: time.Millisecond})
			zoned := func(s *model.Service) {
				slow(s)
				s.ZoneWeights = map[string]uint8{"large": 255}
			}
			first, second := slice("a-1", "a", "10.0.0.1"), slice("a-2", "a", "10.0.0.2")
			first.Weight, second.Weight = &weights[0], &weights[1]
			if weights[0] == 255 {
				first.Endpoints[0].Zone, second.Endpoints[0].Zone = "large", "large"
			}
			l.Apply(put(service("a", "10.96.0.1", zoned), first))
			l.Synced()
			time.Sleep(slowStart)
			l.Apply(put(second))
			l.expect(fmt.Sprint(weights), time.Second, want)
		})
	}
}

// TestSlowStartTogether: however many endpoints become ready at different times, they make one sync a
// step.
func TestSlowStartTogether(t *testing.T) {
	held := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		l := start(t, held, asIs, reconcile.Options{MinSyncPeriod: time.Millisecond})
		l.Apply(put(service("a", "10.96.0.1", slow)))
		l.Synced()
		for i := range 50 {
			time.Sleep(99 * time.Millisecond)
			l.Apply(put(slice(fmt.Sprint("a-", i), "a", fmt.Sprint("10.0.0.", i))))
		}
		synctest.Wait()
		before := len(l.syncs)
		time.Sleep(2 * slowStart)
		synctest.Wait()
		if n := len(l.syncs) - before; n == 0 || n > model.FullShare+1 {
			t.Errorf("%d syncs, want one a step", n)
		}
	})
}

// TestSlowStartFault: where shares do not follow weights, or moving them moves clients, the setting
// is a fault and has no effect.
func TestSlowStartFault(t *testing.T) {
	for _, name := range model.Algorithms() {
		algorithm, err := model.ParseAlgorithm(name)
		if err != nil {
			t.Fatal(err)
		}
		held := newStore(t)
		synctest.Test(t, func(t *testing.T) {
			faults := make(map[model.Name][]model.Fault)
			l := start(t, held, asIs, reconcile.Options{
				MinSyncPeriod: time.Millisecond,
				Faults:        func(service model.Name, list, _ []model.Fault) { faults[service] = list },
			})
			l.Apply(put(service("a", "10.96.0.1", slow, func(s *model.Service) { s.Algorithm = algorithm }), slice("a-1", "a", "10.0.0.1")))
			l.Synced()
			time.Sleep(slowStart)
			synctest.Wait()
			if at := len(faults[model.Name{Namespace: "default", Name: "a"}]); (at == 0) != algorithm.StartsSlowly() {
				t.Errorf("%s: faults %v", name, faults)
			}
		})
	}
}
