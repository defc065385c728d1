package tables_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/pkg/tables/tablestest"
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
func tunneled(name string, n int, hosts ...string) tables.Desired {
	d := onePort(name, vip(n), tables.FrontendClusterIP, endpoints(len(hosts)), nil)
	d.Ports[0].Tunnels = true
	for i, host := range hosts {
		d.Ports[0].Sets.Backends[i].NodeName = host
	}
	return d
}

func setNodes(t *testing.T, tbl *tables.Tables, nodes ...*model.Node) []model.Name {
	t.Helper()
	affected, err := tbl.SetNodes(nodes, "here")
	if err != nil {
		t.Fatal(err)
	}
	return affected
}

// TestNodesAffectServices: a node that comes, goes or gets another tunnel affects the
// Services that tunnel to it, and no others.
func TestNodesAffectServices(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	tbl := tables.New(store)
	apply(t, tbl, tunneled("a", 1, "n1", "n2"))
	apply(t, tbl, tunneled("b", 2, "n2"))
	plain := tunneled("c", 3, "n1")
	plain.Ports[0].Tunnels = false
	apply(t, tbl, plain)

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
		if got := setNodes(t, tbl, step.nodes...); !slices.Equal(got, step.affected) {
			t.Errorf("%s: affected are %v, want %v", step.what, got, step.affected)
		}
		apply(t, tbl, tunneled("a", 1, "n1", "n2"))
		apply(t, tbl, tunneled("b", 2, "n2"))
		if err := tbl.DropNodes(); err != nil {
			t.Fatal(err)
		}
	}
	v := store.View()
	if at := v[web("b")].Nodes[endpoints(1)[0]]; at != netip.MustParseAddr("192.0.2.22") {
		t.Errorf("the backend of b is at %s", at)
	}
	if at := v[web("a")].Nodes[endpoints(1)[0]]; at.IsValid() {
		t.Errorf("the first backend of a is at %s, its node is gone", at)
	}
	if at := v[web("c")].Nodes[endpoints(1)[0]]; at.IsValid() {
		t.Errorf("the backend of c, which does not tunnel, is at %s", at)
	}
	nodes, changed := tbl.Nodes()
	want := []tables.NodeUse{
		{Node: tables.Node{Addr: netip.MustParseAddr("192.0.2.9"), Name: "here", Self: true}, ID: 1, Used: false},
		{Node: tables.Node{Addr: netip.MustParseAddr("192.0.2.22"), Name: "n2", Self: false}, ID: 4, Used: true},
	}
	if !changed || !slices.Equal(nodes, want) {
		t.Errorf("nodes are %+v (%t), want %+v", nodes, changed, want)
	}
	if _, changed := tbl.Nodes(); changed {
		t.Error("nodes have changed by themselves")
	}
	apply(t, tbl, tunneled("b", 2))
	apply(t, tbl, tunneled("a", 1))
	if nodes, changed := tbl.Nodes(); !changed || nodes[1].Used {
		t.Errorf("nodes are %+v (%t), want none to be used", nodes, changed)
	}
	if affected := setNodes(t, tbl, nodeAt("n2", "192.0.2.23"), here); affected != nil {
		t.Errorf("a node without endpoints affects %v", affected)
	}
}

// badNode is a store in which a node cannot be written for a while.
type badNode struct {
	*tablestest.Store
	bad bool
}

func (b *badNode) PutNode(id uint16, n tables.Node) error {
	if b.bad {
		return tablestest.ErrWrite
	}
	return b.Store.PutNode(id, n)
}

// TestNodeFails: an id whose node could not be written is not lost, and a node that could
// not be written anew keeps its own.
func TestNodeFails(t *testing.T) {
	limits := tablestest.Roomy
	limits.Nodes.Size = 2
	store := &badNode{Store: tablestest.New(t, limits), bad: true}
	tbl := tables.New(store)
	set := func(name string) error {
		_, err := tbl.SetNodes([]*model.Node{nodeAt(name, "192.0.2.1")}, "")
		return errors.Join(err, tbl.DropNodes())
	}
	if err := set("a"); !errors.Is(err, tablestest.ErrWrite) {
		t.Fatalf("the error is %v", err)
	}
	store.bad = false
	if err := set("a"); err != nil {
		t.Fatal(err)
	}
	store.bad = true
	if err := set("b"); !errors.Is(err, tablestest.ErrWrite) || tbl.NodeID("b") != 1 || store.Nodes[1].Name != "a" {
		t.Errorf("after %v the node is %+v, the id of b is %d", err, store.Nodes, tbl.NodeID("b"))
	}
	store.bad = false
	if err := set("b"); err != nil || store.Nodes[1].Name != "b" {
		t.Errorf("the node is %+v: %v", store.Nodes, err)
	}
}

// TestNodesOutliveRestart: ids are those of before, and endpoints find their nodes before
// the source has told of any.
func TestNodesOutliveRestart(t *testing.T) {
	store := tablestest.New(t, tablestest.Roomy)
	tbl := tables.New(store)
	setNodes(t, tbl, nodeAt("n1", "192.0.2.1"), nodeAt("n2", "192.0.2.2"), nodeAt("n3", "192.0.2.3"))
	setNodes(t, tbl, nodeAt("n3", "192.0.2.3"))
	if err := tbl.DropNodes(); err != nil {
		t.Fatal(err)
	}
	apply(t, tbl, tunneled("a", 1, "n3"))
	before := store.Writes
	tbl = restored(store)
	apply(t, tbl, tunneled("a", 1, "n3"))
	if err := tbl.DropNodes(); err != nil {
		t.Fatal(err)
	}
	if store.Writes != before {
		t.Errorf("a restart makes %d writes", store.Writes-before)
	}
	if affected := setNodes(t, tbl, nodeAt("n3", "192.0.2.3")); affected != nil || store.Writes != before {
		t.Errorf("the same nodes make %d writes and affect %v", store.Writes-before, affected)
	}
}

// TestNodeIDsRest: the id that has been free longest is used again, and only when no
// other is left.
func TestNodeIDsRest(t *testing.T) {
	limits := tablestest.Roomy
	limits.Nodes.Size = 4
	store := tablestest.New(t, limits)
	tbl := tables.New(store)
	replace := func(p *model.Node) uint16 {
		setNodes(t, tbl, p)
		if err := tbl.DropNodes(); err != nil {
			t.Fatal(err)
		}
		tbl.Release(tbl.Retire())
		store.Barrier()
		return tbl.NodeID(p.Name)
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
	limits := tablestest.Roomy
	limits.Nodes.Size = 3
	tbl := tables.New(tablestest.New(t, limits))
	_, err := tbl.SetNodes([]*model.Node{nodeAt("a", "192.0.2.1"), nodeAt("b", "192.0.2.2"), nodeAt("here", "192.0.2.3")}, "here")
	var full *tables.FullError
	if !errors.As(err, &full) || full.Table != "bl_node" {
		t.Errorf("the error is %v", err)
	}
	if nodes, _ := tbl.Nodes(); len(nodes) != 2 || !nodes[0].Self || nodes[1].Name != "a" {
		t.Errorf("nodes are %+v", nodes)
	}
}
