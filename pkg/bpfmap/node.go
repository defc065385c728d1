package bpfmap

import (
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// maxNodes is the number of nodes for which there is room, and one: no node has id 0.
const maxNodes = bpf.SockBlNodeLimitBL_NODE_MAX

// ChangeNodes calls fn with the entries of nodes by id, which do not change meanwhile. It
// may be called beside all other methods.
func (m *Maps) ChangeNodes(fn func(nodes []bpf.SockBlNodeEntry)) {
	m.nodeMu.Lock()
	defer m.nodeMu.Unlock()
	fn(m.Entries.Node[:])
}

// EachNode calls fn for the nodes of the cluster by id, none of which changes meanwhile. It may
// be called beside all other methods.
func (m *Maps) EachNode(fn func(id uint16, n tables.Node, e *bpf.SockBlNodeEntry)) error {
	names := make(map[uint32]string)
	err := Each(m.BlNodeName, func(id *uint32, e *bpf.SockBlNodeNameEntry) { names[*id] = bpf.StringOf(e.Name[:]) })
	if err != nil {
		return err
	}
	m.ChangeNodes(func(nodes []bpf.SockBlNodeEntry) {
		for id := range nodes {
			e := &nodes[id]
			if e.Addr == (bpf.SockBlAddr{}) {
				continue
			}
			flags, _ := e.Load()
			fn(uint16(id), tables.Node{
				Addr: e.Addr.Netip(),
				Name: names[uint32(id)],
				Self: flags&bpf.SockBlNodeFlagBL_NODE_SELF != 0,
			}, e)
		}
	})
	return nil
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
	m.ChangeNodes(func(nodes []bpf.SockBlNodeEntry) {
		e := &nodes[id]
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
	})
	return nil
}

// ClearNode takes out the node of an id.
func (m *Maps) ClearNode(id uint16) error {
	if err := Remove(m.BlNodeName, uint32(id)); err != nil {
		return err
	}
	m.ChangeNodes(func(nodes []bpf.SockBlNodeEntry) {
		e := &nodes[id]
		e.Store(0, bpf.SockBlNodeAnswerBL_NODE_NOT_ASKED)
		e.Addr = bpf.SockBlAddr{}
	})
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
