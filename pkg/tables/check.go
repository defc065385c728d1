package tables

import (
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

// Stored tells what a [Store] holds. Its methods are called where those of the Store are.
type Stored interface {
	HoldsServiceName(id uint32, name ServiceName) bool
	HoldsService(id uint32, service Service) bool
	HoldsBackend(id uint32, backend Backend) bool
	// Runs calls fn with the slots of a set, some at a time, as they are in the store.
	Runs(set Set, fn func([]uint32))
	// HoldsFrontend is true only when programs find the frontend, too.
	HoldsFrontend(key FrontendKey, frontend Frontend) (bool, error)
	// StoredFrontends yields all frontends, some at a time.
	StoredFrontends() iter.Seq2[[]StoredFrontend, error]
	// Others returns the small tables: source ranges, Service CIDRs, addresses and nodes.
	Others() (Snapshot, error)
	// CheckDerived compares what the store makes of entries by itself with these: it yields what
	// differs after each of many small parts, between which the store may be written to.
	CheckDerived() iter.Seq2[[]Difference, error]
	// Rederive writes anew what CheckDerived compares.
	Rederive() error
}

// StoredFrontend is a frontend that a store holds.
type StoredFrontend struct {
	Key FrontendKey
	Frontend
	// Lost says that programs do not find it.
	Lost bool
}

// Difference is an entry of the store that is not as it was written, or should be.
type Difference struct {
	Service model.Name // that it is of; zero: not of one alone
	Kind    string     // one word
	Text    string
}

// Check compares a store with what was written to it, some entries at a time. What differs is
// written again. Between two steps the tables may be used.
type Check struct {
	t    *Tables
	have Stored

	names []model.Name // still to be looked at
	next  func() (struct{}, bool)
	stop  func()
	found []Difference
	again map[model.Name]struct{}
	errs  []error
}

// NewCheck begins a check. It is ended by [Check.Stop].
func (t *Tables) NewCheck(have Stored) *Check {
	c := &Check{t: t, have: have, again: make(map[model.Name]struct{})}
	c.names = slices.SortedFunc(maps.Keys(t.owned), model.Name.Compare)
	c.next, c.stop = iter.Pull(c.parts)
	return c
}

// Step looks at some more entries: those of one Service, of some ports of a large one, or a part of the
// others. It reports whether there are more.
func (c *Check) Step() (more bool) {
	_, more = c.next()
	return more
}

// Stop ends the check. It returns what differed and the Services that are to be applied again to
// mend it. The error tells what could not be compared or mended.
func (c *Check) Stop() (found []Difference, again map[model.Name]struct{}, err error) {
	c.stop()
	if len(c.found) > 0 {
		// What the store counts may have been led astray by what somebody else has written.
		c.errs = append(c.errs, c.have.Rederive())
	}
	return c.found, c.again, errors.Join(c.errs...)
}

// parts looks at everything and yields after each part.
func (c *Check) parts(yield func(struct{}) bool) {
	for _, name := range c.names {
		if !c.service(name, yield) {
			return
		}
	}
	c.others()
	if !yield(struct{}{}) {
		return
	}
	if !c.frontends(yield) {
		return
	}
	for found, err := range c.have.CheckDerived() {
		c.found, c.errs = append(c.found, found...), append(c.errs, err)
		if !yield(struct{}{}) {
			return
		}
	}
}

// differs notes a difference and what came of mending it.
func (c *Check) differs(service model.Name, mended error, format string, args ...any) {
	c.found = append(c.found, Difference{service, "entry", fmt.Sprintf(format, args...)})
	c.errs = append(c.errs, mended)
}

// service looks at the entries of a Service, should it still have some, and yields after each part.
func (c *Check) service(name model.Name, yield func(struct{}) bool) (more bool) {
	t := c.t
	svc := t.owned[name]
	if svc == nil {
		return yield(struct{}{})
	}
	looked := 0
	for _, portName := range slices.Clone(svc.ports) {
		sp := t.ports[portName]
		if sp == nil {
			continue // gone since
		}
		c.port(name, sp)
		if looked += 1 + len(sp.backends); looked < lookups {
			continue
		}
		if looked = 0; !yield(struct{}{}) {
			return false
		}
	}
	return yield(struct{}{})
}

func (c *Check) port(service model.Name, sp *servicePort) {
	t := c.t
	if !c.have.HoldsServiceName(sp.id, sp.name) {
		c.differs(service, t.store.PutServiceName(sp.id, sp.name), "description of service id %d", sp.id)
	}
	for i := range sp.backends {
		b := &sp.backends[i]
		if entry := sp.entryOf(b); !c.have.HoldsBackend(b.id, entry) {
			c.differs(service, t.store.PutBackend(b.id, entry), "backend %s", b.addr)
		}
	}
	wrong := c.slots(service, sp.id, sp.entry.Cluster, &sp.cluster)
	wrong = c.slots(service, sp.id, sp.entry.Local, &sp.local) || wrong
	if wrong {
		c.again[service] = struct{}{}
	}
	if !sp.stale && !c.have.HoldsService(sp.id, sp.entry) {
		c.differs(service, t.store.PutService(sp.id, sp.entry), "service id %d", sp.id)
	}
}

// unknown is the content of slots that are not as they were written: no set is to have it, so the
// next Apply writes others.
var unknown = content{layout: ^layout(0)}

// slots looks at the slots of a set.
func (c *Check) slots(service model.Name, id uint32, set Set, in *content) (wrong bool) {
	if set.Kind != policy.Backends || in.layout == unknown.layout {
		return false
	}
	var sum maphash.Hash
	sum.SetSeed(slotSeed)
	c.have.Runs(set, func(slots []uint32) { addSlots(&sum, slots) })
	if sum.Sum64() == in.sum {
		return false
	}
	c.differs(service, nil, "slots of service id %d", id)
	*in = unknown
	return true
}

// lookups is how many entries a part looks up one by one.
const lookups = 500

// frontends looks at those that the store holds, and at each one if some are missing.
func (c *Check) frontends(yield func(struct{}) bool) (more bool) {
	t, seen := c.t, 0
	for list, err := range c.have.StoredFrontends() {
		c.errs = append(c.errs, err)
		for i := range list {
			have := &list[i]
			switch f := t.frontends[have.Key]; {
			case f == nil:
				c.differs(model.Name{}, t.store.DeleteFrontend(have.Key), "frontend %s, which no Service has", have.Key)
			case have.Lost || f.Frontend != have.Frontend:
				c.differs(f.owner, t.store.PutFrontend(have.Key, f.Frontend), "frontend %s", have.Key)
				fallthrough
			default:
				seen++
			}
		}
		if !yield(struct{}{}) {
			return false
		}
	}
	if seen == len(t.frontends) {
		return true
	}
	for keys := range slices.Chunk(slices.Collect(maps.Keys(t.frontends)), lookups) {
		for _, key := range keys {
			c.frontend(key)
		}
		if !yield(struct{}{}) {
			return false
		}
	}
	return true
}

// frontend looks at one that may be missing.
func (c *Check) frontend(key FrontendKey) {
	f := c.t.frontends[key]
	if f == nil {
		return // gone since
	}
	if holds, err := c.have.HoldsFrontend(key, f.Frontend); err != nil {
		c.errs = append(c.errs, err)
	} else if !holds {
		c.differs(f.owner, c.t.store.PutFrontend(key, f.Frontend), "frontend %s", key)
	}
}

// others looks at the small tables.
func (c *Check) others() {
	have, err := c.have.Others()
	if err != nil {
		c.errs = append(c.errs, err)
		return
	}
	c.ranges(&have)
	c.cidrs(&have)
	c.foreign(&have)
	c.nodeAddrs(&have)
	c.nodes(&have)
}

func (c *Check) ranges(have *Snapshot) {
	t := c.t
	want := make(map[SourceRange]model.Name, t.ranges)
	for name, sp := range t.ports {
		for p := range sp.ranges {
			want[SourceRange{sp.id, p}] = name.Port.Service
		}
	}
	compare(want, setOf(have.SourceRanges), func(r SourceRange, service model.Name, wanted bool) {
		if wanted {
			c.differs(service, t.store.PutSourceRange(r), "source range %s", r.Prefix)
		} else {
			c.differs(model.Name{}, t.store.DeleteSourceRange(r), "source range %s of service id %d, which has no such", r.Prefix, r.Service)
		}
	})
}

func (c *Check) cidrs(have *Snapshot) {
	t := c.t
	compare(t.cidrs, setOf(have.ServiceCIDRs), func(p netip.Prefix, _ struct{}, wanted bool) {
		if wanted {
			c.differs(model.Name{}, t.store.PutServiceCIDR(p), "service range %s", p)
		} else {
			c.differs(model.Name{}, t.store.DeleteServiceCIDR(p), "service range %s, which is none", p)
		}
	})
}

func (c *Check) foreign(have *Snapshot) {
	t := c.t
	compare(t.foreign, setOf(have.Foreign), func(addr netip.Addr, _ struct{}, wanted bool) {
		if wanted {
			c.differs(model.Name{}, t.store.PutForeign(addr), "address %s of another proxy", addr)
		} else {
			c.differs(model.Name{}, t.store.DeleteForeign(addr), "address %s of another proxy, which has none there", addr)
		}
	})
}

func (c *Check) nodeAddrs(have *Snapshot) {
	t := c.t
	for addr, a := range t.nodeAddrs {
		if h, ok := have.NodeAddrs[addr]; !ok || h != a {
			c.differs(model.Name{}, t.store.PutNodeAddr(addr, a), "node address %s", addr)
		}
	}
	for addr := range have.NodeAddrs {
		if _, ok := t.nodeAddrs[addr]; !ok {
			c.differs(model.Name{}, t.store.DeleteNodeAddr(addr), "node address %s, at which NodePorts do not answer", addr)
		}
	}
}

func (c *Check) nodes(have *Snapshot) {
	t := c.t
	for id, node := range t.nodes.known {
		if have.Nodes[id] != node.Node {
			c.differs(model.Name{}, t.store.PutNode(id, node.Node), "node %s", node.Name)
		}
	}
	for id := range have.Nodes {
		if t.nodes.known[id] == nil {
			c.differs(model.Name{}, t.store.ClearNode(id), "node id %d, which no node has", id)
		}
	}
	for addr, id := range t.nodes.ids {
		if have.NodeIDs[addr] != id {
			c.differs(model.Name{}, t.store.PutNodeID(addr, id), "address %s of a node", addr)
		}
	}
	for addr := range have.NodeIDs {
		if _, ok := t.nodes.ids[addr]; !ok {
			c.differs(model.Name{}, t.store.DeleteNodeID(addr), "address %s, which no node has", addr)
		}
	}
}

// compare calls fn for what is wanted and not there, and for what is there and not wanted.
func compare[K comparable, V any](want map[K]V, have map[K]struct{}, fn func(key K, v V, wanted bool)) {
	for key, v := range want {
		if _, ok := have[key]; !ok {
			fn(key, v, true)
		}
	}
	for key := range have {
		if v, ok := want[key]; !ok {
			fn(key, v, false)
		}
	}
}

func setOf[K comparable](list []K) map[K]struct{} {
	set := make(map[K]struct{}, len(list))
	for _, k := range list {
		set[k] = struct{}{}
	}
	return set
}

// slotSeed is that of the sums of slots.
var slotSeed = maphash.MakeSeed()

// slotSum returns what tells slots from others.
func slotSum(slots []uint32) uint64 {
	var sum maphash.Hash
	sum.SetSeed(slotSeed)
	addSlots(&sum, slots)
	return sum.Sum64()
}

// addSlots adds slots to a sum.
func addSlots(sum *maphash.Hash, slots []uint32) {
	if len(slots) > 0 {
		_, _ = sum.Write(unsafe.Slice((*byte)(unsafe.Pointer(&slots[0])), 4*len(slots))) // returns no error
	}
}
