package tables_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/pkg/tables/tablestest"
)

// runCheck makes a whole check, with between called after each step.
func runCheck(t *testing.T, tbl *tables.Tables, store *tablestest.Store, between func()) ([]tables.Difference, map[model.Name]struct{}) {
	t.Helper()
	c := tbl.NewCheck(store)
	for c.Step() {
		between()
	}
	found, again, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	return found, again
}

// TestCheck: what somebody changes in the store is found, by its name, and is as before once the
// Services that the check names are applied again.
func TestCheck(t *testing.T) {
	cidr, node, theirs := netip.MustParsePrefix("10.96.0.0/16"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("10.96.0.7")
	for _, tc := range []struct {
		name   string
		damage func(s *tablestest.Store)
		want   string // of the first difference
		again  bool
	}{
		{"nothing", func(*tablestest.Store) {}, "", false},
		{"frontend removed", func(s *tablestest.Store) { delete(s.Frontends, vip(1)) }, "frontend 10.96.0.1:80/TCP", false},
		{"frontend changed", func(s *tablestest.Store) { s.Frontends[vip(1)] = tables.Frontend{Service: 1} }, "frontend 10.96.0.1:80/TCP", false},
		{"frontend added", func(s *tablestest.Store) { s.Frontends[vip(99)] = tables.Frontend{} }, "frontend 10.96.0.99:80/TCP, which no Service has", false},
		{"name", func(s *tablestest.Store) { n := s.Names[0]; n.Number++; s.Names[0] = n }, "description of service id 0", false},
		{"affinity", func(s *tablestest.Store) { e := s.Services[0]; e.AffinitySeconds++; s.Services[0] = e }, "service id 0", false},
		{"set", func(s *tablestest.Store) {
			e := s.Services[0]
			e.Cluster = tables.Set{Kind: policy.Drop}
			s.Services[0] = e
			clear(s.Owner)
		}, "service id 0", false},
		{"slot", func(s *tablestest.Store) { s.Slots[s.Services[0].Cluster.First]++ }, "slots of service id 0", true},
		{"weight", func(s *tablestest.Store) { b := s.Backends[0]; b.Weight = 7; s.Backends[0] = b }, "backend 10.1.0.0:8080", false},
		{"state", func(s *tablestest.Store) { b := s.Backends[0]; b.State = 0; s.Backends[0] = b }, "backend 10.1.0.0:8080", false},
		{"source range removed", func(s *tablestest.Store) { clear(s.Ranges) }, "source range 203.0.113.0/24", false},
		{"source range added", func(s *tablestest.Store) { s.Ranges[tables.SourceRange{Service: 0, Prefix: cidr}] = true }, "source range 10.96.0.0/16 of service id 0, which has no such", false},
		{"service range removed", func(s *tablestest.Store) { delete(s.CIDRs, cidr) }, "service range 10.96.0.0/16", false},
		{"service range added", func(s *tablestest.Store) { s.CIDRs[netip.MustParsePrefix("10.0.0.0/8")] = true }, "service range 10.0.0.0/8, which is none", false},
		{"foreign address removed", func(s *tablestest.Store) { clear(s.Foreign) }, "address 10.96.0.7 of another proxy", false},
		{"foreign address added", func(s *tablestest.Store) { s.Foreign[node] = true }, "address 192.0.2.1 of another proxy, which has none there", false},
		{"node address removed", func(s *tablestest.Store) { delete(s.NodeAddrs, node) }, "node address 192.0.2.1", false},
		{"node address added", func(s *tablestest.Store) { s.NodeAddrs[cidr.Addr()] = tables.NodeAddr{} }, "node address 10.96.0.0", false},
		{"node", func(s *tablestest.Store) { n := s.Nodes[1]; n.Name = "other"; s.Nodes[1] = n }, "node n1", false},
		{"address of a node removed", func(s *tablestest.Store) { delete(s.NodeIDs, node) }, "address 192.0.2.1 of a node", false},
		{"address of no node", func(s *tablestest.Store) { s.NodeIDs[cidr.Addr()] = 1 }, "address 10.96.0.0, which no node has", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store := tablestest.New(t, tablestest.Roomy)
			tbl := tables.New(store)
			first := onePort("first", vip(1), tables.FrontendClusterIP, endpoints(3), endpoints(1))
			first.Ports[0].SourceRanges = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
			apply(t, tbl, first)
			apply(t, tbl, onePort("second", vip(2), tables.FrontendClusterIP, endpoints(2), nil))
			if _, err := tbl.SetNodes([]*model.Node{{Name: "n1", Tunnel: node}}, "n1"); err != nil {
				t.Fatal(err)
			}
			if err := tbl.SetServiceCIDRs([]netip.Prefix{cidr}, []netip.Addr{theirs}); err != nil {
				t.Fatal(err)
			}
			if err := tbl.SetNodeAddrs(map[netip.Addr]tables.NodeAddr{node: {}}, nil); err != nil {
				t.Fatal(err)
			}
			wantPorts, wantNodes := store.View(), store.ViewNodes()
			tc.damage(store)
			found, again := runCheck(t, tbl, store, func() {})
			if tc.want == "" && len(found) > 0 || tc.want != "" && (len(found) != 1 || !strings.HasPrefix(found[0].Text, tc.want)) {
				t.Errorf("found %v, want %q", found, tc.want)
			}
			if _, ok := again[named("first")]; ok != tc.again || len(again) > 1 {
				t.Errorf("to be applied again: %v", again)
			}
			apply(t, tbl, first)
			if got := store.View(); !reflect.DeepEqual(got, wantPorts) {
				t.Errorf("afterwards %+v, want %+v", got, wantPorts)
			}
			if got := store.ViewNodes(); !reflect.DeepEqual(got, wantNodes) || len(store.CIDRs) != 1 || len(store.Foreign) != 1 || len(store.NodeAddrs) != 1 || len(store.Frontends) != 2 {
				t.Errorf("afterwards %v, %v, %v, %v", got, store.CIDRs, store.NodeAddrs, store.Frontends)
			}
			if found, _ := runCheck(t, tbl, store, func() {}); len(found) > 0 {
				t.Errorf("found afterwards: %v", found)
			}
		})
	}
}

