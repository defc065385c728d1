package reconcile_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
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

// outliers gives a Service outlier detection.
func outliers(percent uint8) func(*model.Service) {
	return func(s *model.Service) {
		s.Outliers = &model.Outliers{Failures: 3, Time: 10 * time.Second, Percent: percent}
	}
}

var ejects = reconcile.Options{MinSyncPeriod: time.Millisecond, Ejects: true}

// TestOutliers: an endpoint with as many failures is ejected, for twice as long when the one connection
// fails that it is tried by, comes back when that is answered, and its past is forgotten when it has
// served well for as long.
func TestOutliers(t *testing.T) {
	held := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		now, all := 0, 0
		opts := ejects
		opts.Ejected = func(n, more int) { now, all = n, all+more }
		var told []string
		opts.Ejection = func(e reconcile.Ejection) {
			told = append(told, fmt.Sprint(e.Port, " ", e.Endpoint, " ", e.Failures, " ", e.Pause))
		}
		l := start(t, held, asIs, opts)
		l.Apply(put(service("a", "10.96.0.1", outliers(50)), slice("a-1", "a", "10.0.0.1", "10.0.0.2", "10.0.0.3")))
		l.Synced()
		const first, second, two, all3 = "10.0.0.1:8080", "10.0.0.2:8080", "map[2:1 3:1]", "map[1:1 2:1 3:1]"
		l.expect("at first", time.Second, all3)
		held.Fail(first, 2)
		l.expect("two failures", time.Second, all3)
		held.Fail(first, 3)
		l.expect("three", time.Second, two)
		held.Fail(second, 9)
		l.expect("more than half would be", time.Second, two)
		held.Fail(second, 0)
		l.expect("most of its time", 7*time.Second, two)
		if held.Try(first) {
			t.Error("tried before its time is over")
		}
		l.expect("all of it", 3*time.Second, two)
		if !held.Try(first) || held.Try(first) {
			t.Error("its time is over: want one connection to it")
		}
		held.Fail(first, 1)
		l.expect("it fails on trial", time.Second, two)
		l.expect("most of twice the time", 18*time.Second, two)
		l.expect("all of it, without a connection", time.Minute, two)
		if !held.Try(first) {
			t.Error("twice the time is over: want a connection to it")
		}
		held.Fail(first, 0)
		l.expect("it serves", 20*time.Second, all3)
		if known := held.Outliers(); len(known) > 0 {
			t.Errorf("of the past, this is left: %v", known)
		}
		held.Fail(first, 3)
		l.expect("once more", time.Second, two)
		if now != 1 || all != 3 {
			t.Errorf("%d are ejected, and %d have been; want 1, 3", now, all)
		}
		if want := "[default/a/TCP 10.0.0.1:8080 3 10s default/a/TCP 10.0.0.1:8080 1 20s default/a/TCP 10.0.0.1:8080 0 0s default/a/TCP 10.0.0.1:8080 3 10s]"; fmt.Sprint(told) != want {
			t.Errorf("ejections %s, want %s", told, want)
		}
		l.Apply(source.Update{DeleteServices: []model.Name{{Namespace: "default", Name: "a"}}})
		l.expect("no Service", time.Second, "map[]")
		if now != 0 || all != 3 {
			t.Errorf("%d are ejected without a Service, and %d have been; want 0, 3", now, all)
		}
	})
}

// TestOutlierTrial: of several endpoints whose time is over one is tried at a time, and one that fails
// leaves its place to the next. Of whose connection nothing is known, it comes back, until the first
// failure.
func TestOutlierTrial(t *testing.T) {
	held := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		l := start(t, held, asIs, ejects)
		l.Apply(put(service("a", "10.96.0.1", outliers(70)), slice("a-1", "a", "10.0.0.1", "10.0.0.2", "10.0.0.3")))
		l.Synced()
		time.Sleep(time.Second)
		const first, second = "10.0.0.1:8080", "10.0.0.2:8080"
		held.Fail(first, 3)
		held.Fail(second, 3)
		l.expect("two are ejected", time.Second, "map[3:1]")
		time.Sleep(20 * time.Second)
		// Which is tried first is in the order of their addresses.
		if held.Try(second) || !held.Try(first) {
			t.Error("want the first tried, and it alone")
		}
		time.Sleep(time.Second)
		if held.Try(second) {
			t.Error("two are tried at a time")
		}
		l.expect("nothing is known", 5*time.Second, "map[1:1 3:1]")
		if !held.Try(second) {
			t.Error("the second is not tried after the first")
		}
		held.Fail(second, 0)
		l.expect("answered", time.Second, "map[1:1 2:1 3:1]")
		held.Fail(first, 3)
		l.expect("it fails once more", time.Second, "map[2:1 3:1]")
		if o := held.Outliers()[first]; o.Times != 2 {
			t.Errorf("of the first is known %+v, want that it has been ejected twice", o)
		}
	})
}

