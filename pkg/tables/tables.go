package tables

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

// Tables keeps a [Store] true to what is wanted. It remembers what reached the
// store, so a call writes only what differs, and one that failed can be repeated.
// It is not safe for concurrent use.
type Tables struct {
	store Store

	services ids
	backends ids
	slots    runs

	units     map[UnitName]*unit
	owned     map[model.Name]*service
	frontends map[FrontendKey]*frontend
	nodeAddrs map[netip.Addr]NodeAddr
	cidrs     map[netip.Prefix]struct{}
	ranges    uint32 // source ranges of all units

	retired Retired
	orphans orphans
}

// service is what one Service has in the tables.
type service struct {
	units     []UnitName
	frontends map[FrontendKey]struct{}
	// claims are the frontends it wants that another Service has.
	claims map[FrontendKey]struct{}
}

// unit is what one family of one Service port has in the tables.
type unit struct {
	id       uint32
	name     ServiceName
	entry    Service
	cluster  []uint32 // backend ids of the cluster set
	local    []uint32
	backends map[netip.AddrPort]*backend
	ranges   map[netip.Prefix]struct{}
	// stale is set when the store's entry may differ from entry.
	stale bool
}

// backend is an endpoint that has an id.
type backend struct {
	id         uint32
	generation uint32
	state      BackendState
	// left holds the sets that the backend was in and is not any more: coming
	// back to one makes what was remembered of it void.
	left BackendState
}

type frontend struct {
	Frontend
	owner model.Name
	// waiting are the Services that want the same address and port.
	waiting []model.Name
}

// Retired are ids and slots that no table leads to any more, but a program that
// is still running may have read.
type Retired struct {
	services []uint32
	backends []uint32
	slots    []run
}

// Empty reports whether there is nothing to wait for.
func (r Retired) Empty() bool {
	return len(r.services) == 0 && len(r.backends) == 0 && len(r.slots) == 0
}

// New returns the tables over an empty store.
func New(store Store) *Tables {
	limits := store.Limits()
	return &Tables{
		store:     store,
		services:  ids{limit: limits.Services.Size},
		backends:  ids{limit: limits.Backends.Size},
		slots:     runs{limit: limits.Slots.Size},
		units:     make(map[UnitName]*unit),
		owned:     make(map[model.Name]*service),
		frontends: make(map[FrontendKey]*frontend),
		nodeAddrs: make(map[netip.Addr]NodeAddr),
		cidrs:     make(map[netip.Prefix]struct{}),
	}
}

// ClashError is an address and port that two Services want.
type ClashError struct {
	Key   FrontendKey
	Kind  FrontendKind
	Owner model.Name // has it
}

// Error names the address and the Service that has it.
func (e *ClashError) Error() string {
	return fmt.Sprintf("%s %s belongs to service %s already", e.Kind, e.Key, e.Owner)
}

// Apply brings one Service's entries to what is desired. One entry that fails
// does not hold up the others. The error joins a [ClashError] for each frontend
// that another Service has and a [FullError] for each table without room; calling
// Apply again retries only what is missing.
//
// The returned names are other Services that now may get, or have just lost, a
// frontend: they are to be applied again.
func (t *Tables) Apply(desired Desired) (affected []model.Name, err error) {
	svc := t.service(desired.Name)
	var errs []error
	wanted := make(map[UnitName]bool, len(desired.Units))
	for i := range desired.Units {
		want := &desired.Units[i]
		name := want.Name.Unit()
		wanted[name] = true
		u, err := t.unit(want.Name)
		if err != nil {
			errs = append(errs, fmt.Errorf("port %s: %w", name.Port, err))
			continue
		}
		if !slices.Contains(svc.units, name) {
			svc.units = append(svc.units, name)
		}
		err = t.applyUnit(u, want)
		if errors.Is(err, ErrFull) && !t.retired.Empty() {
			err = t.applyUnit(u, want) // in the room that it has given up itself
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("port %s: %w", name.Port, err))
		}
	}
	affected, err = t.applyFrontends(svc, &desired)
	errs = append(errs, err, t.narrowRanges(&desired))
	for _, name := range slices.Clone(svc.units) {
		if wanted[name] || t.leadsTo(svc, t.units[name].id) {
			continue
		}
		if err := t.removeUnit(name); err != nil {
			errs = append(errs, fmt.Errorf("port %s: %w", name.Port, err))
			continue
		}
		svc.units = slices.DeleteFunc(svc.units, func(n UnitName) bool { return n == name })
	}
	if len(svc.units) == 0 && len(svc.frontends) == 0 && len(svc.claims) == 0 {
		delete(t.owned, desired.Name)
	}
	return affected, errors.Join(errs...)
}

