package tables

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/policy"
)

// Restore returns the tables over a store that a former agent has filled, with
// the ids that it gave. What the former agent left half done, because it was
// killed, belongs to no Service or to one that will be applied again: the next
// Apply or Remove of each Service, and Prune, put it right.
func Restore(store Store, have Snapshot) *Tables {
	t := New(store)
	t.nodeAddrs = maps.Clone(have.NodeAddrs)
	for _, p := range have.ServiceCIDRs {
		t.cidrs[p] = struct{}{}
	}
	byID := t.restoreUnits(&have)
	t.restoreBackends(&have, byID)
	t.restoreSets(&have, byID)
	for _, r := range have.SourceRanges {
		if u := byID[r.Service]; u != nil {
			u.ranges[r.Prefix] = struct{}{}
			t.ranges++
		} else {
			t.orphans.ranges = append(t.orphans.ranges, r)
		}
	}
	t.restoreFrontends(&have, byID)
	t.nodes.restore(&have)
	return t
}

// orphans are entries that belong to no unit.
type orphans struct {
	services []uint32
	backends []orphan
	ranges   []SourceRange
}

type orphan struct {
	id uint32
	Backend
}

// clearOrphans marks as unused what a former agent left half done, unless it has
// been put to use again since.
func (t *Tables) clearOrphans() error {
	users := make(map[uint32]*unit)
	usedBackends := make(map[uint32]bool)
	for _, u := range t.units {
		users[u.id] = u
		for _, b := range u.backends {
			usedBackends[b.id] = true
		}
	}
	var errs []error
	for _, r := range t.orphans.ranges {
		if u := users[r.Service]; u == nil || !u.allows(r.Prefix) {
			errs = append(errs, t.store.DeleteSourceRange(r))
		}
	}
	for i := range t.orphans.backends {
		b := &t.orphans.backends[i]
		t.nodes.move(b.Node, 0)
		b.State, b.Node = 0, 0
		if !usedBackends[b.id] {
			errs = append(errs, t.store.PutBackend(b.id, b.Backend))
		}
	}
	for _, id := range t.orphans.services {
		if users[id] == nil {
			errs = append(errs, t.store.PutService(id, Service{}), t.store.ClearServiceName(id))
		}
	}
	err := errors.Join(errs...)
	if err == nil {
		t.orphans = orphans{}
	}
	return err
}

// restoreUnits takes over the Service ids. A name found twice keeps its first id.
func (t *Tables) restoreUnits(have *Snapshot) map[uint32]*unit {
	byID := make(map[uint32]*unit, len(have.Names))
	end := uint32(0)
	for _, id := range slices.Sorted(maps.Keys(have.Names)) {
		end = id + 1
		name := have.Names[id]
		if t.units[name.Unit()] != nil {
			t.orphans.services = append(t.orphans.services, id)
			continue
		}
		u := &unit{
			id:     id,
			name:   name,
			ranges: make(map[netip.Prefix]struct{}),
		}
		byID[id] = u
		t.units[name.Unit()] = u
		svc := t.service(name.Port.Service)
		svc.units = append(svc.units, name.Unit())
	}
	t.services.restore(end, func(id uint32) bool { return byID[id] != nil })
	return byID
}

// restoreBackends takes over the backend ids. Which sets a backend has left is not
// in the store: each that it is not in counts.
func (t *Tables) restoreBackends(have *Snapshot, byID map[uint32]*unit) {
	used := make(map[uint32]bool, len(have.Backends))
	end := uint32(0)
	for _, id := range slices.Sorted(maps.Keys(have.Backends)) {
		end = id + 1
		b := have.Backends[id]
		u, place, known := byID[b.Service], 0, false
		if u != nil {
			place, known = u.find(b.AddrPort)
		}
		if u == nil || known {
			t.orphans.backends = append(t.orphans.backends, orphan{id, b})
			continue
		}
		u.backends = slices.Insert(u.backends, place, backend{
			addr:       b.AddrPort,
			id:         id,
			generation: b.Generation,
			state:      b.State,
			weight:     b.Weight,
			node:       b.Node,
			left:       membership &^ b.State,
		})
		used[id] = true
	}
	t.backends.restore(end, func(id uint32) bool { return used[id] })
}

// restoreSets takes over the sets whose slots all lead to backends of the unit.
// The others count as refusing, so that the next Apply writes them anew.
func (t *Tables) restoreSets(have *Snapshot, byID map[uint32]*unit) {
	type owner struct {
		run
		unit  *unit
		local bool
	}
	var owners []owner
	for id, u := range byID {
		entry := have.Services[id]
		u.entry = entry
		known := make(map[uint32]bool, len(u.backends))
		for _, b := range u.backends {
			known[b.id] = true
		}
		take := func(set *Set, in *content, local bool) {
			if set.Kind != policy.Backends {
				return
			}
			ids := have.Slots(*set)
			if uint32(len(ids)) != set.Count || slices.ContainsFunc(ids, func(id uint32) bool { return !known[id] }) {
				*set, u.stale = Set{}, true
				return
			}
			*in = content{raw: ids}
			owners = append(owners, owner{run{set.First, set.Count}, u, local})
		}
		take(&u.entry.Cluster, &u.cluster, false)
		take(&u.entry.Local, &u.local, true)
	}
	slices.SortFunc(owners, func(a, b owner) int { return cmp.Compare(a.first, b.first) })
	rows := make([]run, len(owners))
	for i, o := range owners {
		rows[i] = o.run
	}
	bad := t.slots.restore(rows)
	for _, o := range owners {
		i := slices.Index(bad, o.run)
		if i < 0 {
			continue
		}
		bad = slices.Delete(bad, i, i+1)
		o.unit.stale = true
		if o.local {
			o.unit.entry.Local, o.unit.local = Set{}, content{}
		} else {
			o.unit.entry.Cluster, o.unit.cluster = Set{}, content{}
		}
	}
}

func (t *Tables) restoreFrontends(have *Snapshot, byID map[uint32]*unit) {
	for key, f := range have.Frontends {
		owner := nobody
		if u := byID[f.Service]; u != nil {
			owner = u.name.Port.Service
		}
		t.frontends[key] = &frontend{Frontend: f, owner: owner}
		t.service(owner).frontends[key] = struct{}{}
	}
}
