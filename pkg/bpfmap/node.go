package bpfmap

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// maxNodes is the number of nodes for which there is room, and one: no node has id 0.
const maxNodes = bpf.SockBlNodeLimitBL_NODE_MAX

// Answer is what a node has said when it was asked whether it accepts tunnel traffic.
type Answer uint32

// The answers.
const (
	NotAsked    = Answer(bpf.SockBlNodeAnswerBL_NODE_NOT_ASKED)
	Asked       = Answer(bpf.SockBlNodeAnswerBL_NODE_ASKED) // for the first time, just now
	Accepts     = Answer(bpf.SockBlNodeAnswerBL_NODE_TAKES)
	Refuses     = Answer(bpf.SockBlNodeAnswerBL_NODE_REFUSES)
	Unreachable = Answer(bpf.SockBlNodeAnswerBL_NODE_SILENT)
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

// Node is a node of the cluster and what it has said.
type Node struct {
	tables.Node
	ID uint16
	// Tunnel says that packets go to it in a tunnel.
	Tunnel bool
	Answer Answer
}

// Nodes returns the nodes of the cluster by ID. It may be called beside all other methods.
func (m *Maps) Nodes() ([]Node, error) {
	names := make(map[uint32]string)
	err := Each(m.BlNodeName, func(id *uint32, e *bpf.SockBlNodeNameEntry) { names[*id] = bpf.StringOf(e.Name[:]) })
	if err != nil {
		return nil, err
	}
	m.nodeMu.Lock()
	defer m.nodeMu.Unlock()
	var list []Node
	for id := range m.Entries.Node {
		e := &m.Entries.Node[id]
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
	return list, nil
}

// PutNode writes the node of an id. What it has said before stays while the address
// does.
func (m *Maps) PutNode(id uint16, n tables.Node) error {
	if id == 0 || uint32(id) >= uint32(maxNodes) {
		return limit(m.BlNode).Full()
	}
	key, name := uint32(id), bpf.SockBlNodeNameEntry{}
	bpf.PutString(name.Name[:], n.Name)
	if err := Put(m.BlNodeName, key, &name); err != nil {
		return err
	}
	m.nodeMu.Lock()
	defer m.nodeMu.Unlock()
	e := &m.Entries.Node[id]
	flags, answer := e.Load()
	if e.Addr != bpf.AddrOf(n.Addr) {
		flags, answer = 0, bpf.SockBlNodeAnswerBL_NODE_NOT_ASKED
		e.Store(flags, answer)
		e.Addr = bpf.AddrOf(n.Addr)
	}
	flags &^= bpf.SockBlNodeFlagBL_NODE_SELF
	if n.Self {
		flags |= bpf.SockBlNodeFlagBL_NODE_SELF
	}
	e.Store(flags, answer)
	return nil
}

// ClearNode takes out the node of an id.
func (m *Maps) ClearNode(id uint16) error {
	if err := Remove(m.BlNodeName, uint32(id)); err != nil {
		return err
	}
	m.nodeMu.Lock()
	defer m.nodeMu.Unlock()
	e := &m.Entries.Node[id]
	e.Store(0, bpf.SockBlNodeAnswerBL_NODE_NOT_ASKED)
	e.Addr = bpf.SockBlAddr{}
	return nil
}

// PutNodeID makes a source address one of a node.
func (m *Maps) PutNodeID(addr netip.Addr, id uint16) error {
	key := bpf.AddrOf(addr)
	return Put(m.BlNodeId, &key, uint32(id))
}

// DeleteNodeID is the opposite of PutNodeID.
func (m *Maps) DeleteNodeID(addr netip.Addr) error {
	key := bpf.AddrOf(addr)
	return Remove(m.BlNodeId, &key)
}

// NodeOf returns the id of the node that has an address; 0 when there is none. It may
// be called beside all other methods.
func (m *Maps) NodeOf(addr netip.Addr) (uint16, error) {
	key, id := bpf.AddrOf(addr), uint32(0)
	err := m.BlNodeId.Lookup(&key, &id)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, fmt.Errorf("map %s: %w", bpf.SockMapBlNodeId, err)
	}
	return uint16(id), nil
}

// Answer returns what a node has said. It may be called beside all other methods.
func (m *Maps) Answer(id uint16) Answer {
	_, answer := m.Entries.Node[id].Load()
	return Answer(answer)
}

// SetAnswer notes what a node has said, by one store: packets go to it in the tunnel
// while it is [Accepts]. An id that has another address by now is left alone. It may be
// called beside all other methods.
func (m *Maps) SetAnswer(id uint16, addr netip.Addr, answer Answer) {
	m.nodeMu.Lock()
	defer m.nodeMu.Unlock()
	e := &m.Entries.Node[id]
	if e.Addr != bpf.AddrOf(addr) {
		return
	}
	flags, _ := e.Load()
	flags &^= bpf.SockBlNodeFlagBL_NODE_TUNNEL
	if answer == Accepts {
		flags |= bpf.SockBlNodeFlagBL_NODE_TUNNEL
	}
	e.Store(flags, bpf.SockBlNodeAnswer(answer))
}

// ForgetAnswers makes nodes ones that were not asked: what they have said does not hold for
// another port.
func (m *Maps) ForgetAnswers() {
	m.nodeMu.Lock()
	defer m.nodeMu.Unlock()
	for id := range m.Entries.Node {
		e := &m.Entries.Node[id]
		flags, _ := e.Load()
		e.Store(flags&^bpf.SockBlNodeFlagBL_NODE_TUNNEL, bpf.SockBlNodeAnswerBL_NODE_NOT_ASKED)
	}
}
