package reconcile_test

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// TestBackoffIsPerService: an address that two Services want for ever does not make a
// passing error of a third one last.
func TestBackoffIsPerService(t *testing.T) {
	held := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		broken := &stubborn{refuse: netip.MustParseAddr("10.96.0.3")}
		l := start(t, held, func(s tables.Store) tables.Store { broken.Store = s; return broken }, reconcile.Options{})
		external := func(s *model.Service) { s.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")} }
		l.Apply(put(
			service("a", "10.96.0.1", external), slice("a-1", "a", "10.0.0.1"),
			service("b", "10.96.0.2", external), slice("b-1", "b", "10.0.0.2"),
		))
		l.Synced()
		time.Sleep(10 * time.Minute)
		broken.times.Store(2)
		begin := time.Now()
		l.Apply(put(service("c", "10.96.0.3"), slice("c-1", "c", "10.0.0.3")))
		l.eventually("10.96.0.3:80", "10.0.0.3:8080")
		if took := time.Since(begin); took > time.Second {
			t.Errorf("c is served after %s", took)
		}
	})
}

// TestBackoffAfterClash: however often a Service has been tried that lacks only another one's address, what
// fails then is tried again at once.
func TestBackoffAfterClash(t *testing.T) {
	const changes = 10
	held := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		broken := &stubborn{refuse: netip.MustParseAddr("10.96.0.3")}
		var tries atomic.Int32
		l := start(t, held, func(s tables.Store) tables.Store { broken.Store = s; return broken }, reconcile.Options{
			Failed: func(_ model.Name, f *reconcile.Failure) { tries.Store(int32(f.Tries)) },
		})
		l.Apply(put(service("a", "10.96.0.1", external("192.0.2.1"), createdAt(1)), slice("a-1", "a", "10.0.0.1")))
		l.Synced()
		l.applied()
		for i := range changes {
			l.Apply(put(service("b", "10.96.0.2", external("192.0.2.1"), createdAt(2)), slice("b-1", "b", fmt.Sprintf("10.0.1.%d", i))))
			l.applied()
		}
		if n := tries.Load(); n != changes {
			t.Errorf("%d tries are told of, want %d", n, changes)
		}
		broken.times.Store(2)
		begin := time.Now()
		l.Apply(put(service("b", "10.96.0.3", external("192.0.2.1"), createdAt(2))))
		l.eventually("10.96.0.3:80", fmt.Sprintf("10.0.1.%d:8080", changes-1))
		if took := time.Since(begin); took > time.Second {
			t.Errorf("it is served after %s", took)
		}
	})
}

// TestBackoffGrows: what lasts is tried again ever less often, at least twice a minute, and
// at once after a change.
func TestBackoffGrows(t *testing.T) {
	held := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		broken := &stubborn{refuse: netip.MustParseAddr("10.96.0.1")}
		broken.times.Store(1 << 30)
		l := start(t, held, func(s tables.Store) tables.Store { broken.Store = s; return broken }, reconcile.Options{})
		tries := func(d time.Duration) int32 {
			before := broken.times.Load()
			time.Sleep(d)
			return (before - broken.times.Load()) / 2 // the port's entry and the address's
		}
		l.Apply(put(service("a", "10.96.0.1"), slice("a-1", "a", "10.0.0.1")))
		l.Synced()
		if n := tries(time.Second); n < 3 {
			t.Errorf("%d attempts in the first second", n)
		}
		time.Sleep(time.Minute)
		if n := tries(10 * time.Minute); n < 19 || n > 21 {
			t.Errorf("%d attempts in 10 minutes, want one each 30 s", n)
		}
		l.Apply(put(slice("a-1", "a", "10.0.0.2")))
		if n := tries(time.Millisecond); n != 1 {
			t.Errorf("%d attempts after a change", n)
		}
		broken.times.Store(0)
		l.Apply(source.Update{DeleteServices: []model.Name{{Namespace: "default", Name: "a"}}})
		time.Sleep(time.Millisecond)
		if !l.Oldest().IsZero() {
			t.Errorf("the deleted Service waits since %s", l.Oldest())
		}
	})
}

// nodeless is a store in which no node of the cluster can be written, or cleared.
type nodeless struct {
	tables.Store
	put, clear atomic.Bool // fail
}

func (n *nodeless) PutNode(id uint16, node tables.Node) error {
	if n.put.Load() {
		return errors.New("no memory")
	}
	return n.Store.PutNode(id, node)
}

func (n *nodeless) ClearNode(id uint16) error {
	if n.clear.Load() {
		return errors.New("no memory")
	}
	return n.Store.ClearNode(id)
}

