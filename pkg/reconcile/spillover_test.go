package reconcile_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/tables"
)

func spills(s *model.Service) { s.SpillOver = model.SpillOver{Used: true, Above: 20} }

// zoned is a slice with one endpoint of each zone, 10.0.0.1 and so on, which hints keep there.
func zoned(name, service string, zones ...string) *model.Slice {
	s := slice(name, service)
	for i, zone := range zones {
		s.Endpoints = append(s.Endpoints, slice("", "", fmt.Sprint("10.0.0.", i+1)).Endpoints...)
		s.Endpoints[i].Zone, s.Endpoints[i].ZoneHints = zone, []string{zone}
	}
	return s
}

// inZone makes this node one of a zone.
func inZone(zone string) *model.LocalNode { return &model.LocalNode{Zone: zone} }

// demandOf is that of the clients of zones, to the Service a.
func demandOf(zones map[string]float64) map[model.Name]map[string]float64 {
	return map[model.Name]map[string]float64{{Namespace: "default", Name: "a"}: zones}
}

var quick = reconcile.Options{MinSyncPeriod: time.Millisecond}

// TestSpillOver: new connections go to other zones when the clients of the zone want more than the
// share of its endpoints, and come back. Counting does not depend on that.
func TestSpillOver(t *testing.T) {
	held := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		l := start(t, held, asIs, quick)
		l.Apply(put(service("a", "10.96.0.1", spills), zoned("a-1", "a", "a", "b", "c"), inZone("a")))
		l.Synced()
		l.expect("nothing known", time.Second, "map[1:1]")
		counts := func(when string, want bool) {
			t.Helper()
			have, err := held.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range have.Services {
				if s.Algorithm.Counts() != want {
					t.Errorf("%s: algorithm %d", when, s.Algorithm)
				}
			}
		}
		counts("with spill-over", true)
		l.SetDemand(demandOf(map[string]float64{"a": 100, "b": 100, "c": 100}))
		l.expect("even demand", time.Second, "map[1:1]")
		l.SetDemand(demandOf(map[string]float64{"a": 300}))
		l.expect("all clients in this zone", time.Second, "map[1:4 2:3 3:3]")
		synctest.Wait()
		before := len(l.syncs)
		l.SetDemand(demandOf(map[string]float64{"a": 300, "b": 1}))
		l.expect("hardly another demand", time.Second, "map[1:4 2:3 3:3]")
		if n := len(l.syncs) - before; n > 1 {
			t.Errorf("%d syncs for a demand that is no other", n)
		}
		l.Apply(put(zoned("a-1", "a", "a", "b")))
		l.expect("a zone without endpoints", time.Second, "map[1:7 2:3]")
		l.Apply(put(zoned("a-1", "a", "a", "b", "c")))
		l.expect("they are back", time.Second, "map[1:4 2:3 3:3]")
		l.SetDemand(nil)
		l.expect("nothing known again", time.Second, "map[1:1]")
		l.SetDemand(demandOf(map[string]float64{"a": 300}))
		l.Apply(put(service("a", "10.96.0.1")))
		l.expect("without spill-over", time.Second, "map[1:1]")
		counts("without spill-over", false)
		l.SetDemand(demandOf(map[string]float64{"a": 300}))
		l.expect("what is known of others", time.Second, "map[1:1]")
	})
}

