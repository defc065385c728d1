package tables

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"

	"github.com/beeline-lb/beeline/pkg/maglev"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

// Bounds keep one Service, or one namespace, from taking the room of all others. 0 is the
// default.
type Bounds struct {
	// SlotsPerService and SlotsPerNamespace are how many slots rings and weights may
	// take, beyond one for each endpoint. They default to an eighth and a quarter of the
	// table.
	SlotsPerService   uint32
	SlotsPerNamespace uint32
	// ReservedSlots are never taken by rings and weights. Defaults to a quarter of the
	// table.
	ReservedSlots uint32
}

// SetBounds sets the bounds. To be called before anything is applied.
func (t *Tables) SetBounds(b Bounds) {
	t.room.bounds = Bounds{
		SlotsPerService:   cmp.Or(b.SlotsPerService, uint32(t.room.slots/8)),
		SlotsPerNamespace: cmp.Or(b.SlotsPerNamespace, uint32(t.room.slots/4)),
		ReservedSlots:     cmp.Or(b.ReservedSlots, uint32(t.room.slots/4)),
	}
	t.slots.bound = uint32(t.room.left())
}

// Sets of one slot for each endpoint always find room; what rings and weights take
// beyond that is shared out. The shares follow from what all Services ask for at a time and
// from nothing else, neither from the order in which they came nor from what is in the
// tables: so they are the same on all nodes whose cluster sets are the same, and after a restart. No
// namespace gets less than an equal part of what there is, unless it asks for less, and within
// a namespace no Service; so it is large demands that are cut.

// plainBound is the bound of a set that has one slot for each endpoint.
const plainBound = 1

// The bounds of a set are powers of two, those of the rings.
const (
	leastOrder = 8
	fullOrder  = 24
)

// ask is the demand of a Service.
type ask struct {
	want, given Demand // of the other tables; what it has of it

	// Of slots.
	sets       []askSet
	order      int // what its own bound leaves it
	givenOrder int // what it has; 0 is one slot for each endpoint
}

// slotsPerBackend is how many slots a backend takes at most where each has one: a set takes a
// block of up to twice its size, and the backend may be in the Cluster set and the Local set. It
// is in the latter on the nodes that its EndpointSlice names, which may be a single one.
const slotsPerBackend = 4

// plain returns how many slots sets with one for each endpoint take.
func (a *ask) plain() uint64 { return slotsPerBackend * uint64(a.want[ofBackends]) }

// askSet is a set that asks for more slots than one for each endpoint.
type askSet struct {
	count   int
	ring    uint32 // slots that its ring asks for; 0: it has none
	weights uint64 // sum of the weights
}

// block returns the slots that a set of so many takes.
func block(slots uint64) uint64 {
	if slots == 0 {
		return 0
	}
	return 1 << bits.Len64(slots-1)
}

// slots returns how many slots the set takes within a bound.
func (s *askSet) slots(bound uint64) uint64 {
	plain := uint64(s.count)
	if s.ring > 0 {
		if size := boundRing(s.ring, s.count, uint32(min(bound, math.MaxUint32))); size > 0 {
			return uint64(size)
		}
		return plain
	}
	if bound <= plain {
		return plain
	}
	return min(s.weights, bound)
}

// boundRing returns the greatest size of a ring that is not above size and bound and has a
// slot for each backend; 0 when there is none.
func boundRing(size uint32, backends int, bound uint32) uint32 {
	if size <= bound {
		return size
	}
	for _, s := range slices.Backward(maglev.Sizes) {
		if s <= bound && s < size && int(s) >= backends {
			return s
		}
	}
	return 0
}

// extra returns how many slots the sets take within a bound of 2^order beyond one for each
// endpoint.
func (a *ask) extra(order int) uint64 {
	if order == 0 {
		return 0
	}
	var extra uint64
	for i := range a.sets {
		s := &a.sets[i]
		extra += block(s.slots(1<<order)) - block(uint64(s.count))
	}
	return extra
}

// within returns the greatest order with which the sets take no more than room.
func (a *ask) within(room uint64, most int) int {
	for order := most; order >= leastOrder; order-- {
		if a.extra(order) <= room {
			return order
		}
	}
	return 0
}

// room shares out what the tables hold.
type room struct {
	quotas [resources]quota
	asks   map[string]map[model.Name]*ask // by namespace

	bounds Bounds
	slots  uint64 // of the table
	plain  uint64 // sum of all Services
	// sums are what the Services of a namespace ask for, each within its own bound; all is
	// their sum.
	sums map[string]uint64
	all  uint64
	// touched are the Services that ask for something else since the last Share.
	touched map[model.Name]struct{}
	short   bool // in the last Share a Service got less than it asks for
}