// Reserve makes room for what the Services will need when all of them are about
// to be applied: so many units, and endpoints of all units.
func (t *Tables) Reserve(units, endpoints int) error {
	// A set takes a block of slots up to twice its size.
	return t.store.Reserve(uint32(units), uint32(endpoints), uint32(2*endpoints))
}

func (t *Tables) service(name model.Name) *service {
	svc := t.owned[name]
	if svc == nil {
		svc = &service{
			frontends: make(map[FrontendKey]struct{}),
			claims:    make(map[FrontendKey]struct{}),
		}
		t.owned[name] = svc
	}
	return svc
}

// Remove takes out everything of a Service. It can be repeated after an error.
func (t *Tables) Remove(name model.Name) (affected []model.Name, err error) {
	if t.owned[name] == nil {
		return nil, nil
	}
	return t.Apply(Desired{Name: name})
}

// Prune removes the Services that wanted does not name, and what a former agent
// left half done. To be called once every Service has been applied.
func (t *Tables) Prune(wanted func(model.Name) bool) (affected []model.Name, err error) {
	errs := []error{t.clearOrphans()}
	for _, name := range slices.SortedFunc(maps.Keys(t.owned), model.Name.Compare) {
		if wanted(name) {
			continue
		}
		names, err := t.Remove(name)
		affected = append(affected, names...)
		if err != nil {
			errs = append(errs, fmt.Errorf("service %s: %w", name, err))
		}
	}
	return affected, errors.Join(errs...)
}

// unit returns the unit of that name, with an id.
func (t *Tables) unit(name ServiceName) (*unit, error) {
	if u := t.units[name.Unit()]; u != nil {
		if u.name != name {
			if err := t.store.PutServiceName(u.id, name); err != nil {
				return nil, err
			}
			u.name = name
		}
		return u, nil
	}
	id, err := t.allocate(&t.services, t.store.Limits().Services)
	if err != nil {
		return nil, err
	}
	if err := t.store.PutServiceName(id, name); err != nil {
		t.services.put(id)
		return nil, err
	}
	u := &unit{
		id:       id,
		name:     name,
		backends: make(map[netip.AddrPort]*backend),
		ranges:   make(map[netip.Prefix]struct{}),
		stale:    true,
	}
	t.units[name.Unit()] = u
	return u, nil
}

// allocate takes a free id; it waits for retired ones when there is none.
func (t *Tables) allocate(from *ids, limit Limit) (uint32, error) {
	if id, ok := from.get(); ok {
		return id, nil
	}
	if err := t.reclaim(); err != nil {
		return 0, err
	}
	if id, ok := from.get(); ok {
		return id, nil
	}
	return 0, limit.Full()
}

// reclaim waits until everything retired is free.
func (t *Tables) reclaim() error {
	retired := t.Retire()
	if retired.Empty() {
		return nil
	}
	if err := t.store.Barrier(); err != nil {
		t.retired = retired
		return err
	}
	t.Release(retired)
	return nil
}

// Retire hands over what is waiting for a barrier. The caller calls
// [Store.Barrier], then [Tables.Release].
func (t *Tables) Retire() Retired {
	retired := t.retired
	t.retired = Retired{}
	return retired
}

