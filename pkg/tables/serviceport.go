package tables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// servicePort are the entries of one family of one Service port in the tables.
type servicePort struct {
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

// port returns the Service port of that name, with an id.
func (t *Tables) port(name ServiceName) (*servicePort, error) {
	if sp := t.ports[name.ServicePortName()]; sp != nil {
		if sp.name != name {
			if err := t.store.PutServiceName(sp.id, name); err != nil {
				return nil, err
			}
			sp.name = name
		}
		return sp, nil
	}
	id, err := t.allocate(&t.services, t.store.Limits().Services)
	if err != nil {
		return nil, err
	}
	if err := t.store.PutServiceName(id, name); err != nil {
		t.services.put(id)
		return nil, err
	}
	sp := &servicePort{
		id:     id,
		name:   name,
		ranges: make(map[netip.Prefix]struct{}),
		stale:  true,
	}
	t.ports[name.ServicePortName()] = sp
	return sp, nil
}

// applyPort brings backends, slots and sets of a Service port to the desired state, and adds
// source ranges. Those that go are left until no frontend asks for them.
func (t *Tables) applyPort(sp *servicePort, want *ServicePort) error {
	errs := []error{t.putBackends(sp, want), t.putRanges(sp, want.SourceRanges)}
	entry := Service{AffinitySeconds: want.AffinitySeconds, Algorithm: want.Algorithm, Tunnels: want.Tunnels, Outliers: want.Outliers}
	if place, known := sp.find(want.Trial); known {
		entry.Trial = sp.backends[place].id + 1
	}
	var cluster, local content
	var clusterErr, localErr error
	entry.Cluster, cluster, clusterErr = t.putSet(sp, sp.entry.Cluster, sp.cluster, want.cluster())
	entry.Local, local, localErr = t.putSet(sp, sp.entry.Local, sp.local, want.local())
	errs = append(errs, clusterErr, localErr)
	if entry != sp.entry || sp.stale {
		if err := t.store.PutService(sp.id, entry); err != nil {
			// Nothing leads to the new slots.
			t.dropSet(entry.Cluster, sp.entry.Cluster)
			t.dropSet(entry.Local, sp.entry.Local)
			return errors.Join(append(errs, err)...)
		}
		t.dropSet(sp.entry.Cluster, entry.Cluster)
		t.dropSet(sp.entry.Local, entry.Local)
		sp.entry, sp.cluster, sp.local, sp.stale = entry, cluster, local, false
	}
	var held map[uint32]bool // backends of a set that could not be replaced
	if clusterErr != nil || localErr != nil {
		held = make(map[uint32]bool)
		for _, id := range slices.Concat(sp.cluster.ids(), sp.local.ids()) {
			held[id] = true
		}
	}
	return errors.Join(append(errs, t.dropBackends(sp, want.Sets.Backends, held))...)
}

func (t *Tables) putRanges(sp *servicePort, want []netip.Prefix) error {
	var errs []error
	for _, p := range want {
		if sp.allows(p) {
			continue
		}
		if err := t.store.PutSourceRange(SourceRange{sp.id, p}); err != nil {
			errs = append(errs, fmt.Errorf("source range %s: %w", p, err))
			continue
		}
		sp.ranges[p] = struct{}{}
		t.ranges++
	}
	return errors.Join(errs...)
}

// allows reports whether the Service port has the source range.
func (sp *servicePort) allows(p netip.Prefix) bool {
	_, ok := sp.ranges[p]
	return ok
}

// narrowRanges takes out the source ranges that the ports of a Service had before.
func (t *Tables) narrowRanges(desired *Desired) error {
	var errs []error
	for i := range desired.Ports {
		want := &desired.Ports[i]
		if sp := t.ports[want.Name.ServicePortName()]; sp != nil {
			errs = append(errs, t.dropRanges(sp, want.SourceRanges))
		}
	}
	return errors.Join(errs...)
}

func (t *Tables) dropRanges(sp *servicePort, want []netip.Prefix) error {
	if len(sp.ranges) == 0 {
		return nil
	}
	var errs []error
	wanted := setOf(want)
	for p := range sp.ranges {
		if _, ok := wanted[p]; ok {
			continue
		}
		if err := t.store.DeleteSourceRange(SourceRange{sp.id, p}); err != nil {
			errs = append(errs, fmt.Errorf("source range %s: %w", p, err))
			continue
		}
		delete(sp.ranges, p)
		t.ranges--
	}
	return errors.Join(errs...)
}

// removePort takes out a Service port that no frontend leads to.
func (t *Tables) removePort(name ServicePortName) error {
	sp := t.ports[name]
	if err := errors.Join(t.applyPort(sp, &ServicePort{Name: sp.name}), t.dropRanges(sp, nil)); err != nil {
		return err
	}
	if err := t.store.ClearServiceName(sp.id); err != nil {
		return err
	}
	delete(t.ports, name)
	t.retired.services = append(t.retired.services, sp.id)
	return nil
}