func newRoom(l *Limits) room {
	return room{
		quotas:  newQuotas(l),
		slots:   uint64(l.Slots.Size),
		asks:    make(map[string]map[model.Name]*ask),
		sums:    make(map[string]uint64),
		touched: make(map[model.Name]struct{}),
	}
}

// ask returns what a Service asks for and has; nil: it is not known.
func (r *room) ask(name model.Name) *ask { return r.asks[name.Namespace][name] }

// setAsk notes what a Service asks for; nil: it is gone.
func (r *room) setAsk(name model.Name, a *ask) {
	asks := r.asks[name.Namespace]
	if a == nil {
		if delete(asks, name); len(asks) == 0 {
			delete(r.asks, name.Namespace)
		}
		return
	}
	if asks == nil {
		asks = make(map[model.Name]*ask)
		r.asks[name.Namespace] = asks
	}
	asks[name] = a
}

// Want notes what a Service asks for; desired nil is gone. Shares are those of before until
// [Tables.Share].
func (t *Tables) Want(name model.Name, desired *Desired, demand Demand) {
	r := &t.room
	before, next := r.ask(name), &ask{}
	if before == nil {
		before = &ask{}
	}
	if desired != nil {
		next = desired.ask()
		next.want = demand
	}
	next.given, next.givenOrder = before.given, before.givenOrder
	next.order = next.within(uint64(r.bounds.SlotsPerService), fullOrder)
	if next.want != before.want || desired == nil {
		for of := range resources {
			r.quotas[of].move(name.Namespace, before.want[of], next.want[of])
		}
		r.touched[name] = struct{}{}
	}
	r.plain += next.plain() - before.plain()
	if len(before.sets) > 0 || len(next.sets) > 0 {
		more := next.extra(next.order) - before.extra(before.order)
		r.all += more
		r.sums[name.Namespace] += more
		if r.sums[name.Namespace] == 0 {
			delete(r.sums, name.Namespace)
		}
		r.touched[name] = struct{}{}
	}
	if desired == nil {
		next = nil
	}
	r.setAsk(name, next)
}

// left returns how many slots rings and weights may take. Endpoints beyond those that there
// is room for need none.
func (r *room) left() uint64 {
	plain := min(r.plain, slotsPerBackend*uint64(r.quotas[ofBackends].Size))
	kept := max(uint64(r.bounds.ReservedSlots), plain)
	return max(r.slots, kept) - kept
}

// toShare returns how many of them are shared out. With the others a set is replaced, even
// the largest one, or a quarter of all, where a Service may have all.
func (r *room) toShare() uint64 {
	left := r.left()
	return left - min(uint64(r.bounds.SlotsPerService), left/4)
}

// ask returns what the sets of the Service ask for.
func (d *Desired) ask() *ask {
	a := &ask{}
	for i := range d.Ports {
		sp := &d.Ports[i]
		cluster := sp.cluster().ask()
		a.add(cluster)
		if sp.usesLocal() {
			a.add(sp.local().ask().atLeast(cluster))
		}
	}
	return a
}

// add adds a set, unless it asks for no more than one slot for each endpoint.
func (a *ask) add(s askSet) {
	if s.ring > 0 || s.weights > uint64(s.count) {
		a.sets = append(a.sets, s)
	}
}

// atLeast returns what a local set asks for, and no less than the cluster set: on another node it may have
// all endpoints, and the Service gets the same on each.
func (s askSet) atLeast(cluster askSet) askSet {
	return askSet{max(s.count, cluster.count), max(s.ring, cluster.ring), max(s.weights, cluster.weights)}
}

func (w *wantedSet) ask() (s askSet) {
	if w.kind != policy.Backends {
		return s
	}
	s.count = w.count()
	if s.count == 0 {
		return askSet{}
	}
	if w.layout == layoutRing {
		s.ring = w.wantedSize(s.count)
	} else if w.weighted {
		s.weights = min(sum(reduce(w.weights())), maxWeighted+uint64(s.count))
	}
	return s
}

// Share shares out what the tables hold and returns the Services whose share has changed:
// they are to be applied again. less are the Services, those that are gone among them, that
// leave room to others: they are to be applied first.
func (t *Tables) Share() (changed, less map[model.Name]struct{}) {
	changed, less = t.room.shareTables()
	t.slots.bound = uint32(t.room.left())
	for name, given := range t.room.shareSlots() {
		a := t.room.ask(name)
		changed[name] = struct{}{}
		if given < a.givenOrder {
			less[name] = struct{}{}
		}
		a.givenOrder = given
	}
	clear(t.room.touched)
	return changed, less
}