// Unretire takes back what Retire returned when the barrier failed.
func (t *Tables) Unretire(r Retired) {
	t.retired.services = append(t.retired.services, r.services...)
	t.retired.backends = append(t.retired.backends, r.backends...)
	t.retired.slots = append(t.retired.slots, r.slots...)
}

// Release makes ids and slots free after a barrier.
func (t *Tables) Release(r Retired) {
	for _, id := range r.services {
		t.services.put(id)
	}
	for _, id := range r.backends {
		t.backends.put(id)
	}
	for _, s := range r.slots {
		t.slots.put(s)
	}
}

// applyUnit brings backends, slots and sets of a unit to what is wanted, and adds
// source ranges. Those that go are left until no frontend asks for them.
func (t *Tables) applyUnit(u *unit, want *Unit) error {
	states := wantedStates(want.Sets)
	errs := []error{t.putBackends(u, states), t.putRanges(u, want.SourceRanges)}
	entry := Service{AffinitySeconds: want.AffinitySeconds}
	var cluster, local []uint32
	var clusterErr, localErr error
	entry.Cluster, cluster, clusterErr = t.putSet(u, u.entry.Cluster, u.cluster, want.Sets.Cluster)
	entry.Local, local, localErr = t.putSet(u, u.entry.Local, u.local, want.Sets.Local)
	errs = append(errs, clusterErr, localErr)
	if entry != u.entry || u.stale {
		if err := t.store.PutService(u.id, entry); err != nil {
			// Nothing leads to the new slots.
			t.dropSet(entry.Cluster, u.entry.Cluster)
			t.dropSet(entry.Local, u.entry.Local)
			return errors.Join(append(errs, err)...)
		}
		t.dropSet(u.entry.Cluster, entry.Cluster)
		t.dropSet(u.entry.Local, entry.Local)
		u.entry, u.cluster, u.local, u.stale = entry, cluster, local, false
	}
	var held map[uint32]bool // backends of a set that could not be replaced
	if clusterErr != nil || localErr != nil {
		held = make(map[uint32]bool)
		for _, id := range slices.Concat(u.cluster, u.local) {
			held[id] = true
		}
	}
	return errors.Join(append(errs, t.dropBackends(u, states, held))...)
}

// wantedStates returns each endpoint of both sets with the bits it should have.
func wantedStates(sets policy.Sets) map[netip.AddrPort]BackendState {
	states := make(map[netip.AddrPort]BackendState, max(len(sets.Cluster.Backends), len(sets.Local.Backends)))
	add := func(set policy.Set, member BackendState) {
		for _, b := range set.Backends {
			states[b.AddrPort] |= member | conditions(b)
		}
	}
	add(sets.Cluster, InCluster)
	add(sets.Local, InLocal)
	return states
}

func conditions(b policy.Backend) BackendState {
	var s BackendState
	if b.Ready {
		s |= Ready
	}
	if b.Serving {
		s |= Serving
	}
	if b.Terminating {
		s |= Terminating
	}
	if b.OnNode {
		s |= OnNode
	}
	return s
}

// putBackends gives an id to each endpoint and widens its membership. Bits that
// go are left until the sets no longer lead to it.
func (t *Tables) putBackends(u *unit, states map[netip.AddrPort]BackendState) error {
	var errs []error
	// In the order of addresses, so that equal input gives equal ids.
	var fresh []netip.AddrPort
	for addr, state := range states {
		b := u.backends[addr]
		if b == nil {
			fresh = append(fresh, addr)
			continue
		}
		next := *b
		next.state = state | b.state&membership
		if next.state&^b.state&b.left != 0 {
			next.generation++
			next.left = 0
		}
		errs = append(errs, t.putBackend(u, addr, b, next))
	}
	slices.SortFunc(fresh, netip.AddrPort.Compare)
	for i, addr := range fresh {
		id, err := t.allocate(&t.backends, t.store.Limits().Backends)
		if err != nil {
			errs = append(errs, fmt.Errorf("%d of %d endpoints are not used: %w",
				len(fresh)-i, len(states), err))
			break
		}
		b := &backend{id: id, generation: t.store.Generation(id)}
		next := backend{id: id, generation: b.generation + 1, state: states[addr]}
		if err := t.putBackend(u, addr, b, next); err != nil {
			t.backends.put(id)
			errs = append(errs, err)
			continue
		}
		u.backends[addr] = b
	}
	return errors.Join(errs...)
}