// TestCheckWhileServicesChange: a check finds nothing although Services change between its steps.
func TestCheckWhileServicesChange(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	store := tablestest.New(t, tablestest.Roomy)
	tbl := tables.New(store)
	change := func() {
		n := rng.IntN(20)
		name := named(string(rune('a' + n)))
		if rng.IntN(5) == 0 {
			if _, err := tbl.Remove(name); err != nil {
				t.Fatal(err)
			}
		} else {
			local := endpoints(rng.IntN(3))
			desired := onePort(name.Name, vip(n), tables.FrontendClusterIP, endpoints(1+rng.IntN(6)), local)
			desired.Ports[0].Algorithm = []model.Algorithm{model.Random, model.WeightedRoundRobin, model.SourceHash}[rng.IntN(3)]
			desired.Ports[0].RingSize = 251
			desired.Ports[0].Sets.Backends[0].Weight = uint16(rng.IntN(4))
			apply(t, tbl, desired)
		}
		retired := tbl.Retire()
		if err := store.Barrier(); err != nil {
			t.Fatal(err)
		}
		tbl.Release(retired)
	}
	for range 100 {
		change()
	}
	for range 30 {
		if found, _ := runCheck(t, tbl, store, change); len(found) > 0 {
			t.Fatalf("found %v", found)
		}
	}
	restored, err := store.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if found, _ := runCheck(t, tables.Restore(store, restored), store, func() {}); len(found) > 0 {
		t.Errorf("found after a restart: %v", found)
	}
}

// counting counts what a check looks at.
type counting struct {
	*tablestest.Store
	looked int
}

func (c *counting) HoldsService(id uint32, s tables.Service) bool {
	c.looked++
	return c.Store.HoldsService(id, s)
}

func (c *counting) HoldsBackend(id uint32, b tables.Backend) bool {
	c.looked++
	return c.Store.HoldsBackend(id, b)
}

// TestCheckWideService: a Service of many ports is looked at in parts, also while ports of it go.
func TestCheckWideService(t *testing.T) {
	const ports, most = 2000, 600
	store := &counting{Store: tablestest.New(t, tablestest.Roomy)}
	tbl := tables.New(store)
	one := onePort("wide", vip(1), tables.FrontendClusterIP, endpoints(2), nil).Ports[0]
	wide := tables.Desired{Name: named("wide")}
	for i := range ports {
		sp := one
		sp.Name.Port.Port = fmt.Sprint(i)
		sp.Frontends = nil
		wide.Ports = append(wide.Ports, sp)
	}
	apply(t, tbl, wide)
	c := tbl.NewCheck(store)
	all := 0
	for more := true; more; {
		store.looked = 0
		more = c.Step()
		if store.looked > most {
			t.Fatalf("a step looks at %d entries", store.looked)
		}
		if all += store.looked; len(wide.Ports) == ports && all > 0 {
			wide.Ports = wide.Ports[:ports/2]
			apply(t, tbl, wide)
		}
	}
	if found, _, err := c.Stop(); len(found) > 0 || err != nil || all != 3*ports/2 {
		t.Errorf("%d entries are looked at; found %v, %v", all, found, err)
	}
}