// shareSlots returns the Services whose share of slots is to change, with the order of the new one.
func (r *room) shareSlots() (changed map[model.Name]int) {
	left := r.toShare()
	if !r.short && len(r.touched) == 0 && r.all <= left {
		return nil
	}
	enough := !r.short && r.all <= left
	for name := range r.touched {
		enough = enough && r.sums[name.Namespace] <= uint64(r.bounds.SlotsPerNamespace)
	}
	changed = make(map[model.Name]int)
	if enough {
		r.giveAll(changed)
	} else {
		r.giveShares(changed, left)
	}
	return changed
}

// giveAll gives the Services that ask for something else what they ask for.
func (r *room) giveAll(changed map[model.Name]int) {
	for name := range r.touched {
		if a := r.ask(name); a != nil && len(a.sets) > 0 && a.givenOrder != a.order {
			changed[name] = a.order
		}
	}
}

// giveShares gives each namespace its share.
func (r *room) giveShares(changed map[model.Name]int, left uint64) {
	byNamespace := make(map[string][]model.Name)
	for namespace, asks := range r.asks {
		for name, a := range asks {
			if len(a.sets) > 0 {
				byNamespace[namespace] = append(byNamespace[namespace], name)
			}
		}
	}
	sum := func(namespace string) uint64 { return min(r.sums[namespace], uint64(r.bounds.SlotsPerNamespace)) }
	namespaces := slices.SortedFunc(maps.Keys(byNamespace), func(a, b string) int {
		return cmp.Or(cmp.Compare(sum(a), sum(b)), cmp.Compare(a, b))
	})
	r.short = false
	for i, namespace := range namespaces {
		part := min(sum(namespace), left/uint64(len(namespaces)-i))
		taken := r.shareNamespace(changed, byNamespace[namespace], part)
		left -= taken
		r.short = r.short || taken < r.sums[namespace]
	}
}

// shareNamespace shares out room among the Services of a namespace.
func (r *room) shareNamespace(changed map[model.Name]int, names []model.Name, left uint64) (taken uint64) {
	slices.SortFunc(names, func(a, b model.Name) int {
		x, y := r.ask(a), r.ask(b)
		return cmp.Or(cmp.Compare(x.extra(x.order), y.extra(y.order)), a.Compare(b))
	})
	for i, name := range names {
		a := r.ask(name)
		given := a.within(left/uint64(len(names)-i), a.order)
		left -= a.extra(given)
		taken += a.extra(given)
		if given != a.givenOrder {
			changed[name] = given
		}
	}
	return taken
}

// shared returns how many slots are shared out.
func (r *room) shared() (slots uint64) {
	for _, asks := range r.asks {
		for _, a := range asks {
			slots += a.extra(a.givenOrder)
		}
	}
	return slots
}

// Bound bounds the slots that a Service wants to have to its share. It returns what was asked for of all
// tables and is not given; none when all is.
func (t *Tables) Bound(d *Desired) []model.Fault {
	a := t.room.ask(d.Name)
	if a == nil {
		return nil
	}
	faults := t.room.less(a, d)
	if len(a.sets) == 0 || a.extra(a.givenOrder) == a.extra(fullOrder) {
		return faults
	}
	for i := range d.Ports {
		d.Ports[i].bind(a.givenOrder)
	}
	return append(faults, model.Fault{Reason: a.reason(&t.room.bounds), Partly: true})
}

// bind bounds the sets of a Service port. When a ring has no room, its algorithm is random.
func (sp *ServicePort) bind(order int) {
	bound := uint32(plainBound)
	if order > 0 {
		bound = 1 << order
	}
	for _, want := range []*wantedSet{sp.cluster(), sp.local()} {
		s := want.ask()
		if s.slots(uint64(bound)) != s.slots(1<<fullOrder) {
			sp.Name.Bound = bound
		}
		if s.ring > 0 && boundRing(s.ring, s.count, bound) == 0 {
			sp.Name.Bound, sp.Algorithm = plainBound, model.Random
			return
		}
	}
}

// reason describes what a Service gets in place of its demand. It has no numbers that
// change with each endpoint.
func (a *ask) reason(b *Bounds) string {
	served := "each endpoint has one slot, without rings and weights"
	if a.givenOrder > 0 {
		served = fmt.Sprintf("rings and weights have at most %d slots in a set", 1<<a.givenOrder)
	}
	if a.givenOrder == a.order {
		return fmt.Sprintf("%s: more is beyond tables.maxSlotsPerService %d", served, b.SlotsPerService)
	}
	return fmt.Sprintf("%s: more is beyond the share of the namespace (tables.maxSlotsPerNamespace %d, tables.reservedSlots %d)",
		served, b.SlotsPerNamespace, b.ReservedSlots)
}
