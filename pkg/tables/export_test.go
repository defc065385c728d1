package tables

// What the tests outside of the package need of its internals.

// OfBackends is the backends' part of a [Demand].
const OfBackends = ofBackends

// Precedence is precedence.
var Precedence = precedence

// NodeID returns the id of a node; 0 when it has none.
func (t *Tables) NodeID(name string) uint16 { return t.nodes.byName[name] }

// KnownNodes returns the nodes with how many backends are counted on each.
func (t *Tables) KnownNodes() map[Node]int {
	counted := make(map[Node]int)
	for _, node := range t.nodes.known {
		counted[node.Node] = node.backends
	}
	return counted
}

// SharedSlots returns how many slots are shared out.
func (t *Tables) SharedSlots() uint64 { return t.room.shared() }

// Rings returns the rings of the cluster and the local set, once prepared.
func (sp *ServicePort) Rings() [2][]uint32 { return sp.rings }

// ClusterSize returns how many slots the cluster set takes.
func (sp *ServicePort) ClusterSize() uint32 {
	want := sp.cluster()
	return want.size(want.count())
}
