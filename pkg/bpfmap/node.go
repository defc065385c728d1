package bpfmap

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/tables"
)

// MaxNodes is the number of nodes for which there is room, and one: no node has id 0.
const MaxNodes = sockBlNodeLimitBL_NODE_MAX

// Answer is what a node has said when it was asked whether it accepts tunnel traffic.
type Answer uint32

// The answers.
const (
	NotAsked    = Answer(sockBlNodeAnswerBL_NODE_NOT_ASKED)
	Asked       = Answer(sockBlNodeAnswerBL_NODE_ASKED) // for the first time, just now
	Accepts     = Answer(sockBlNodeAnswerBL_NODE_TAKES)
	Refuses     = Answer(sockBlNodeAnswerBL_NODE_REFUSES)
	Unreachable = Answer(sockBlNodeAnswerBL_NODE_SILENT)
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
	err := each(m.all[sockMapBlNodeName], func(id *uint32, e *sockBlNodeNameEntry) { names[*id] = stringOf(e.Name[:]) })
	if err != nil {
		return nil, err
	}
	m.nodeMu.Lock()
	defer m.nodeMu.Unlock()
	var list []Node
	for id := range m.node.entry() {
		e := &m.node.entry()[id]
		if e.Addr == (sockBlAddr{}) {
			continue
		}
		flags, answer := e.load()
		list = append(list, Node{
			Node: tables.Node{
				Addr: e.Addr.netip(),
				Name: names[uint32(id)],
				Self: flags&uint32(sockBlNodeFlagBL_NODE_SELF) != 0,
			},
			ID:     uint16(id),
			Tunnel: flags&uint32(sockBlNodeFlagBL_NODE_TUNNEL) != 0,
			Answer: answer,
		})
	}
	return list, nil
}

// PutNode writes the node of an id. What it has said before stays while the address
// does.
func (m *Maps) PutNode(id uint16, n tables.Node) error {
	if id == 0 || uint32(id) >= uint32(MaxNodes) {
		return m.limit(sockMapBlNode).Full()
	}
	key, name := uint32(id), sockBlNodeNameEntry{}
	putString(name.Name[:], n.Name)
	if err := m.put(sockMapBlNodeName, key, &name); err != nil {
		return err
	}
	m.nodeMu.Lock()
	defer m.nodeMu.Unlock()
	e := &m.node.entry()[id]
	flags, answer := e.load()
	if e.Addr != addrOf(n.Addr) {
		flags, answer = 0, NotAsked
		e.store(flags, answer)
		e.Addr = addrOf(n.Addr)
	}
	flags &^= uint32(sockBlNodeFlagBL_NODE_SELF)
	if n.Self {
		flags |= uint32(sockBlNodeFlagBL_NODE_SELF)
	}
	e.store(flags, answer)
	return nil
}

// ClearNode takes out the node of an id.
func (m *Maps) ClearNode(id uint16) error {
	if err := m.remove(sockMapBlNodeName, uint32(id)); err != nil {
		return err
	}
	m.nodeMu.Lock()
	defer m.nodeMu.Unlock()
	e := &m.node.entry()[id]
	e.store(0, NotAsked)
	e.Addr = sockBlAddr{}
	return nil
}

// PutNodeID makes a source address one of a node.
func (m *Maps) PutNodeID(addr netip.Addr, id uint16) error {
	key := addrOf(addr)
	return m.put(sockMapBlNodeId, &key, uint32(id))
}

// DeleteNodeID is the opposite of PutNodeID.
func (m *Maps) DeleteNodeID(addr netip.Addr) error {
	key := addrOf(addr)
	return m.remove(sockMapBlNodeId, &key)
}

// NodeOf returns the id of the node that has an address; 0 when there is none. It may
// be called beside all other methods.
func (m *Maps) NodeOf(addr netip.Addr) (uint16, error) {
	key, id := addrOf(addr), uint32(0)
	err := m.all[sockMapBlNodeId].Lookup(&key, &id)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, fmt.Errorf("map %s: %w", sockMapBlNodeId, err)
	}
	return uint16(id), nil
}

// Answer returns what a node has said. It may be called beside all other methods.
func (m *Maps) Answer(id uint16) Answer {
	_, answer := m.node.entry()[id].load()
	return answer
}

// SetAnswer notes what a node has said, by one store: packets go to it in the tunnel
// while it is [Accepts]. An id that has another address by now is left alone. It may be
// called beside all other methods.
func (m *Maps) SetAnswer(id uint16, addr netip.Addr, answer Answer) {
	m.nodeMu.Lock()
	defer m.nodeMu.Unlock()
	e := &m.node.entry()[id]
	if e.Addr != addrOf(addr) {
		return
	}
	flags, _ := e.load()
	flags &^= uint32(sockBlNodeFlagBL_NODE_TUNNEL)
	if answer == Accepts {
		flags |= uint32(sockBlNodeFlagBL_NODE_TUNNEL)
	}
	e.store(flags, answer)
}

// ForgetAnswers makes nodes ones that were not asked: what they have said does not hold for
// another port.
func (m *Maps) ForgetAnswers() {
	m.nodeMu.Lock()
	defer m.nodeMu.Unlock()
	for id := range m.node.entry() {
		e := &m.node.entry()[id]
		flags, _ := e.load()
		e.store(flags&^uint32(sockBlNodeFlagBL_NODE_TUNNEL), NotAsked)
	}
}

// nodeWord is what of a node is stored at once.
type nodeWord struct {
	flags  uint32
	answer Answer
}

func (e *sockBlNodeEntry) load() (flags uint32, answer Answer) {
	word := atomic.LoadUint64((*uint64)(unsafe.Pointer(&e.Flags)))
	w := (*nodeWord)(unsafe.Pointer(&word))
	return w.flags, w.answer
}

func (e *sockBlNodeEntry) store(flags uint32, answer Answer) {
	w := nodeWord{flags, answer}
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&e.Flags)), *(*uint64)(unsafe.Pointer(&w)))
}