// TestLastingFailureShows: the age of a failure of the node table counts from its first
// attempt, and the failure is over when one succeeds.
func TestLastingFailureShows(t *testing.T) {
	for name, fail := range map[string]func(*nodeless) *atomic.Bool{
		"a node cannot be written": func(n *nodeless) *atomic.Bool { return &n.put },
		"a node cannot be cleared": func(n *nodeless) *atomic.Bool { return &n.clear },
	} {
		t.Run(name, func(t *testing.T) {
			held := newStore(t)
			synctest.Test(t, func(t *testing.T) {
				store := new(nodeless)
				fails := fail(store)
				l := start(t, held, func(s tables.Store) tables.Store { store.Store = s; return store },
					reconcile.Options{LocalNode: model.LocalNode{Name: "here"}, Forwarding: model.DSR})
				l.Apply(put(service("a", "10.96.0.1"), on("a", "n1"), node("n1", "192.0.2.1"), node("n2", "192.0.2.2")))
				l.Synced()
				l.eventuallyNodes("n1 n2")
				fails.Store(true)
				begin := time.Now()
				l.Apply(source.Update{PutNodes: []*model.Node{node("n3", "192.0.2.3")}, DeleteNodes: []string{"n2"}})
				time.Sleep(5 * time.Minute)
				if l.Oldest().IsZero() || time.Since(l.Oldest()) < time.Since(begin)-time.Second {
					t.Errorf("after %s of failures the oldest change came in at %s", time.Since(begin), l.Oldest())
				}
				fails.Store(false)
				time.Sleep(time.Minute)
				if !l.Oldest().IsZero() {
					t.Error("something waits although all is written")
				}
				l.eventuallyNodes("n1 n3")
			})
		})
	}
}

// unending is a store whose running programs cannot be waited for.
type unending struct {
	tables.Store
	fails atomic.Bool
	tries atomic.Int32
}

func (u *unending) Barrier() error {
	u.tries.Add(1)
	if u.fails.Load() {
		return errors.New("no memory")
	}
	return u.Store.Barrier()
}

// TestLastingBarrierFailureShows: entries that cannot be reused, because running programs cannot be
// waited for, are a failure that is tried again ever less often, also when Services change.
func TestLastingBarrierFailureShows(t *testing.T) {
	held := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		store := new(unending)
		l := start(t, held, func(s tables.Store) tables.Store { store.Store = s; return store }, reconcile.Options{})
		l.Apply(put(service("a", "10.96.0.1"), slice("a-1", "a", "10.0.0.1"), service("b", "10.96.0.2"), slice("b-1", "b", "10.0.0.2")))
		l.Synced()
		l.eventually("10.96.0.1:80", "10.0.0.1:8080")
		time.Sleep(time.Minute)
		store.fails.Store(true)
		begin := time.Now()
		l.Apply(source.Update{DeleteServices: []model.Name{{Namespace: "default", Name: "a"}}})
		before := store.tries.Load()
		for i := range 300 {
			l.Apply(put(slice("b-1", "b", fmt.Sprintf("10.0.1.%d", i%2+1))))
			time.Sleep(time.Second)
		}
		if n := store.tries.Load() - before; n < 10 || n > 30 {
			t.Errorf("%d attempts in 5 minutes, want one each 30 s in the end", n)
		}
		if l.Oldest().IsZero() || time.Since(l.Oldest()) < time.Since(begin)-time.Second {
			t.Errorf("after %s of failures the oldest change came in at %s", time.Since(begin), l.Oldest())
		}
		store.fails.Store(false)
		time.Sleep(time.Minute)
		if !l.Oldest().IsZero() {
			t.Error("something waits although entries can be reused")
		}
	})
}

// TestAgeCountsFromTheFullList: what a source that takes long hands over ahead is not late.
func TestAgeCountsFromTheFullList(t *testing.T) {
	held := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		broken := &stubborn{refuse: netip.MustParseAddr("10.96.0.1")}
		broken.times.Store(1 << 30)
		l := start(t, held, func(s tables.Store) tables.Store { broken.Store = s; return broken }, reconcile.Options{})
		l.Apply(put(service("a", "10.96.0.1"), slice("a-1", "a", "10.0.0.1")))
		time.Sleep(10 * time.Minute)
		begin := time.Now()
		l.Synced()
		time.Sleep(time.Second)
		if got := l.Oldest(); !got.Equal(begin) {
			t.Errorf("the oldest change came in at %s, want %s", got, begin)
		}
	})
}

// TestFailuresAreReported: each attempt that failed, when the next one is, and the end of them.
func TestFailuresAreReported(t *testing.T) {
	held := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		broken := &stubborn{refuse: netip.MustParseAddr("10.96.0.1")}
		broken.times.Store(10) // the port's entry and the address's, five attempts
		type told struct {
			at time.Time
			*reconcile.Failure
		}
		var all []told
		l := start(t, held, func(s tables.Store) tables.Store { broken.Store = s; return broken }, reconcile.Options{
			Failed: func(service model.Name, f *reconcile.Failure) {
				if service.Name != "a" {
					t.Errorf("told of %s", service)
				}
				all = append(all, told{time.Now(), f})
			},
		})
		begin := time.Now()
		l.Apply(put(
			service("a", "10.96.0.1"), slice("a-1", "a", "10.0.0.1"),
			service("b", "10.96.0.2"), slice("b-1", "b", "10.0.0.2"),
		))
		l.Synced()
		l.eventually("10.96.0.1:80", "10.0.0.1:8080")
		synctest.Wait()
		if len(all) != 6 || all[5].Failure != nil {
			t.Fatalf("told %d times, want of 5 failures and the end: %+v", len(all), all)
		}
		for i, f := range all[:5] {
			if f.Tries != i+1 || f.Error == "" || f.Since != all[0].at || f.Since.Before(begin) {
				t.Errorf("attempt %d: %+v", i+1, f.Failure)
			}
			if next := all[i+1].at; next.Before(f.Next) || next.Sub(f.Next) > 10*time.Millisecond {
				t.Errorf("attempt %d was at %s, told was %s", i+2, next, f.Next)
			}
		}
	})
}
