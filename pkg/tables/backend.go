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
	// back to one makes void what was remembered of it for new connections.
	left BackendState
}

// Backends of a Service port and of the sets that it wants are in the order of addresses, so
// that one is compared with the other in one pass.

// cursor passes along backends.
type cursor struct{ list []backend }

// find returns the backend of an address; nil when there is none. The address is behind
// those of the calls before.
func (c *cursor) find(addr netip.AddrPort) *backend {
	for len(c.list) > 0 {
		b := &c.list[0]
		if b.addr != addr && b.addr.Compare(addr) > 0 {
			return nil
		}
		c.list = c.list[1:]
		if b.addr == addr {
			return b
		}
	}
	return nil
}

// stateOf returns the bits that a backend should have.
func stateOf(b *policy.Backend) BackendState {
	var s BackendState
	if b.InCluster {
		s |= InCluster
	}
	if b.InLocal {
		s |= InLocal
	}
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

// putBackends gives an id to each endpoint of a set and widens its membership. Bits that
// go are left until the sets no longer lead to it. One that serves in no set needs none unless
// it has been in one.
func (t *Tables) putBackends(sp *servicePort, want *ServicePort) error {
	var errs []error
	var fresh []*policy.Backend
	known := cursor{sp.backends}
	for i := range want.Sets.Backends {
		w := &want.Sets.Backends[i]
		b := known.find(w.AddrPort)
		if b == nil {
			if w.InSet() {
				fresh = append(fresh, w)
			}
			continue
		}
		next := *b
		next.state, next.weight, next.node = stateOf(w)|b.state&membership, w.Weight, t.nodes.of(want, w)
		if next == *b {
			continue
		}
		if next.state&^b.state&b.left != 0 {
			next.generation += ComeBack
			next.left = 0
		}
		if err := t.putBackend(sp, b, next); err != nil {
			errs = append(errs, err)
		}
	}
	added, err := t.addBackends(sp, want, fresh)
	sp.backends = merge(sp.backends, added)
	return errors.Join(append(errs, err)...)
}

// addBackends gives ids to endpoints that have none, in the order of addresses, so
// that equal input gives equal ids.
func (t *Tables) addBackends(sp *servicePort, want *ServicePort, fresh []*policy.Backend) ([]backend, error) {
	var errs []error
	added := make([]backend, 0, len(fresh))
	for i, w := range fresh {
		id, err := t.allocate(&t.backends, t.store.Limits().Backends)
		if err != nil {
			errs = append(errs, fmt.Errorf("%d of %d endpoints are not used: %w", len(fresh)-i, want.inSets(), err))
			break
		}
		b := backend{addr: w.AddrPort, id: id, generation: t.store.Generation(id)}
		next := b
		next.generation, next.state, next.weight = b.generation+1, stateOf(w), w.Weight
		next.node = t.nodes.of(want, w)
		if err := t.putBackend(sp, &b, next); err != nil {
			t.backends.put(id)
			errs = append(errs, err)
			continue
		}
		added = append(added, b)
	}
	return added, errors.Join(errs...)
}

// inSets returns how many endpoints are in a set.
func (sp *ServicePort) inSets() (n int) {
	for i := range sp.Sets.Backends {
		if sp.Sets.Backends[i].InSet() {
			n++
		}
	}
	return n
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

// entryOf returns the entry of a backend of the Service port.
func (sp *servicePort) entryOf(b *backend) Backend {
	return Backend{
		AddrPort: b.addr, Service: sp.id, State: b.state, Generation: b.generation,
		Weight: b.weight, Node: b.node,
	}
}

// putBackend writes next in place of b.
func (t *Tables) putBackend(sp *servicePort, b *backend, next backend) error {
	if err := t.store.PutBackend(b.id, sp.entryOf(&next)); err != nil {
		return fmt.Errorf("backend %s: %w", b.addr, err)
	}
	t.nodes.move(b.node, next.node)
	*b = next
	return nil
}

// dropBackends narrows the membership of backends and retires those that serve no more and are
// not held by a set. It never widens: a backend that comes
// back needs the generation that putBackends writes.
func (t *Tables) dropBackends(sp *servicePort, wanted []policy.Backend, held map[uint32]bool) error {
	var errs []error
	kept := sp.backends[:0]
	for i := range sp.backends {
		b := &sp.backends[i]
		for len(wanted) > 0 && wanted[0].AddrPort != b.addr && wanted[0].AddrPort.Compare(b.addr) < 0 {
			wanted = wanted[1:]
		}
		var state BackendState
		if len(wanted) > 0 && wanted[0].AddrPort == b.addr {
			state, wanted = stateOf(&wanted[0]), wanted[1:]
		}
		state &^= membership &^ b.state
		if state != b.state && (state != 0 || !held[b.id]) {
			next := *b
			next.state = state
			next.left |= b.state &^ state & membership
			if state == 0 {
				next.node = 0
			}
			if err := t.putBackend(sp, b, next); err != nil {
				errs = append(errs, err)
			}
		}
		if b.state == 0 {
			t.retired.backends = append(t.retired.backends, b.id)
			continue
		}
		if len(kept) < i {
			sp.backends[len(kept)] = *b
		}
		kept = kept[:len(kept)+1]
	}
	clear(sp.backends[len(kept):])
	sp.backends = kept
	return errors.Join(errs...)
}

// find returns the place of an address among the backends of the Service port.
func (sp *servicePort) find(addr netip.AddrPort) (int, bool) {
	return slices.BinarySearchFunc(sp.backends, addr, func(b backend, addr netip.AddrPort) int {
		return b.addr.Compare(addr)
	})
}

// Backends calls fn for each backend of a Service port that is in a set.
func (t *Tables) Backends(name ServicePortName, fn func(id uint32, b Backend)) {
	sp := t.ports[name]
	if sp == nil {
		return
	}
	for i := range sp.backends {
		b := &sp.backends[i]
		if !b.state.InSet() {
			continue
		}
		fn(b.id, Backend{AddrPort: b.addr, Service: sp.id, State: b.state, Generation: b.generation, Weight: b.weight})
	}
}

// Weight returns the weight of a backend of a Service port; false when there is no such backend.
func (t *Tables) Weight(name ServicePortName, addr netip.AddrPort) (uint16, bool) {
	sp := t.ports[name]
	if sp == nil {
		return 0, false
	}
	i, found := sp.find(addr)
	if !found {
		return 0, false
	}
	return sp.backends[i].weight, true
}
