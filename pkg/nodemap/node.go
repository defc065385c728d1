package nodemap

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Answer is the answer of a node to the question whether it accepts tunnel traffic.
type Answer uint32

// The answers.
const (
	NotAsked    = Answer(bpf.SockBlNodeAnswerBL_NODE_NOT_ASKED)
	Asked       = Answer(bpf.SockBlNodeAnswerBL_NODE_ASKED) // for the first time, just now
	Accepts     = Answer(bpf.SockBlNodeAnswerBL_NODE_ACCEPTS)
	Refuses     = Answer(bpf.SockBlNodeAnswerBL_NODE_REFUSES)
	Unreachable = Answer(bpf.SockBlNodeAnswerBL_NODE_UNREACHABLE)
)

// String returns the answer in lower case.
func (a Answer) String() string {
	switch a {
	case NotAsked:
		return "not asked"
	case Asked:
		return "asked"
	case Accepts:
		return "accepts"
	case Refuses:
		return "refuses"
	case Unreachable:
		return "unreachable"
	}
	return fmt.Sprintf("Answer(%d)", uint32(a))
}

// Node is a node of the cluster and its answer.
type Node struct {
	tables.Node
	ID uint16
	// Tunnel says that packets go to it in a tunnel.
	Tunnel bool
	Answer Answer
}

// Table is the nodes of some maps. All methods may be called beside each other, but for
// [Table.SetMarks] beside itself, and beside those of the maps.
type Table struct{ maps *bpfmap.Maps }

// New returns the nodes of the maps.
func New(m *bpfmap.Maps) Table { return Table{m} }

// locked calls fn with the entries of nodes by id, which do not change meanwhile.
func (t Table) locked(fn func(nodes []bpf.SockBlNodeEntry)) {
	t.maps.NodeMu.Lock()
	defer t.maps.NodeMu.Unlock()
	fn(t.maps.Entries.Node[:])
}

// List returns the nodes of the cluster by ID.
func (t Table) List() ([]Node, error) {
	names := make(map[uint32]string)
	err := bpfmap.Each(t.maps.BlNodeName, func(id *uint32, e *bpf.SockBlNodeNameEntry) { names[*id] = bpf.StringOf(e.Name[:]) })
	if err != nil {
		return nil, err
	}
	var list []Node
	t.locked(func(nodes []bpf.SockBlNodeEntry) {
		for id := range nodes {
			e := &nodes[id]
			if e.Addr == (bpf.SockBlAddr{}) {
				continue
			}
			flags, answer := e.Load()
			list = append(list, Node{
				Node: tables.Node{
					Addr: e.Addr.Netip(),
					Name: names[uint32(id)],
					Self: flags&bpf.SockBlNodeFlagBL_NODE_SELF != 0,
				},
				ID:     uint16(id),
				Tunnel: flags&bpf.SockBlNodeFlagBL_NODE_TUNNEL != 0,
				Answer: Answer(answer),
			})
		}
	})
	return list, nil
}

// NodeOf returns the id of the node that has an address; 0 when there is none.
func (t Table) NodeOf(addr netip.Addr) (uint16, error) {
	key, id := bpf.AddrOf(addr), uint32(0)
	err := t.maps.BlNodeId.Lookup(&key, &id)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, fmt.Errorf("map %s: %w", bpf.SockMapBlNodeId, err)
	}
	return uint16(id), nil
}

// Answer returns what a node has said.
func (t Table) Answer(id uint16) Answer {
	_, answer := t.maps.Entries.Node[id].Load()
	return Answer(answer)
}

// SetAnswer notes what a node has said, by one store: packets go to it in the tunnel
// while it is [Accepts]. An id that has another address by now is left alone.
func (t Table) SetAnswer(id uint16, addr netip.Addr, answer Answer) {
	t.locked(func(nodes []bpf.SockBlNodeEntry) {
		e := &nodes[id]
		if e.Addr != bpf.AddrOf(addr) {
			return
		}
		flags, _ := e.Load()
		flags &^= bpf.SockBlNodeFlagBL_NODE_TUNNEL
		if answer == Accepts {
			flags |= bpf.SockBlNodeFlagBL_NODE_TUNNEL
		}
		e.Store(flags, bpf.SockBlNodeAnswer(answer))
	})
}

// ForgetAnswers makes nodes ones that were not asked: what they have said does not hold for
// another port.
func (t Table) ForgetAnswers() {
	t.locked(func(nodes []bpf.SockBlNodeEntry) {
		for id := 1; id < len(nodes); id++ {
			flags, _ := nodes[id].Load()
			nodes[id].Store(flags&^bpf.SockBlNodeFlagBL_NODE_TUNNEL, bpf.SockBlNodeAnswerBL_NODE_NOT_ASKED)
		}
	})
}

// HoldsSelf reports whether the programs know which node is this one as its own entry says.
func (t Table) HoldsSelf() (holds bool) {
	t.locked(func(nodes []bpf.SockBlNodeEntry) { holds = self(nodes) == findSelf(nodes) })
	return holds
}

// FindSelf lets the programs know which node is this one, by the entries of nodes: an agent of an older version has
// not told them.
func (t Table) FindSelf() {
	t.locked(func(nodes []bpf.SockBlNodeEntry) { setSelf(nodes, findSelf(nodes)) })
}

// findSelf returns the id of the node whose entry says that it is this one, of several the one that the programs
// know; 0 is none.
func findSelf(nodes []bpf.SockBlNodeEntry) uint16 {
	found := uint16(0)
	for id := 1; id < len(nodes); id++ {
		if flags, _ := nodes[id].Load(); flags&bpf.SockBlNodeFlagBL_NODE_SELF != 0 && (found == 0 || self(nodes) == uint16(id)) {
			found = uint16(id)
		}
	}
	return found
}
