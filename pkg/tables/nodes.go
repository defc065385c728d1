package tables

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

// nodes are the nodes of the cluster. An id belongs to an address that packets are
// tunneled to, whatever the name of the node.
type nodes struct {
	limit  Limit
	known  map[uint16]*node
	byAddr map[netip.Addr]uint16
	byName map[string]uint16
	ids    map[netip.Addr]uint16 // what the store has, of all addresses
	// users are the Services with endpoints on a node to which packets are tunneled.
	users map[string]map[model.Name]struct{}

	next uint32   // every id from here on is free
	free []uint16 // ids below next, that which has been free longest first
	// stale is set while there may be nodes to drop.
	stale bool
	// changed is set when [Tables.Nodes] would return something else.
	changed bool
}

// node is a node that has an id.
type node struct {
	Node
	backends int // that are on it
	wanted   bool
}

func newNodes(limit Limit) nodes {
	return nodes{
		limit:  limit,
		known:  make(map[uint16]*node),
		byAddr: make(map[netip.Addr]uint16),
		byName: make(map[string]uint16),
		ids:    make(map[netip.Addr]uint16),
		users:  make(map[string]map[model.Name]struct{}),
		next:   1,
	}
}

// SetNodes replaces the nodes of the cluster, of which self is this one. Those that are
// gone are kept until [Tables.DropNodes], for backends lead to them.
//
// The returned names are Services that have backends on nodes whose id has changed: they
// are to be applied again. Nodes beyond the table's limit have no id; the error then
// holds a [FullError].
func (t *Tables) SetNodes(cluster []*model.Node, self string) (affected []model.Name, err error) {
	n := &t.nodes
	list := slices.DeleteFunc(slices.Clone(cluster), func(p *model.Node) bool { return !p.Tunnel.IsValid() })
	slices.SortFunc(list, func(a, b *model.Node) int {
		switch self { // comes first
		case a.Name:
			return -1
		case b.Name:
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	for _, node := range n.known {
		node.wanted = false
	}
	var errs []error
	byName, left := make(map[string]uint16, len(list)), 0
	for _, p := range list {
		id, err := t.putNode(Node{Addr: p.Tunnel, Name: p.Name, Self: p.Name == self})
		switch {
		case errors.Is(err, ErrFull):
			left++
		case err != nil:
			errs = append(errs, fmt.Errorf("node %s: %w", p.Name, err))
		}
		if id != 0 {
			byName[p.Name] = id
		}
	}
	if left > 0 {
		errs = append(errs, fmt.Errorf("%d of %d nodes get no packets in a tunnel: %w", left, len(list), n.limit.Full()))
	}
	errs = append(errs, t.putNodeIDs(list, byName))
	affected = n.rename(byName)
	n.changed = true
	return affected, errors.Join(errs...)
}

// putNode returns the id of a node, 0 when it has none. The first of several nodes of one
// address gives it its name.
func (t *Tables) putNode(want Node) (uint16, error) {
	n := &t.nodes
	if id, ok := n.byAddr[want.Addr]; ok {
		have := n.known[id]
		first := !have.wanted
		have.wanted = true
		if !first || have.Node == want {
			return id, nil
		}
		if err := t.store.PutNode(id, want); err != nil {
			return id, err
		}
		have.Node = want
		return id, nil
	}
	id, err := t.allocateNode()
	if err != nil {
		return 0, err
	}
	if err := t.store.PutNode(id, want); err != nil {
		n.free = append([]uint16{id}, n.free...)
		return 0, err
	}
	n.known[id] = &node{Node: want, wanted: true}
	n.byAddr[want.Addr] = id
	return id, nil
}

// allocateNode takes the id that has been free longest: flows of the node that had it
// before may still name it.
func (t *Tables) allocateNode() (uint16, error) {
	n := &t.nodes
	if n.next < n.limit.Size {
		n.next++
		return uint16(n.next - 1), nil
	}
	if len(n.free) == 0 {
		if err := t.reclaim(); err != nil {
			return 0, err
		}
	}
	if len(n.free) == 0 {
		return 0, n.limit.Full()
	}
	id := n.free[0]
	n.free = n.free[1:]
	return id, nil
}

// putNodeIDs lets in packets from every address of the nodes that have an id, and from
// no other.
func (t *Tables) putNodeIDs(list []*model.Node, byName map[string]uint16) error {
	n := &t.nodes
	want := make(map[netip.Addr]uint16)
	for _, p := range list {
		id, ok := byName[p.Name]
		if !ok {
			continue
		}
		for _, a := range append([]netip.Addr{p.Tunnel}, p.Addrs...) {
			if _, taken := want[a]; !taken {
				want[a] = id
			}
		}
	}
	var errs []error
	for _, a := range slices.SortedFunc(maps.Keys(n.ids), netip.Addr.Compare) {
		if _, ok := want[a]; ok {
			continue
		}
		if err := t.store.DeleteNodeID(a); err != nil {
			errs = append(errs, fmt.Errorf("node address %s: %w", a, err))
			continue
		}
		delete(n.ids, a)
	}
	for _, a := range slices.SortedFunc(maps.Keys(want), netip.Addr.Compare) {
		if n.ids[a] == want[a] {
			continue
		}
		if err := t.store.PutNodeID(a, want[a]); err != nil {
			errs = append(errs, fmt.Errorf("node address %s: %w", a, err))
			continue
		}
		n.ids[a] = want[a]
	}
	return errors.Join(errs...)
}

// rename replaces the ids of the names and returns the Services that are affected.
func (n *nodes) rename(byName map[string]uint16) []model.Name {
	affected := make(map[model.Name]struct{})
	for _, names := range []map[string]uint16{n.byName, byName} {
		for name := range names {
			if n.byName[name] != byName[name] {
				maps.Copy(affected, n.users[name])
			}
		}
	}
	n.byName, n.stale = byName, true
	return slices.SortedFunc(maps.Keys(affected), model.Name.Compare)
}

// DropNodes takes out the nodes that are gone, once no backend leads to them. To be
// called when the Services that SetNodes returned have been applied.
func (t *Tables) DropNodes() error {
	n := &t.nodes
	if !n.stale {
		return nil
	}
	n.stale = false
	named := make(map[uint16]bool) // by an address that could not be deleted
	for _, id := range n.ids {
		named[id] = true
	}
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(n.known)) {
		node := n.known[id]
		if node.wanted {
			continue
		}
		if node.backends > 0 || named[id] {
			n.stale = true
			continue
		}
		if err := t.store.ClearNode(id); err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", node.Name, err))
			n.stale = true
			continue
		}
		delete(n.known, id)
		if n.byAddr[node.Addr] == id {
			delete(n.byAddr, node.Addr)
		}
		t.retired.nodes = append(t.retired.nodes, id)
		n.changed = true
	}
	return errors.Join(errs...)
}

// NodeUse is a node of the cluster that has an id.
type NodeUse struct {
	Node
	ID uint16
	// Used says that packets may be tunneled to backends on it.
	Used bool
}

// Nodes returns the nodes of the cluster by id, and whether they may differ from those
// that the last call returned.
func (t *Tables) Nodes() (list []NodeUse, changed bool) {
	n := &t.nodes
	if !n.changed {
		return nil, false
	}
	n.changed = false
	list = make([]NodeUse, 0, len(n.known))
	for _, id := range slices.Sorted(maps.Keys(n.known)) {
		node := n.known[id]
		list = append(list, NodeUse{node.Node, id, node.backends > 0})
	}
	return list, true
}

// of returns the id of the node that a backend is on, as far as it matters.
func (n *nodes) of(want *ServicePort, b *policy.Backend) uint16 {
	if !want.Tunnels {
		return 0
	}
	return n.byName[b.NodeName]
}

// move counts that a backend goes from one node to another; 0 is none.
func (n *nodes) move(from, to uint16) {
	if from == to {
		return
	}
	if node := n.known[from]; node != nil {
		node.backends--
		n.changed = n.changed || node.backends == 0
	}
	if node := n.known[to]; node != nil {
		node.backends++
		n.changed = n.changed || node.backends == 1
	}
}

// use notes on which nodes a Service has endpoints to which packets are tunneled.
func (n *nodes) use(svc *service, desired *Desired) {
	names := desired.tunnelNodes()
	if slices.Equal(names, svc.tunnelNodes) {
		return
	}
	for _, name := range svc.tunnelNodes {
		delete(n.users[name], desired.Name)
		if len(n.users[name]) == 0 {
			delete(n.users, name)
		}
	}
	for _, name := range names {
		if n.users[name] == nil {
			n.users[name] = make(map[model.Name]struct{})
		}
		n.users[name][desired.Name] = struct{}{}
	}
	svc.tunnelNodes = names
}

// tunnelNodes returns the names of the nodes with backends to which packets are tunneled,
// sorted.
func (d *Desired) tunnelNodes() []string {
	var seen map[string]struct{}
	for i := range d.Ports {
		sp := &d.Ports[i]
		if !sp.Tunnels {
			continue
		}
		for j := range sp.Sets.Backends {
			name := sp.Sets.Backends[j].NodeName
			if name == "" {
				continue
			}
			if seen == nil {
				seen = make(map[string]struct{})
			}
			seen[name] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// restore takes over the ids. Of several of one address the first counts.
func (n *nodes) restore(have *Snapshot) {
	for _, id := range slices.Sorted(maps.Keys(have.Nodes)) {
		entry := have.Nodes[id]
		for ; n.next < uint32(id); n.next++ {
			n.free = append(n.free, uint16(n.next))
		}
		n.next = uint32(id) + 1
		n.known[id] = &node{Node: entry, wanted: true}
		if _, taken := n.byAddr[entry.Addr]; !taken {
			n.byAddr[entry.Addr] = id
			n.byName[entry.Name] = id
		}
	}
	for addr, id := range have.NodeIDs {
		n.ids[addr] = id
	}
	for _, b := range have.Backends {
		n.move(0, b.Node)
	}
	n.changed = len(n.known) > 0
}