// putBackend writes next in place of b, if it differs.
func (t *Tables) putBackend(u *unit, addr netip.AddrPort, b *backend, next backend) error {
	if next.state != b.state || next.generation != b.generation {
		entry := Backend{AddrPort: addr, Service: u.id, State: next.state, Generation: next.generation}
		if err := t.store.PutBackend(b.id, entry); err != nil {
			return fmt.Errorf("backend %s: %w", addr, err)
		}
	}
	*b = next
	return nil
}

// dropBackends narrows the membership of backends and retires those that are
// wanted no more and not held by a set. It never widens: a backend that comes
// back needs the generation that putBackends writes.
func (t *Tables) dropBackends(u *unit, states map[netip.AddrPort]BackendState, held map[uint32]bool) error {
	var errs []error
	for addr, b := range u.backends {
		if states[addr] == 0 && held[b.id] {
			continue
		}
		next := *b
		next.state = states[addr] &^ (membership &^ b.state)
		next.left |= b.state &^ next.state & membership
		if err := t.putBackend(u, addr, b, next); err != nil {
			errs = append(errs, err)
			continue
		}
		if b.state == 0 {
			delete(u.backends, addr)
			t.retired.backends = append(t.retired.backends, b.id)
		}
	}
	return errors.Join(errs...)
}

// members returns the ids of the set's backends that have one.
func (u *unit) members(set policy.Set) []uint32 {
	members := make([]uint32, 0, len(set.Backends))
	for _, b := range set.Backends {
		if known := u.backends[b.AddrPort]; known != nil {
			members = append(members, known.id)
		}
	}
	return members
}

// putSet writes the slots of a set that differs from the present one, and
// returns the set with the members it got: a part of them when there is no room
// for all, the present ones when it could not be written.
func (t *Tables) putSet(u *unit, have Set, haveMembers []uint32, want policy.Set) (Set, []uint32, error) {
	if want.Kind != policy.Backends {
		return Set{Kind: want.Kind}, nil, nil
	}
	members := u.members(want)
	if len(members) == 0 {
		return Set{Kind: policy.Reject}, nil, nil
	}
	if have.Kind == policy.Backends && slices.Equal(haveMembers, members) {
		return have, haveMembers, nil
	}
	r, err := t.allocateSlots(members)
	if errors.Is(err, ErrFull) && r.count == 0 {
		return Set{Kind: policy.Reject}, nil, err
	}
	if r.count == 0 {
		return have, haveMembers, err
	}
	members = members[:r.count]
	if putErr := t.store.PutSlots(r.first, members); putErr != nil {
		t.slots.put(r)
		return have, haveMembers, errors.Join(err, putErr)
	}
	return Set{policy.Backends, r.first, r.count}, members, err
}

// allocateSlots returns a run for as many of the members as there is room for.
func (t *Tables) allocateSlots(members []uint32) (run, error) {
	all := uint32(len(members))
	if r, ok := t.slots.get(all); ok {
		return r, nil
	}
	if err := t.reclaim(); err != nil {
		return run{}, err
	}
	if r, ok := t.slots.get(all); ok {
		return r, nil
	}
	full := t.store.Limits().Slots.Full()
	for count := uint32(1) << bits.Len32(all-1) / 2; count > 0; count /= 2 {
		if r, ok := t.slots.get(count); ok {
			return r, fmt.Errorf("%d of %d endpoints are not used: %w", all-count, all, full)
		}
	}
	return run{}, fmt.Errorf("no endpoint is used: %w", full)
}

