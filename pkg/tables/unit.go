package tables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// unit is what one family of one Service port has in the tables.
type unit struct {
	id       uint32
	name     ServiceName
	entry    Service
	cluster  content
	local    content
	backends []backend // in the order of their addresses
	ranges   map[netip.Prefix]struct{}
	// stale is set when the store's entry may differ from entry.
	stale bool
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
		id:     id,
		name:   name,
		ranges: make(map[netip.Prefix]struct{}),
		stale:  true,
	}
	t.units[name.Unit()] = u
	return u, nil
}

// applyUnit brings backends, slots and sets of a unit to what is wanted, and adds
// source ranges. Those that go are left until no frontend asks for them.
func (t *Tables) applyUnit(u *unit, want *Unit) error {
	errs := []error{t.putBackends(u, want), t.putRanges(u, want.SourceRanges)}
	entry := Service{AffinitySeconds: want.AffinitySeconds, Algorithm: want.Algorithm, Tunnels: want.Tunnels}
	var cluster, local content
	var clusterErr, localErr error
	entry.Cluster, cluster, clusterErr = t.putSet(u, u.entry.Cluster, u.cluster, want.cluster())
	entry.Local, local, localErr = t.putSet(u, u.entry.Local, u.local, want.local())
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
		for _, id := range slices.Concat(u.cluster.ids(), u.local.ids()) {
			held[id] = true
		}
	}
	return errors.Join(append(errs, t.dropBackends(u, want.Sets.Backends, held))...)
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