// TestOutliersLast: the last endpoint is never ejected, one always may be; and not without the setting.
func TestOutliersLast(t *testing.T) {
	for _, c := range []struct {
		name  string
		of    func(*model.Service)
		addrs []string
		fail  []string
		want  string
	}{
		{"of two", outliers(1), []string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.1:8080"}, "map[2:1]"},
		{"both", outliers(100), []string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.1:8080", "10.0.0.2:8080"}, "one"},
		{"the only one", outliers(100), []string{"10.0.0.1"}, []string{"10.0.0.1:8080"}, "map[1:1]"},
		{"without", func(*model.Service) {}, []string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.1:8080"}, "map[1:1 2:1]"},
		{"off", func(s *model.Service) { s.Outliers = &model.Outliers{} }, []string{"10.0.0.1", "10.0.0.2"}, []string{"10.0.0.1:8080"}, "map[1:1 2:1]"},
	} {
		held := newStore(t)
		synctest.Test(t, func(t *testing.T) {
			l := start(t, held, asIs, ejects)
			l.Apply(put(service("a", "10.96.0.1", c.of), slice("a-1", "a", c.addrs...)))
			l.Synced()
			time.Sleep(time.Second)
			for _, addr := range c.fail {
				held.Fail(addr, 3)
			}
			time.Sleep(time.Second)
			got := l.shares("10.96.0.1:80")
			if c.want == "one" && strings.Count(got, ":") == 1 {
				return
			}
			if got != c.want {
				t.Errorf("%s: slots %s, want %s", c.name, got, c.want)
			}
		})
	}
}

// TestOutliersGoOn: the next agent leaves ejected what is, writes nothing, and lets it in when its time
// is over; who only compares, as verify does, never. A Service whose detection is turned off has all.
func TestOutliersGoOn(t *testing.T) {
	held := newStore(t)
	web := put(service("a", "10.96.0.1", outliers(50)), slice("a-1", "a", "10.0.0.1", "10.0.0.2"))
	synctest.Test(t, func(t *testing.T) {
		l := start(t, held, asIs, ejects)
		l.Apply(web)
		l.Synced()
		time.Sleep(time.Second)
		held.Fail("10.0.0.1:8080", 3)
		l.expect("ejected", time.Second, "map[2:1]")
	})
	for _, name := range []string{"verify", "agent"} {
		synctest.Test(t, func(t *testing.T) {
			counted := new(writes)
			opts := ejects
			opts.Ejects = name == "agent"
			l := start(t, held, func(s tables.Store) tables.Store { counted.Store = s; return &kept{counted, held} }, opts)
			l.Apply(web)
			l.Synced()
			l.expect(name, 200*time.Millisecond, "map[2:1]")
			if n := counted.count.Load(); n != 0 {
				t.Errorf("%s: %d writes at the start", name, n)
			}
			if name == "verify" {
				l.expect("its time is over", 20*time.Second, "map[2:1]")
				return
			}
			l.expect("its time is over", 20*time.Second, "map[2:1]")
			if !held.Try("10.0.0.1:8080") {
				t.Error("its time is over: want a connection to it")
			}
			held.Fail("10.0.0.1:8080", 0)
			l.expect("answered", time.Second, "map[1:1 2:1]")
			held.Fail("10.0.0.1:8080", 3)
			l.expect("again", time.Second, "map[2:1]")
			l.Apply(put(service("a", "10.96.0.1")))
			l.expect("turned off", time.Second, "map[1:1 2:1]")
			l.Apply(source.Update{DeleteServices: []model.Name{{Namespace: "default", Name: "a"}}})
			l.expect("no Service", time.Second, "map[]")
		})
	}
}

// kept is a store around another one, which knows of outliers.
type kept struct {
	tables.Store
	reconcile.OutlierStore
}

// TestOutliersNotWritten: an endpoint whose ejection cannot be written goes on, and is ejected when it
// can.
func TestOutliersNotWritten(t *testing.T) {
	held := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		stuck := &stuckOutliers{OutlierStore: held}
		l := start(t, held, func(s tables.Store) tables.Store { return &kept{s, stuck} }, ejects)
		l.Apply(put(service("a", "10.96.0.1", outliers(50)), slice("a-1", "a", "10.0.0.1", "10.0.0.2")))
		l.Synced()
		time.Sleep(time.Second)
		held.Fail("10.0.0.1:8080", 3)
		l.expect("not written", time.Second, "map[1:1 2:1]")
		stuck.works.Store(true)
		l.expect("written", time.Second, "map[2:1]")
		if known := slices.Collect(maps.Keys(held.Outliers())); !slices.Equal(known, []string{"10.0.0.1:8080"}) {
			t.Errorf("known are %v", known)
		}
	})
}

type stuckOutliers struct {
	reconcile.OutlierStore
	works atomic.Bool
}

func (s *stuckOutliers) PutOutlier(id, generation uint32, o tables.Outlier) error {
	if !s.works.Load() {
		return errors.New("on purpose")
	}
	return s.OutlierStore.PutOutlier(id, generation, o)
}