// dropSet retires the slots of old unless kept has them too.
func (t *Tables) dropSet(old, kept Set) {
	if old.Kind == policy.Backends && old != kept {
		t.retired.slots = append(t.retired.slots, run{old.First, old.Count})
	}
}

func (t *Tables) putRanges(u *unit, want []netip.Prefix) error {
	var errs []error
	for _, p := range want {
		if u.allows(p) {
			continue
		}
		if err := t.store.PutSourceRange(SourceRange{u.id, p}); err != nil {
			errs = append(errs, fmt.Errorf("source range %s: %w", p, err))
			continue
		}
		u.ranges[p] = struct{}{}
		t.ranges++
	}
	return errors.Join(errs...)
}

// allows reports whether the unit has the source range.
func (u *unit) allows(p netip.Prefix) bool {
	_, ok := u.ranges[p]
	return ok
}

// narrowRanges takes out the source ranges that the units of a Service had before.
func (t *Tables) narrowRanges(desired *Desired) error {
	var errs []error
	for i := range desired.Units {
		want := &desired.Units[i]
		if u := t.units[want.Name.Unit()]; u != nil {
			errs = append(errs, t.dropRanges(u, want.SourceRanges))
		}
	}
	return errors.Join(errs...)
}

func (t *Tables) dropRanges(u *unit, want []netip.Prefix) error {
	var errs []error
	for p := range u.ranges {
		if slices.Contains(want, p) {
			continue
		}
		if err := t.store.DeleteSourceRange(SourceRange{u.id, p}); err != nil {
			errs = append(errs, fmt.Errorf("source range %s: %w", p, err))
			continue
		}
		delete(u.ranges, p)
		t.ranges--
	}
	return errors.Join(errs...)
}

// removeUnit takes out a unit that no frontend leads to.
func (t *Tables) removeUnit(name UnitName) error {
	u := t.units[name]
	if err := errors.Join(t.applyUnit(u, &Unit{Name: u.name}), t.dropRanges(u, nil)); err != nil {
		return err
	}
	if err := t.store.ClearServiceName(u.id); err != nil {
		return err
	}
	delete(t.units, name)
	t.retired.services = append(t.retired.services, u.id)
	return nil
}

// leadsTo reports whether a frontend of the Service still leads to the unit.
func (t *Tables) leadsTo(svc *service, id uint32) bool {
	for key := range svc.frontends {
		if t.frontends[key].Service == id {
			return true
		}
	}
	return false
}

// sortedKeys returns the keys of a set of frontends in a fixed order.
func sortedKeys(set map[FrontendKey]struct{}) []FrontendKey {
	keys := make([]FrontendKey, 0, len(set))
	for k := range set {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, FrontendKey.Compare)
	return keys
}

// Fill is how full a table is.
type Fill struct {
	Limit
	Used uint32 // slots are counted in the blocks that hold them
}

// Usage returns how full the tables are that can run out.
func (t *Tables) Usage() []Fill {
	limits := t.store.Limits()
	return []Fill{
		{limits.Services, t.services.inUse},
		{limits.Backends, t.backends.inUse},
		{limits.Slots, t.slots.inUse},
		{limits.Frontends, uint32(len(t.frontends))},
		{limits.SourceRanges, t.ranges},
	}
}

// stronger reports whether frontend a displaces b: a ClusterIP is given by the
// cluster, the other addresses are chosen by whoever writes the Service.
func stronger(a, b Frontend) bool {
	return ofCluster(a) && !ofCluster(b)
}

func ofCluster(f Frontend) bool {
	return f.Kind == FrontendClusterIP || f.Flags&RefuseOthers != 0
}
