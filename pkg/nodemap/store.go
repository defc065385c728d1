package nodemap

import (
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// maxNodes is the number of nodes for which there is room, and one: no node has id 0.
const maxNodes = bpf.SockBlNodeLimitBL_NODE_MAX

// Store writes the nodes of the cluster: it is the part of [tables.Store] for them.
type Store struct{ table Table }

// NewStore returns the part of [tables.Store] that writes nodes into the maps.
func NewStore(m *bpfmap.Maps) Store { return Store{New(m)} }

// self returns the id of this node; 0 is unknown.
func self(nodes []bpf.SockBlNodeEntry) uint16 {
	_, id := nodes[0].Load()
	return uint16(id)
}

func setSelf(nodes []bpf.SockBlNodeEntry, id uint16) {
	nodes[0].Store(0, bpf.SockBlNodeAnswer(id))
}

// PutNode writes the node of an id. Its answer about the tunnel stays while its address does.
func (s Store) PutNode(id uint16, n tables.Node) error {
	maps := s.table.maps
	if id == 0 || uint32(id) >= uint32(maxNodes) {
		return bpfmap.LimitOf(maps.BlNode).Full()
	}
	key, name := uint32(id), bpf.SockBlNodeNameEntry{}
	bpf.PutString(name.Name[:], n.Name)
	if err := bpfmap.Put(maps.BlNodeName, key, &name); err != nil {
		return err
	}
	s.table.locked(func(nodes []bpf.SockBlNodeEntry) {
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
		switch {
		case n.Self:
			setSelf(nodes, id)
		case self(nodes) == id:
			setSelf(nodes, 0)
		}
	})
	return nil
}

// ClearNode takes out the node of an id.
func (s Store) ClearNode(id uint16) error {
	if err := bpfmap.Remove(s.table.maps.BlNodeName, uint32(id)); err != nil {
		return err
	}
	s.table.locked(func(nodes []bpf.SockBlNodeEntry) {
		e := &nodes[id]
		if self(nodes) == id {
			setSelf(nodes, 0)
		}
		e.Store(0, bpf.SockBlNodeAnswerBL_NODE_NOT_ASKED)
		e.Addr = bpf.SockBlAddr{}
	})
	return nil
}

// PutNodeID makes a source address one of a node.
func (s Store) PutNodeID(addr netip.Addr, id uint16) error {
	key := bpf.AddrOf(addr)
	return bpfmap.Put(s.table.maps.BlNodeId, &key, uint32(id))
}

// DeleteNodeID is the opposite of PutNodeID.
func (s Store) DeleteNodeID(addr netip.Addr) error {
	key := bpf.AddrOf(addr)
	return bpfmap.Remove(s.table.maps.BlNodeId, &key)
}
