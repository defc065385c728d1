package tables

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

func nodeAt(name string, addrs ...string) *model.Node {
	p := &model.Node{Name: name}
	for _, a := range addrs {
		p.Addrs = append(p.Addrs, netip.MustParseAddr(a))
	}
	p.Tunnel = p.Addrs[0]
	return p
}

// tunneled is a Service with one endpoint on each of the nodes.
func tunneled(name string, n int, hosts ...string) Desired {
	d := onePort(name, vip(n), FrontendClusterIP, endpoints(len(hosts)), nil)
	d.Ports[0].Tunnels = true
	for i, host := range hosts {
		d.Ports[0].Sets.Backends[i].NodeName = host
	}
	return d
}

func setNodes(t *testing.T, tables *Tables, nodes ...*model.Node) []model.Name {
	t.Helper()
	affected, err := tables.SetNodes(nodes, "here")
	if err != nil {
		t.Fatal(err)
	}
	return affected
}

// TestNodesAffectServices: a node that comes, goes or gets another tunnel affects the
// Services that tunnel to it, and no others.
func TestNodesAffectServices(t *testing.T) {
	store := newMemory(t, roomy)
	tables := New(store)
	apply(t, tables, tunneled("a", 1, "n1", "n2"))
	apply(t, tables, tunneled("b", 2, "n2"))
	plain := tunneled("c", 3, "n1")
	plain.Ports[0].Tunnels = false
	apply(t, tables, plain)

	n1, n2, here := nodeAt("n1", "192.0.2.1"), nodeAt("n2", "192.0.2.2"), nodeAt("here", "192.0.2.9")
	for _, step := range []struct {
		what     string
		nodes    []*model.Node
		affected []model.Name
	}{
		{"n1 and this node come", []*model.Node{n1, here}, []model.Name{named("a")}},
		{"n2 comes", []*model.Node{n1, n2, here}, []model.Name{named("a"), named("b")}},
		{"nothing changes", []*model.Node{here, n2, n1}, nil},
		{"n2 has one address more", []*model.Node{n1, nodeAt("n2", "192.0.2.2", "2001:db8::2"), here}, nil},
		{"n2 has another tunnel", []*model.Node{n1, nodeAt("n2", "192.0.2.22"), here}, []model.Name{named("a"), named("b")}},
		{"n1 goes", []*model.Node{nodeAt("n2", "192.0.2.22"), here}, []model.Name{named("a")}},
	} {
		if got := setNodes(t, tables, step.nodes...); !slices.Equal(got, step.affected) {
			t.Errorf("%s: affected are %v, want %v", step.what, got, step.affected)
		}
		apply(t, tables, tunneled("a", 1, "n1", "n2"))
		apply(t, tables, tunneled("b", 2, "n2"))
		if err := tables.DropNodes(); err != nil {
			t.Fatal(err)
		}
	}
	v := store.view()
	if at := v[web("b")].nodes[endpoints(1)[0]]; at != netip.MustParseAddr("192.0.2.22") {
		t.Errorf("the backend of b is at %s", at)
	}
	if at := v[web("a")].nodes[endpoints(1)[0]]; at.IsValid() {
		t.Errorf("the first backend of a is at %s, its node is gone", at)
	}
	if at := v[web("c")].nodes[endpoints(1)[0]]; at.IsValid() {
		t.Errorf("the backend of c, which does not tunnel, is at %s", at)
	}
	nodes, changed := tables.Nodes()
	want := []NodeUse{
		{Node{netip.MustParseAddr("192.0.2.9"), "here", true}, 1, false},
		{Node{netip.MustParseAddr("192.0.2.22"), "n2", false}, 4, true},
	}
	if !changed || !slices.Equal(nodes, want) {
		t.Errorf("nodes are %+v (%t), want %+v", nodes, changed, want)
	}
	if _, changed := tables.Nodes(); changed {
		t.Error("nodes have changed by themselves")
	}
	apply(t, tables, tunneled("b", 2))
	apply(t, tables, tunneled("a", 1))
	if nodes, changed := tables.Nodes(); !changed || nodes[1].Used {
		t.Errorf("nodes are %+v (%t), want none to be used", nodes, changed)
	}
	if affected := setNodes(t, tables, nodeAt("n2", "192.0.2.23"), here); affected != nil {
		t.Errorf("a node without endpoints affects %v", affected)
	}
}

