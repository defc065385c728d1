package bpfmap

import (
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/bpffs"
)

// TestAnswer: what a node has said outlives its name and a restart, but not its address
// and not its id.
func TestAnswer(t *testing.T) {
	dir := bpffs.New(t)
	m := load(t, dir, small)
	at, elsewhere := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	node := func(addr netip.Addr, name string, self bool) tables.Node {
		return tables.Node{Addr: addr, Name: name, Self: self}
	}
	want := func(what string, want Node) {
		t.Helper()
		list, err := m.Nodes()
		must(t, err)
		if len(list) != 1 || list[0] != want {
			t.Errorf("%s: nodes are %+v, want %+v", what, list, want)
		}
	}
	must(t, m.PutNode(7, node(at, "a", false)), m.PutNodeID(at, 7))
	want("a new node", Node{Node: node(at, "a", false), ID: 7})
	m.SetAnswer(7, elsewhere, Accepts)
	want("an answer of another", Node{Node: node(at, "a", false), ID: 7})
	m.SetAnswer(7, at, Accepts)
	must(t, m.PutNode(7, node(at, "b", true)))
	want("an answer and another name", Node{Node: node(at, "b", true), ID: 7, Tunnel: true, Answer: Accepts})
	m = reload(t, m, dir, small)
	want("a restart", Node{Node: node(at, "b", true), ID: 7, Tunnel: true, Answer: Accepts})
	m.SetAnswer(7, at, Unreachable)
	want("no answer", Node{Node: node(at, "b", true), ID: 7, Answer: Unreachable})
	m.SetAnswer(7, at, Accepts)
	m.ForgetAnswers()
	want("another port", Node{Node: node(at, "b", true), ID: 7})
	m.SetAnswer(7, at, Accepts)
	must(t, m.ClearNode(7))
	m.SetAnswer(7, at, Accepts)
	if list, err := m.Nodes(); err != nil || len(list) > 0 {
		t.Errorf("nodes after the last is gone: %v, %v", list, err)
	}
	must(t, m.PutNode(7, node(elsewhere, "c", false)))
	want("the id of another", Node{Node: node(elsewhere, "c", false), ID: 7})

	if id, err := m.NodeOf(at); id != 7 || err != nil {
		t.Errorf("%s is of node %d: %v", at, id, err)
	}
	if id, err := m.NodeOf(elsewhere); id != 0 || err != nil {
		t.Errorf("%s, which is let in by none, is of node %d: %v", elsewhere, id, err)
	}
	for _, id := range []uint16{0, uint16(maxNodes)} {
		wantFull(t, m.PutNode(id, node(at, "x", false)), "bl_node", uint32(maxNodes), "")
	}
}