// TestSpillOverGoesOn: the next agent finds the shares in the tables, writes nothing, and goes on from there.
func TestSpillOverGoesOn(t *testing.T) {
	held := newStore(t)
	apply := func(l *loop) {
		l.Apply(put(service("a", "10.96.0.1", spills), zoned("a-1", "a", "a", "b", "c"), inZone("a")))
		l.Synced()
	}
	synctest.Test(t, func(t *testing.T) {
		l := start(t, held, asIs, quick)
		apply(l)
		time.Sleep(time.Second)
		l.SetDemand(demandOf(map[string]float64{"a": 300, "b": 75}))
		l.expect("the former agent", time.Second, "map[1:10 2:3 3:7]")
	})
	synctest.Test(t, func(t *testing.T) {
		counted := new(writes)
		l := start(t, held, func(s tables.Store) tables.Store { counted.Store = s; return counted }, quick)
		apply(l)
		l.expect("the next agent", time.Second, "map[1:10 2:3 3:7]")
		l.SetDemand(demandOf(map[string]float64{"a": 300, "b": 75}))
		l.expect("the demand is the same", time.Second, "map[1:10 2:3 3:7]")
		if n := counted.count.Load(); n != 0 {
			t.Errorf("%d writes", n)
		}
		l.SetDemand(demandOf(map[string]float64{"a": 100, "b": 150, "c": 100}))
		l.expect("it is another", time.Second, "map[1:1]")
	})
}

// TestSpillOverTold: who asks other nodes is told of the Services and the nodes, once all of these are
// known, and of changes of either.
func TestSpillOverTold(t *testing.T) {
	held := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		var told string
		var follows atomic.Int32
		opts := quick
		opts.FollowNodes = func() { follows.Add(1) }
		opts.SpillOvers = func(services []model.Name, nodes []*model.Node, self *model.LocalNode) {
			told = fmt.Sprintf("%v %d %s", services, len(nodes), self.Zone)
		}
		l := start(t, held, asIs, opts)
		expect := func(when, want string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if told != want {
				t.Errorf("%s: told %q, want %q", when, told, want)
			}
		}
		l.Apply(put(service("b", "10.96.0.2"), inZone("z")))
		l.Synced()
		expect("no Service asks", "[] 0 z")
		if follows.Load() != 0 {
			t.Error("nodes are followed")
		}
		l.Apply(put(service("a", "10.96.0.1", spills)))
		expect("nodes are not known", "[] 0 z")
		if follows.Load() == 0 {
			t.Error("nodes are not followed")
		}
		l.Apply(put(node("one", "192.0.2.1")))
		expect("not all nodes are known", "[] 0 z")
		l.Apply(source.Update{NodesListed: true})
		expect("all are", "[default/a] 1 z")
		l.Apply(put(node("two", "192.0.2.2")))
		expect("another node", "[default/a] 2 z")
		l.Apply(put(inZone("y")))
		expect("another zone", "[default/a] 2 y")
		l.Apply(put(service("b", "10.96.0.2", spills)))
		expect("another Service", "[default/a default/b] 2 y")
		l.Apply(source.Update{DeleteServices: []model.Name{{Namespace: "default", Name: "a"}}, PutServices: []*model.Service{service("b", "10.96.0.2")}})
		expect("none", "[] 2 y")
	})
}

// TestSpillOverFaults: Services whose algorithm has no shares, and those beyond the most there may be, stay in
// their zone, and are told so; the first by name have it, whichever came first.
func TestSpillOverFaults(t *testing.T) {
	held := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		faults := make(map[string]int)
		opts := quick
		opts.Faults = func(service model.Name, list, _ []model.Fault) { faults[service.Name] = len(list) }
		l := start(t, held, asIs, opts)
		expect := func(when, service string, want int) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if faults[service] != want {
				t.Errorf("%s: %d faults of %s, want %d", when, faults[service], service, want)
			}
		}
		name := func(i int) string { return fmt.Sprintf("s-%03d", i) }
		add := func(i int) {
			l.Apply(put(service(name(i), fmt.Sprintf("10.96.1.%d", i), spills)))
		}
		for i := range model.MaxSpillOvers {
			add(i + 1)
		}
		l.Synced()
		last := name(model.MaxSpillOvers)
		expect("as many as there may be", last, 0)
		add(0)
		expect("one more", last, 1)
		expect("one more", name(0), 0)
		l.Apply(source.Update{DeleteServices: []model.Name{{Namespace: "default", Name: name(7)}}})
		expect("one less", last, 0)
		l.Apply(put(service("a", "10.96.0.1", spills, func(s *model.Service) { s.Algorithm = model.Maglev })))
		expect("another algorithm", "a", 1)
		expect("another algorithm", last, 0)
	})
}