// badNode is a store in which a node cannot be written for a while.
type badNode struct {
	*memory
	bad bool
}

func (b *badNode) PutNode(id uint16, n Node) error {
	if b.bad {
		return errWrite
	}
	return b.memory.PutNode(id, n)
}

// TestNodeFails: an id whose node could not be written is not lost, and a node that could
// not be written anew keeps its own.
func TestNodeFails(t *testing.T) {
	limits := roomy
	limits.Nodes.Size = 2
	store := &badNode{memory: newMemory(t, limits), bad: true}
	tables := New(store)
	set := func(name string) error {
		_, err := tables.SetNodes([]*model.Node{nodeAt(name, "192.0.2.1")}, "")
		return errors.Join(err, tables.DropNodes())
	}
	if err := set("a"); !errors.Is(err, errWrite) {
		t.Fatalf("the error is %v", err)
	}
	store.bad = false
	if err := set("a"); err != nil {
		t.Fatal(err)
	}
	store.bad = true
	if err := set("b"); !errors.Is(err, errWrite) || tables.nodes.byName["b"] != 1 || store.nodes[1].Name != "a" {
		t.Errorf("after %v the node is %+v, names are %v", err, store.nodes, tables.nodes.byName)
	}
	store.bad = false
	if err := set("b"); err != nil || store.nodes[1].Name != "b" {
		t.Errorf("the node is %+v: %v", store.nodes, err)
	}
}

// TestNodesOutliveRestart: ids are those of before, and endpoints find their nodes before
// the source has told of any.
func TestNodesOutliveRestart(t *testing.T) {
	store := newMemory(t, roomy)
	tables := New(store)
	setNodes(t, tables, nodeAt("n1", "192.0.2.1"), nodeAt("n2", "192.0.2.2"), nodeAt("n3", "192.0.2.3"))
	setNodes(t, tables, nodeAt("n3", "192.0.2.3"))
	if err := tables.DropNodes(); err != nil {
		t.Fatal(err)
	}
	apply(t, tables, tunneled("a", 1, "n3"))
	before := store.writes
	tables = Restore(store, store.snapshot())
	apply(t, tables, tunneled("a", 1, "n3"))
	if err := tables.DropNodes(); err != nil {
		t.Fatal(err)
	}
	if store.writes != before {
		t.Errorf("a restart makes %d writes", store.writes-before)
	}
	if affected := setNodes(t, tables, nodeAt("n3", "192.0.2.3")); affected != nil || store.writes != before {
		t.Errorf("the same nodes make %d writes and affect %v", store.writes-before, affected)
	}
}

// TestNodeIDsRest: the id that has been free longest is used again, and only when no
// other is left.
func TestNodeIDsRest(t *testing.T) {
	limits := roomy
	limits.Nodes.Size = 4
	store := newMemory(t, limits)
	tables := New(store)
	replace := func(p *model.Node) uint16 {
		setNodes(t, tables, p)
		if err := tables.DropNodes(); err != nil {
			t.Fatal(err)
		}
		tables.Release(tables.Retire())
		clear(store.heldNodes)
		return tables.nodes.byName[p.Name]
	}
	var got []uint16
	for i := range byte(7) {
		got = append(got, replace(&model.Node{Name: "n", Tunnel: netip.AddrFrom4([4]byte{192, 0, 2, i})}))
	}
	if want := []uint16{1, 2, 3, 1, 2, 3, 1}; !slices.Equal(got, want) {
		t.Errorf("ids are %v, want %v", got, want)
	}
}

// TestNodesFull: nodes beyond the limit have no id, this one always has.
func TestNodesFull(t *testing.T) {
	limits := roomy
	limits.Nodes.Size = 3
	tables := New(newMemory(t, limits))
	_, err := tables.SetNodes([]*model.Node{nodeAt("a", "192.0.2.1"), nodeAt("b", "192.0.2.2"), nodeAt("here", "192.0.2.3")}, "here")
	var full *FullError
	if !errors.As(err, &full) || full.Table != "bl_node" {
		t.Errorf("the error is %v", err)
	}
	if nodes, _ := tables.Nodes(); len(nodes) != 2 || !nodes[0].Self || nodes[1].Name != "a" {
		t.Errorf("nodes are %+v", nodes)
	}
}
