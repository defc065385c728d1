package tables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/policy"
)

// backend is an endpoint that has an id.
type backend struct {
	addr       netip.AddrPort
	id         uint32
	generation uint32
	state      BackendState
	weight     uint16
	node       uint16
	// left holds the sets that the backend was in and is not any more: coming
	// back to one makes what was remembered of it void.
	left BackendState
}

// endpoint is one that a unit wants, with the bits it should have.
type endpoint struct {
	addr   netip.AddrPort
	state  BackendState
	weight uint16
	node   uint16 // set by nodes.locate
	host   string // the name of the node
}

// Backends of a unit, wanted endpoints and the sets of pkg/policy are all in the
// order of addresses, so that each is compared with another in one pass.

// appendWanted appends the endpoints of both sets.
func appendWanted(wanted []endpoint, sets policy.Sets) []endpoint {
	cluster, local := sets.Cluster.Backends, sets.Local.Backends
	for len(cluster) > 0 || len(local) > 0 {
		order := 0
		switch {
		case len(local) == 0:
			order = -1
		case len(cluster) == 0:
			order = 1
		default:
			order = cluster[0].AddrPort.Compare(local[0].AddrPort)
		}
		var e endpoint
		if order <= 0 {
			e.take(&cluster[0], InCluster)
			cluster = cluster[1:]
		}
		if order >= 0 {
			e.take(&local[0], InLocal)
			local = local[1:]
		}
		wanted = append(wanted, e)
	}
	return wanted
}

// take adds that the endpoint is in a set.
func (e *endpoint) take(b *policy.Backend, set BackendState) {
	e.addr, e.weight, e.host = b.AddrPort, b.Weight, b.NodeName
	e.state |= set | conditions(b)
}

func conditions(b *policy.Backend) BackendState {
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
	if b.Weight == 0 {
		s |= NoNew
	}
	return s
}

// putBackends gives an id to each endpoint and widens its membership. Bits that
// go are left until the sets no longer lead to it.
func (t *Tables) putBackends(u *unit, wanted []endpoint) error {
	var errs []error
	var fresh []endpoint
	known := u.backends
	for _, want := range wanted {
		known = from(known, want.addr)
		if len(known) == 0 || known[0].addr != want.addr {
			fresh = append(fresh, want)
			continue
		}
		b := &known[0]
		next := *b
		next.state, next.weight, next.node = want.state|b.state&membership, want.weight, want.node
		if next.state&^b.state&b.left != 0 {
			next.generation++
			next.left = 0
		}
		if err := t.putBackend(u, b, next); err != nil {
			errs = append(errs, err)
		}
	}
	added, err := t.addBackends(u, fresh, len(wanted))
	u.backends = merge(u.backends, added)
	return errors.Join(append(errs, err)...)
}

// from returns the backends of list from addr on.
func from(list []backend, addr netip.AddrPort) []backend {
	for len(list) > 0 && list[0].addr.Compare(addr) < 0 {
		list = list[1:]
	}
	return list
}

// addBackends gives ids to endpoints that have none, in the order of addresses, so
// that equal input gives equal ids. all is how many the unit wants.
func (t *Tables) addBackends(u *unit, fresh []endpoint, all int) ([]backend, error) {
	var errs []error
	added := make([]backend, 0, len(fresh))
	for i, want := range fresh {
		id, err := t.allocate(&t.backends, t.store.Limits().Backends)
		if err != nil {
			errs = append(errs, fmt.Errorf("%d of %d endpoints are not used: %w", len(fresh)-i, all, err))
			break
		}
		b := backend{addr: want.addr, id: id, generation: t.store.Generation(id)}
		next := b
		next.generation, next.state, next.weight = b.generation+1, want.state, want.weight
		next.node = want.node
		if err := t.putBackend(u, &b, next); err != nil {
			t.backends.put(id)
			errs = append(errs, err)
			continue
		}
		added = append(added, b)
	}
	return added, errors.Join(errs...)
}

// merge adds backends to list, from the end on, in place where there is room.
func merge(list, added []backend) []backend {
	i, j := len(list)-1, len(added)-1
	list = append(list, added...)
	for k := len(list) - 1; j >= 0; k-- {
		if i >= 0 && list[i].addr.Compare(added[j].addr) > 0 {
			list[k] = list[i]
			i--
		} else {
			list[k] = added[j]
			j--
		}
	}
	return list
}

// putBackend writes next in place of b, if it differs.
func (t *Tables) putBackend(u *unit, b *backend, next backend) error {
	if next.state != b.state || next.generation != b.generation || next.weight != b.weight || next.node != b.node {
		entry := Backend{
			AddrPort: b.addr, Service: u.id, State: next.state, Generation: next.generation,
			Weight: next.weight, Node: next.node,
		}
		if err := t.store.PutBackend(b.id, entry); err != nil {
			return fmt.Errorf("backend %s: %w", b.addr, err)
		}
	}
	t.nodes.move(b.node, next.node)
	*b = next
	return nil
}

// dropBackends narrows the membership of backends and retires those that are
// wanted no more and not held by a set. It never widens: a backend that comes
// back needs the generation that putBackends writes.
func (t *Tables) dropBackends(u *unit, wanted []endpoint, held map[uint32]bool) error {
	var errs []error
	kept := u.backends[:0]
	for _, b := range u.backends {
		for len(wanted) > 0 && wanted[0].addr.Compare(b.addr) < 0 {
			wanted = wanted[1:]
		}
		var state BackendState
		if len(wanted) > 0 && wanted[0].addr == b.addr {
			state = wanted[0].state
		}
		if state == 0 && held[b.id] {
			kept = append(kept, b)
			continue
		}
		next := b
		next.state = state &^ (membership &^ b.state)
		next.left |= b.state &^ next.state & membership
		if next.state == 0 {
			next.node = 0
		}
		if err := t.putBackend(u, &b, next); err != nil {
			errs = append(errs, err)
		}
		if b.state == 0 {
			t.retired.backends = append(t.retired.backends, b.id)
			continue
		}
		kept = append(kept, b)
	}
	clear(u.backends[len(kept):])
	u.backends = kept
	return errors.Join(errs...)
}

// find returns the place of an address among the unit's backends.
func (u *unit) find(addr netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(u.backends, addr, func(b backend, addr netip.AddrPort) int {
		return b.addr.Compare(addr)
	})
}
