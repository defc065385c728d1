package nodemap

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/bpffs"
	"github.com/beeline-lb/beeline/tests/maptest"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestAnswer: what a node has said outlives its name and a restart, but not its address
// and not its id.
func TestAnswer(t *testing.T) {
	dir := bpffs.New(t)
	m := maptest.Load(t, dir, maptest.Small)
	at, elsewhere := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	node := func(addr netip.Addr, name string, self bool) tables.Node {
		return tables.Node{Addr: addr, Name: name, Self: self}
	}
	want := func(what string, want Node) {
		t.Helper()
		list, err := New(m).List()
		must(t, err)
		if len(list) != 1 || list[0] != want {
			t.Errorf("%s: nodes are %+v, want %+v", what, list, want)
		}
	}
	must(t, NewStore(m).PutNode(7, node(at, "a", false)), NewStore(m).PutNodeID(at, 7))
	want("a new node", Node{Node: node(at, "a", false), ID: 7})
	New(m).SetAnswer(7, elsewhere, Accepts)
	want("an answer of another", Node{Node: node(at, "a", false), ID: 7})
	New(m).SetAnswer(7, at, Accepts)
	must(t, NewStore(m).PutNode(7, node(at, "b", true)))
	want("an answer and another name", Node{Node: node(at, "b", true), ID: 7, Tunnel: true, Answer: Accepts})
	m = maptest.Reload(t, m, dir, maptest.Small)
	want("a restart", Node{Node: node(at, "b", true), ID: 7, Tunnel: true, Answer: Accepts})
	New(m).SetAnswer(7, at, Unreachable)
	want("no answer", Node{Node: node(at, "b", true), ID: 7, Answer: Unreachable})
	New(m).SetAnswer(7, at, Accepts)
	New(m).ForgetAnswers()
	want("another port", Node{Node: node(at, "b", true), ID: 7})
	New(m).SetAnswer(7, at, Accepts)
	must(t, NewStore(m).ClearNode(7))
	New(m).SetAnswer(7, at, Accepts)
	if list, err := New(m).List(); err != nil || len(list) > 0 {
		t.Errorf("nodes after the last is gone: %v, %v", list, err)
	}
	must(t, NewStore(m).PutNode(7, node(elsewhere, "c", false)))
	want("the id of another", Node{Node: node(elsewhere, "c", false), ID: 7})

	if id, err := New(m).NodeOf(at); id != 7 || err != nil {
		t.Errorf("%s is of node %d: %v", at, id, err)
	}
	if id, err := New(m).NodeOf(elsewhere); id != 0 || err != nil {
		t.Errorf("%s, which is let in by none, is of node %d: %v", elsewhere, id, err)
	}
	const maxNodes = uint16(bpf.SockBlNodeLimitBL_NODE_MAX)
	for _, id := range []uint16{0, maxNodes} {
		var full *tables.FullError
		if err := NewStore(m).PutNode(id, node(at, "x", false)); !errors.As(err, &full) || *full != (tables.FullError{Table: "bl_node", Size: uint32(maxNodes)}) {
			t.Errorf("error %v, want one of a full bl_node of %d", err, maxNodes)
		}
	}
}

// TestSelf: the programs know which node is this one, also after an agent that did not tell them.
func TestSelf(t *testing.T) {
	m := maptest.New(t, maptest.Small)
	s := NewStore(m)
	put := func(id uint16, isSelf bool) {
		t.Helper()
		must(t, s.PutNode(id, tables.Node{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(id)}), Self: isSelf}))
	}
	want := func(what string, id uint16) {
		t.Helper()
		if got := self(m.Entries.Node[:]); got != id {
			t.Errorf("%s: this node is %d, want %d", what, got, id)
		}
	}
	put(1, false)
	put(2, true)
	want("this node comes", 2)
	put(3, true)
	want("it has another address", 3)
	must(t, s.ClearNode(2))
	New(m).ForgetAnswers()
	want("the former one is gone", 3)
	New(m).FindSelf()
	want("a restart", 3)
	setSelf(m.Entries.Node[:], 0)
	New(m).FindSelf()
	want("an update", 3)
	put(3, false)
	want("it is another's address", 0)
	put(1, true)
	must(t, s.ClearNode(1))
	New(m).FindSelf()
	want("it is gone", 0)
}
