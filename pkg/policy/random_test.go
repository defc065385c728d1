package policy

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/tier"
)

var seed = flag.Uint64("seed", 0, "seed of TestSelectRandom; 0 takes a new one")

// restated says section 2, 3 and 7 of the contract sentence by sentence, with no
// thought of cost.
type restated struct {
	eps  map[netip.AddrPort]model.Endpoint
	node *model.LocalNode
}

// restate collects the endpoints of a Service port.
func restate(port model.ServicePort, family model.Family, list []*model.Slice, node *model.LocalNode) restated {
	r := restated{eps: map[netip.AddrPort]model.Endpoint{}, node: node}
	for _, s := range list {
		for _, p := range s.Ports {
			for _, ep := range s.Endpoints {
				sameFamily := s.Family == family
				samePort := p.Name == port.Name && p.Protocol == port.Protocol
				if !sameFamily || !samePort {
					continue
				}
				// The same ip:port twice: the later wins unless it is terminating.
				key := netip.AddrPortFrom(ep.Addr, p.Port)
				if _, twice := r.eps[key]; twice && ep.Terminating {
					continue
				}
				r.eps[key] = ep
			}
		}
	}
	return r
}

type condition func(model.Endpoint) bool

func isReady(ep model.Endpoint) bool { return ep.Ready }

func isServingAndTerminating(ep model.Endpoint) bool { return ep.Serving && ep.Terminating }

func (r restated) isLocal(ep model.Endpoint) bool {
	return r.node.Name != "" && ep.NodeName == r.node.Name
}

// those returns the endpoints that meet all conditions.
func (r restated) those(conditions ...condition) restated {
	eps := maps.Clone(r.eps)
	for _, c := range conditions {
		maps.DeleteFunc(eps, func(_ netip.AddrPort, ep model.Endpoint) bool { return !c(ep) })
	}
	return restated{eps, r.node}
}

func (r restated) some() bool { return len(r.eps) > 0 }

// every says that all endpoints, and at least one, meet the condition.
func (r restated) every(c condition) bool { return r.some() && len(r.those(c).eps) == len(r.eps) }

// hinted is r filtered by topology hints.
func (r restated) hinted() restated {
	hasNodeHints := func(ep model.Endpoint) bool { return len(ep.NodeHints) > 0 }
	hasZoneHints := func(ep model.Endpoint) bool { return len(ep.ZoneHints) > 0 }
	namesNode := func(ep model.Endpoint) bool {
		return r.node.Name != "" && slices.Contains(ep.NodeHints, r.node.Name)
	}
	namesZone := func(ep model.Endpoint) bool {
		return r.node.Zone != "" && slices.Contains(ep.ZoneHints, r.node.Zone)
	}
	if r.every(hasNodeHints) && r.those(namesNode).some() {
		return r.those(namesNode)
	}
	if r.every(hasZoneHints) && r.those(namesZone).some() {
		return r.those(namesZone)
	}
	return r
}

// cluster: Ready endpoints, filtered by topology hints; when empty, all Serving
// and Terminating endpoints.
func (r restated) cluster() restated {
	if set := r.those(isReady).hinted(); set.some() {
		return set
	}
	return r.those(isServingAndTerminating)
}

// local: local Ready endpoints; when empty, local Serving and Terminating ones.
func (r restated) local() restated {
	if set := r.those(r.isLocal, isReady); set.some() {
		return set
	}
	return r.those(r.isLocal, isServingAndTerminating)
}

// stay: those to which UDP flows go on, whatever the sets are.
func (r restated) stay() restated {
	return r.those(func(ep model.Endpoint) bool { return ep.Ready || ep.Serving })
}

func (r restated) usableAnywhere() bool {
	return r.those(isReady).some() || r.those(isServingAndTerminating).some()
}

func (r restated) sets() (cluster, local string) {
	if !r.usableAnywhere() {
		return "reject", "reject"
	}
	cluster, local = r.cluster().String(), "drop"
	if r.local().some() {
		local = r.local().String()
	}
	return cluster, local
}

// String lists the endpoints as [describe] does.
func (r restated) String() string {
	var lines []string
	for _, key := range slices.SortedFunc(maps.Keys(r.eps), netip.AddrPort.Compare) {
		ep := r.eps[key]
		lines = append(lines, line(key, ep.Ready, ep.Serving, ep.Terminating, r.isLocal(ep)))
	}
	return strings.Join(lines, "; ")
}

func line(addr netip.AddrPort, ready, serving, terminating, local bool) string {
	return fmt.Sprintf("%v ready=%v serving=%v terminating=%v local=%v", addr, ready, serving, terminating, local)
}

// describe writes a set in its own order, or as its kind.
func describe(s set) string {
	if len(s.Backends) == 0 {
		return s.Kind.String()
	}
	var lines []string
	for _, b := range s.Backends {
		lines = append(lines, line(b.AddrPort, b.Ready, b.Serving, b.Terminating, b.OnNode))
	}
	text := strings.Join(lines, "; ")
	if s.Kind != Backends {
		text = fmt.Sprint(s.Kind, " with ", text)
	}
	return text
}

