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
	t.foreign = setOf(have.Foreign)
	byID := t.restorePorts(&have)
	t.restoreBackends(&have, byID)
	t.restoreSets(&have, byID)
	for _, r := range have.SourceRanges {
		if sp := byID[r.Service]; sp != nil {
			sp.ranges[r.Prefix] = struct{}{}
			t.ranges++
		} else {
			t.orphans.ranges = append(t.orphans.ranges, r)
		}
	}
	t.restoreFrontends(&have, byID)
	t.nodes.restore(&have)
	return t
}

// orphans are entries that belong to no Service port.
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
	users := make(map[uint32]*servicePort)
	usedBackends := make(map[uint32]bool)
	for _, sp := range t.ports {
		users[sp.id] = sp
		for _, b := range sp.backends {
			usedBackends[b.id] = true
		}
	}
	var errs []error
	for _, r := range t.orphans.ranges {
		if sp := users[r.Service]; sp == nil || !sp.allows(r.Prefix) {
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

// restorePorts takes over the Service ids. A name found twice keeps its first id.
func (t *Tables) restorePorts(have *Snapshot) map[uint32]*servicePort {
	byID := make(map[uint32]*servicePort, len(have.Names))
	end := uint32(0)
	for _, id := range slices.Sorted(maps.Keys(have.Names)) {
		end = id + 1
		name := have.Names[id]
		if t.ports[name.ServicePortName()] != nil {
			t.orphans.services = append(t.orphans.services, id)
			continue
		}
		sp := &servicePort{
			id:     id,
			name:   name,
			ranges: make(map[netip.Prefix]struct{}),
		}
		byID[id] = sp
		t.ports[name.ServicePortName()] = sp
		svc := t.service(name.Port.Service)
		svc.ports = append(svc.ports, name.ServicePortName())
	}
	t.services.restore(end, func(id uint32) bool { return byID[id] != nil })
	return byID
}

// restoreBackends takes over the backend ids. An address found twice keeps its first id. Which sets a backend
// has left is not in the store: each that it is not in counts.
func (t *Tables) restoreBackends(have *Snapshot, byID map[uint32]*servicePort) {
	used := make(map[uint32]bool, len(have.Backends))
	end := uint32(0)
	count := make(map[uint32]int, len(byID))
	for _, b := range have.Backends {
		count[b.Service]++
	}
	for id, sp := range byID {
		sp.backends = make([]backend, 0, count[id])
	}
	for _, id := range slices.Sorted(maps.Keys(have.Backends)) {
		end = id + 1
		b := have.Backends[id]
		sp := byID[b.Service]
		if sp == nil {
			t.orphans.backends = append(t.orphans.backends, orphan{id, b})
			continue
		}
		sp.backends = append(sp.backends, backend{
			addr:       b.AddrPort,
			id:         id,
			generation: b.Generation,
			state:      b.State,
			weight:     b.Weight,
			node:       b.Node,
			left:       membership &^ b.State,
		})
	}
	for _, sp := range byID {
		slices.SortFunc(sp.backends, func(a, b backend) int { return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.id, b.id)) })
		kept := sp.backends[:0]
		for _, b := range sp.backends {
			if len(kept) > 0 && kept[len(kept)-1].addr == b.addr {
				t.orphans.backends = append(t.orphans.backends, orphan{b.id, have.Backends[b.id]})
				continue
			}
			kept = append(kept, b)
			used[b.id] = true
		}
		sp.backends = kept
	}
	t.backends.restore(end, func(id uint32) bool { return used[id] })
}

// restoreSets takes over the sets whose slots all lead to backends of the Service port.
// The others count as rejecting, so that the next Apply writes them anew.
func (t *Tables) restoreSets(have *Snapshot, byID map[uint32]*servicePort) {
	type owner struct {
		run
		port  *servicePort
		local bool
		plain bool // one slot for each endpoint
	}
	var owners []owner
	for id, sp := range byID {
		entry := have.Services[id]
		sp.entry = entry
		known := make(map[uint32]bool, len(sp.backends))
		for _, b := range sp.backends {
			known[b.id] = true
		}
		take := func(set *Set, in *content, local bool) {
			if set.Kind != policy.Backends {
				return
			}
			ids := have.Slots(*set)
			if uint32(len(ids)) != set.Count || slices.ContainsFunc(ids, func(id uint32) bool { return !known[id] }) {
				*set, sp.stale = Set{}, true
				return
			}
			*in = content{raw: ids, sum: slotSum(ids)}
			plain := len(ids) <= len(known) && allDiffer(ids)
			owners = append(owners, owner{run{set.First, set.Count}, sp, local, plain})
		}
		take(&sp.entry.Cluster, &sp.cluster, false)
		take(&sp.entry.Local, &sp.local, true)
	}
	slices.SortFunc(owners, func(a, b owner) int { return cmp.Compare(a.first, b.first) })
	rows := make([]run, len(owners))
	for i, o := range owners {
		rows[i] = o.run
	}
	bad := t.slots.restore(rows, func(i int) bool { return owners[i].plain })
	for _, o := range owners {
		i := slices.Index(bad, o.run)
		if i < 0 {
			continue
		}
		bad = slices.Delete(bad, i, i+1)
		o.port.stale = true
		if o.local {
			o.port.entry.Local, o.port.local = Set{}, content{}
		} else {
			o.port.entry.Cluster, o.port.cluster = Set{}, content{}
		}
	}
}

// allDiffer reports whether no id is there twice.
func allDiffer(ids []uint32) bool {
	return len(slices.Compact(slices.Sorted(slices.Values(ids)))) == len(ids)
}

func (t *Tables) restoreFrontends(have *Snapshot, byID map[uint32]*servicePort) {
	for key, f := range have.Frontends {
		owner := nobody
		if sp := byID[f.Service]; sp != nil {
			owner = sp.name.Port.Service
		}
		t.frontends[key] = &frontend{Frontend: f, owner: owner}
		t.service(owner).frontends[key] = struct{}{}
	}
}
