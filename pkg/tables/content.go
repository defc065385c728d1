package tables

import (
	"cmp"
	"slices"

	"github.com/beeline-lb/beeline/pkg/maglev"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

// layout is how backends are placed in the slots of a set.
type layout uint8

const (
	// layoutRuns gives each backend as many neighbouring slots as it has weight.
	layoutRuns layout = iota
	// layoutTurns spreads the slots of each backend over the set.
	layoutTurns
	// layoutRing is a ring of pkg/maglev.
	layoutRing
)

// wantedSet is a set with what decides how its slots are filled.
type wantedSet struct {
	kind     policy.Kind
	backends []policy.Backend // also those of the other set
	in       func(*policy.Backend) bool
	layout   layout
	weighted bool
	ringSize uint32   // 0 is by the number of backends
	bound    uint32   // slots that it may take; 0 is as many as asked for
	ring     []uint32 // as [Tables.Prepare] has made it; nil: not yet
}

func inCluster(b *policy.Backend) bool { return b.InCluster }
func inLocal(b *policy.Backend) bool   { return b.InLocal }

func (sp *ServicePort) cluster() *wantedSet { return sp.set(sp.Sets.Cluster, inCluster, sp.rings[0]) }

// local returns the local set. One that no frontend leads to gets neither a ring nor weights.
func (sp *ServicePort) local() *wantedSet {
	set := sp.set(sp.Sets.Local, inLocal, sp.rings[1])
	if !sp.usesLocal() {
		set.layout, set.weighted = layoutRuns, false
	}
	return set
}

// usesLocal reports whether a frontend leads to the local set.
func (sp *ServicePort) usesLocal() bool {
	return slices.ContainsFunc(sp.Frontends, func(f DesiredFrontend) bool { return f.Flags&(InternalLocal|ExternalLocal) != 0 })
}

func (sp *ServicePort) set(kind policy.Kind, in func(*policy.Backend) bool, ring []uint32) *wantedSet {
	want := &wantedSet{
		kind:     kind,
		backends: sp.Sets.Backends,
		in:       in,
		weighted: sp.Algorithm.Weighs(),
		ringSize: sp.RingSize,
		bound:    sp.Name.Bound,
		ring:     ring,
	}
	switch {
	case sp.Algorithm.Hashes():
		want.layout = layoutRing
	case sp.Algorithm == model.WeightedRoundRobin:
		want.layout = layoutTurns
	}
	return want
}

// weighing are the backends of the set that have a weight.
func (w *wantedSet) weighing(yield func(*policy.Backend) bool) {
	for i := range w.backends {
		if b := &w.backends[i]; b.Weight > 0 && w.in(b) && !yield(b) {
			return
		}
	}
}

// count returns how many they are.
func (w *wantedSet) count() int {
	n := 0
	for range w.weighing {
		n++
	}
	return n
}

// size returns the number of slots of a ring of so many backends.
func (w *wantedSet) size(backends int) uint32 {
	size := w.wantedSize(backends)
	if w.bound == 0 {
		return size
	}
	return cmp.Or(boundRing(size, backends, w.bound), size)
}

// wantedSize is the same without a bound.
func (w *wantedSet) wantedSize(backends int) uint32 {
	if w.ringSize == 0 {
		return maglev.Size(backends)
	}
	return maglev.Fit(w.ringSize, backends)
}

// weights are those of the backends that have one; nil when all are 1.
func (w *wantedSet) weights() (weights []uint32) {
	i := 0
	for b := range w.weighing {
		if b.Weight != 1 || weights != nil {
			weights = appendWeight(weights, i, b.Weight)
		}
		i++
	}
	return weights
}

// bounded returns weights that take no more slots than there may be; nil when each backend
// gets one.
func (w *wantedSet) bounded(weights []uint32) []uint32 {
	if weights == nil || w.bound == 0 || sum(weights) <= uint64(w.bound) {
		return weights
	}
	if w.bound <= uint32(len(weights)) {
		return nil
	}
	return reduce(bound(weights, uint64(w.bound)-uint64(len(weights))))
}

// content is the input from which the slots of a set are filled.
type content struct {
	layout  layout
	size    uint32   // of a ring
	members []uint32 // ids of the backends with a weight, by address
	weights []uint32 // of members, without a common divisor; nil: all are 1
	// sum is that of the slots, see slotSum.
	sum uint64
	// raw are the slots that a former agent has filled; what they are made of is not
	// known.
	raw []uint32
}

func (c content) equal(o content) bool {
	return c.layout == o.layout && c.size == o.size && slices.Equal(c.members, o.members) &&
		slices.Equal(c.weights, o.weights) && c.raw == nil && o.raw == nil
}

// ids returns the backends in the slots; some may be there several times.
func (c content) ids() []uint32 {
	if c.raw != nil {
		return c.raw
	}
	return c.members
}

// content returns what the slots of a set are to be made of: those of its backends
// that have a weight and an id.
func (sp *servicePort) content(want *wantedSet) content {
	c := content{layout: want.layout, members: make([]uint32, 0, len(want.backends))}
	var weights []uint32
	all := cursor{sp.backends}
	for w := range want.weighing {
		b := all.find(w.AddrPort)
		if b == nil {
			continue
		}
		c.members = append(c.members, b.id)
		if want.weighted && (w.Weight != 1 || weights != nil) {
			weights = appendWeight(weights, len(c.members)-1, w.Weight)
		}
	}
	c.weights = reduce(weights)
	if c.layout == layoutRing {
		c.size = want.size(len(c.members))
	} else {
		c.weights = want.bounded(c.weights)
	}
	return c
}

// appendWeight adds the weight of member number i. The weights begin with the first
// that is not 1.
func appendWeight(weights []uint32, i int, weight uint16) []uint32 {
	for len(weights) < i {
		weights = append(weights, 1)
	}
	return append(weights, uint32(weight))
}

// slots returns the ids for the slots of a set.
func (sp *servicePort) slots(c content, want *wantedSet) []uint32 {
	switch {
	case c.layout == layoutRing:
		ring := want.ring
		if uint32(len(ring)) != c.size || len(c.members) != want.count() {
			ring = maglev.Ring(c.size, sp.ringBackends(c))
		}
		slots := make([]uint32, len(ring))
		for i, member := range ring {
			slots[i] = c.members[member]
		}
		return slots
	case c.weights == nil:
		return c.members
	}
	places := runsOf
	if c.layout == layoutTurns {
		places = turnsOf
	}
	slots := places(bound(c.weights, maxWeighted))
	for i, member := range slots {
		slots[i] = c.members[member]
	}
	return slots
}

// ringBackends returns the members as a ring takes them.
func (sp *servicePort) ringBackends(c content) []maglev.Backend {
	addrs := make(map[uint32]*backend, len(sp.backends))
	for i := range sp.backends {
		addrs[sp.backends[i].id] = &sp.backends[i]
	}
	list := make([]maglev.Backend, len(c.members))
	for i, id := range c.members {
		list[i] = maglev.Backend{AddrPort: addrs[id].addr, Weight: 1}
		if c.weights != nil {
			list[i].Weight = c.weights[i]
		}
	}
	return list
}