// chances make up a random case. How often each thing is so differs from case to
// case, so that "every" and "none" come up too.
type chances struct {
	*rand.Rand
	ready, serving, terminating, nodeHints, zoneHints, local int // percent
}

func newChances(r *rand.Rand) chances {
	percent := func() int { return []int{0, 20, 50, 90, 100}[r.IntN(5)] }
	return chances{r, percent(), percent(), percent(), percent(), percent(), percent()}
}

func (c chances) is(percent int) bool { return c.IntN(100) < percent }

func oneOf[T any](c chances, list ...T) T { return list[c.IntN(len(list))] }

func (c chances) node() *model.LocalNode {
	return &model.LocalNode{
		Name: oneOf(c, "here", "here", "here", ""),
		Zone: oneOf(c, "zone-a", "zone-a", ""),
	}
}

func (c chances) slices() []*model.Slice {
	list := make([]*model.Slice, c.IntN(7))
	for i := range list {
		s := &model.Slice{Family: oneOf(c, model.Families[:]...)}
		for range 1 + c.IntN(4) {
			s.Ports = append(s.Ports, model.SlicePort{
				Name:     oneOf(c, "http", "http", "dns", ""),
				Protocol: oneOf(c, model.TCP, model.TCP, model.UDP),
				Port:     oneOf(c, uint16(80), 8080),
			})
		}
		for range c.IntN(6) {
			s.Endpoints = append(s.Endpoints, c.endpoint(s.Family))
		}
		list[i] = s
	}
	return list
}

func (c chances) endpoint(family model.Family) model.Endpoint {
	ep := model.Endpoint{
		Addr:        podAddr(family, c.IntN(12)),
		NodeName:    oneOf(c, "there", "elsewhere", ""),
		Zone:        oneOf(c, "zone-a", "zone-b", ""),
		Ready:       c.is(c.ready),
		Serving:     c.is(c.serving),
		Terminating: c.is(c.terminating),
	}
	if c.is(c.local) {
		ep.NodeName = "here"
	}
	if c.is(c.nodeHints) {
		ep.NodeHints = oneOf(c, []string{"here"}, []string{"there"}, []string{"there", "here"}, []string{""})
	}
	if c.is(c.zoneHints) {
		ep.ZoneHints = oneOf(c, []string{"zone-a"}, []string{"zone-b"}, []string{"zone-b", "zone-a"}, []string{""})
	}
	return ep
}

// TestSelectRandom compares Select with the restated rules. It also counts what
// the cases met, so that it cannot pass by meeting nothing.
func TestSelectRandom(t *testing.T) {
	tier.OneGoroutine(t)
	const cases = 20_000
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("repeat with -seed=%d", s)

	random := rand.New(rand.NewPCG(s, 0))
	met := map[string]int{}
	for i := range cases {
		c := newChances(random)
		node, list := c.node(), c.slices()
		for _, family := range model.Families {
			for _, port := range []model.ServicePort{
				{Name: "http", Protocol: model.TCP},
				{Name: "dns", Protocol: model.UDP},
				{Name: "", Protocol: model.TCP},
			} {
				got := Select(&model.Service{}, port, family, list, node)
				want := restate(port, family, list, node)
				cluster, local := want.sets()
				if describe(got.cluster()) != cluster || describe(got.local()) != local {
					t.Fatalf("case %d, seed %d: %v port %q on %+v\ncluster set: %s\n       want: %s\n  local set: %s\n       want: %s",
						i, s, family, port.Name, *node, describe(got.cluster()), cluster, describe(got.local()), local)
				}
				if all := describe(set{Backends, got.Backends}); len(got.Backends) > 0 && all != want.stay().String() || len(got.Backends) == 0 && want.stay().some() {
					t.Fatalf("case %d, seed %d: %v port %q on %+v\nstay: %s\nwant: %s", i, s, family, port.Name, *node, all, want.stay())
				}
				want.count(met, got)
			}
		}
	}
	t.Logf("met: %v", met)
	for _, what := range []string{
		"cluster reject", "cluster backends", "local reject", "local drop", "local backends",
		"cluster draining", "local draining", "local draining beside ready", "hints apply", "serves in no set",
	} {
		if met[what] < cases/200 {
			t.Errorf("seed %d: only %d of %d cases met %q", s, met[what], cases, what)
		}
	}
}

// count notes what a case was about.
func (r restated) count(met map[string]int, got Sets) {
	met["cluster "+got.Cluster.String()]++
	met["local "+got.Local.String()]++
	if slices.ContainsFunc(got.Backends, func(b Backend) bool { return !b.InSet() }) {
		met["serves in no set"]++
	}
	if !r.those(isReady).some() && r.cluster().some() {
		met["cluster draining"]++
	}
	if !r.those(isReady, r.isLocal).some() && r.local().some() {
		met["local draining"]++
		if r.those(isReady).some() {
			met["local draining beside ready"]++
		}
	}
	if ready := r.those(isReady); len(ready.hinted().eps) < len(ready.eps) {
		met["hints apply"]++
	}
}
