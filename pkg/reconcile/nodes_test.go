package reconcile_test

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/reconcile"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/wait"
)

func node(name, addr string) *model.Node {
	a := netip.MustParseAddr(addr)
	return &model.Node{Name: name, Tunnel: a, Addrs: []netip.Addr{a}}
}

// on is a slice of a Service with one endpoint on each node, 10.1.0.1 and so on.
func on(service string, nodes ...string) *model.Slice {
	s := slice(service+"-1", service)
	for i, node := range nodes {
		s.Endpoints = append(s.Endpoints, model.Endpoint{
			Addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(i + 1)}), NodeName: node, Ready: true, Serving: true,
		})
	}
	return s
}

// tunnels returns where packets to each endpoint of the Service port are tunneled, nil
// when they are not.
func (l *loop) tunnels(name string) map[string]string {
	l.t.Helper()
	have, err := l.store.Snapshot()
	if err != nil {
		l.t.Fatal(err)
	}
	for id, n := range have.Names {
		if n.Port.Service.Name != name || !have.Services[id].Tunnels {
			continue
		}
		at := make(map[string]string)
		for _, b := range have.Backends {
			if b.Service != id {
				continue
			}
			at[b.AddrPort.Addr().String()] = ""
			if b.Node != 0 {
				at[b.AddrPort.Addr().String()] = have.Nodes[b.Node].Addr.String()
			}
		}
		return at
	}
	return nil
}

func (l *loop) eventuallyTunnels(name string, want map[string]string) {
	l.t.Helper()
	var got map[string]string
	for deadline := time.Now().Add(wait.Limit); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if got = l.tunnels(name); reflect.DeepEqual(got, want) {
			return
		}
	}
	l.t.Fatalf("%s is tunneled to %v, want %v", name, got, want)
}

// nodes returns the names of the nodes in the tables, in order, that of this one with a star.
func (l *loop) nodes() string {
	l.t.Helper()
	have, err := l.store.Snapshot()
	if err != nil {
		l.t.Fatal(err)
	}
	var names []string
	for _, n := range have.Nodes {
		if n.Self {
			n.Name += "*"
		}
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

func (l *loop) eventuallyNodes(want string) {
	l.t.Helper()
	got := ""
	for deadline := time.Now().Add(wait.Limit); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if got = l.nodes(); got == want {
			return
		}
	}
	l.t.Fatalf("nodes are %q, want %q", got, want)
}

func forwarding(f model.Forwarding) func(*model.Service) {
	return func(s *model.Service) { s.Forwarding = f }
}

// TestForwarding: Services go by their own mode, else by the default; endpoints of a
// tunneled one lead to their nodes, which come and go.
func TestForwarding(t *testing.T) {
	self := model.LocalNode{Name: "here", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}
	l := start(t, newStore(t), asIs, reconcile.Options{LocalNode: self, Forwarding: model.Hybrid})
	l.Apply(put(
		service("a", "10.96.0.1"), on("a", "n1", "n2", "here", ""),
		service("b", "10.96.0.2", forwarding(model.SNAT)), on("b", "n1"),
		node("n1", "192.0.2.1"), node("n2", "192.0.2.2"),
	))
	l.Synced()
	l.eventuallyTunnels("a", map[string]string{"10.1.0.1": "192.0.2.1", "10.1.0.2": "192.0.2.2", "10.1.0.3": "192.0.2.9", "10.1.0.4": ""})
	l.eventually("10.96.0.2:80", "10.1.0.1:8080")
	if got := l.tunnels("b"); got != nil {
		t.Errorf("b is tunneled to %v", got)
	}
	l.eventuallyNodes("here* n1 n2")
	l.Apply(put(node("n3", "192.0.2.3"), node("n1", "192.0.2.11")))
	l.Apply(source.Update{DeleteNodes: []string{"n2"}})
	l.eventuallyTunnels("a", map[string]string{"10.1.0.1": "192.0.2.11", "10.1.0.2": "", "10.1.0.3": "192.0.2.9", "10.1.0.4": ""})
	l.eventuallyNodes("here* n1 n3")
}

// TestNodesKeepTheirAddresses: what a Node lists of others' addresses is theirs, to the programs and to
// who asks for active connections.
func TestNodesKeepTheirAddresses(t *testing.T) {
	held := newStore(t)
	synctest.Test(t, func(t *testing.T) {
		var told []*model.Node
		opts := quick
		opts.Forwarding = model.DSR
		opts.LocalNode = model.LocalNode{Name: "here", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}
		opts.SpillOvers = func(_ []model.Name, nodes []*model.Node, _ *model.LocalNode) { told = nodes }
		l := start(t, held, asIs, opts)
		greedy := node("a", "192.0.2.1")
		for _, other := range []string{"192.0.2.2", "192.0.2.3", "192.0.2.9", "198.51.100.1"} {
			greedy.Addrs = append(greedy.Addrs, netip.MustParseAddr(other))
		}
		l.Apply(put(service("a", "10.96.0.1", spills), inZone("z"), greedy, node("b", "192.0.2.2"), node("c", "192.0.2.3")))
		l.Apply(source.Update{NodesListed: true})
		l.Synced()
		time.Sleep(time.Second)
		synctest.Wait()
		have, err := held.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		at := make(map[string]string)
		for addr, id := range have.NodeIDs {
			at[addr.String()] = have.Nodes[id].Name
		}
		want := map[string]string{"192.0.2.1": "a", "198.51.100.1": "a", "192.0.2.2": "b", "192.0.2.3": "c", "192.0.2.9": "here"}
		if !maps.Equal(at, want) {
			t.Errorf("addresses lead to %v, want %v", at, want)
		}
		listed := make(map[string]string)
		for _, n := range told {
			for _, addr := range n.Addrs {
				listed[addr.String()] += n.Name
			}
		}
		want["192.0.2.9"] = "a" // this one's is nobody's to ask
		if !maps.Equal(listed, want) {
			t.Errorf("told of addresses of %v, want %v", listed, want)
		}
	})
}

// TestNodesAreFollowedWhenAsked: a source that can be spared the nodes is asked for them
// when the first Service wants the tunnel, and what a former agent knew serves until then.
func TestNodesAreFollowedWhenAsked(t *testing.T) {
	maps, services := newMaps(t) // and the answers of nodes, which only the map of the kernel has
	run := func(name string, fn func(t *testing.T, l *loop, asked chan bool)) {
		t.Run(name, func(t *testing.T) {
			asked := make(chan bool, 100)
			fn(t, start(t, services, asIs, reconcile.Options{
				LocalNode: model.LocalNode{Name: "here"}, FollowNodes: func() { asked <- true },
			}), asked)
		})
	}
	run("first agent", func(t *testing.T, l *loop, asked chan bool) {
		l.Apply(put(service("a", "10.96.0.1"), on("a", "n1")))
		l.Synced()
		l.eventually("10.96.0.1:80", "10.1.0.1:8080")
		if len(asked) > 0 || l.nodes() != "" {
			t.Fatalf("asked %d times for nodes that nobody needs; there are %q", len(asked), l.nodes())
		}
		l.Apply(put(service("a", "10.96.0.1", forwarding(model.DSR))))
		<-asked
		l.eventuallyTunnels("a", map[string]string{"10.1.0.1": ""})
		l.Apply(put(node("n1", "192.0.2.1"), node("here", "192.0.2.9")))
		l.Apply(source.Update{NodesListed: true})
		l.eventuallyTunnels("a", map[string]string{"10.1.0.1": "192.0.2.1"})
		nodemap.New(maps).SetAnswer(2, netip.MustParseAddr("192.0.2.1"), nodemap.Accepts)
	})
	run("second agent", func(t *testing.T, l *loop, asked chan bool) {
		l.Apply(put(service("a", "10.96.0.1", forwarding(model.DSR)), on("a", "n1", "n1")))
		l.Synced()
		l.eventuallyTunnels("a", map[string]string{"10.1.0.1": "192.0.2.1", "10.1.0.2": "192.0.2.1"})
		l.Apply(put(node("here", "192.0.2.9"), node("n1", "192.0.2.1")))
		l.Apply(source.Update{NodesListed: true})
		for len(l.syncs) > 0 {
			<-l.syncs
		}
		l.Apply(put(service("b", "10.96.0.2")))
		<-l.syncs
		if list, err := nodemap.New(maps).List(); err != nil || len(list) != 2 || !list[1].Tunnel {
			t.Errorf("nodes are %+v: %v", list, err)
		}
		l.Apply(put(service("a", "10.96.0.1")))
		l.eventuallyNodes("")
	})
}

// TestPodRanges: who has to know is told of the ranges of all nodes' pods when these are known, and
// when they have changed; of none while no packets go in a tunnel.
func TestPodRanges(t *testing.T) {
	told := make(chan string, 10)
	l := start(t, newStore(t), asIs, reconcile.Options{
		LocalNode: model.LocalNode{Name: "here"}, FollowNodes: func() {},
		PodRanges: func(ranges []netip.Prefix) { told <- fmt.Sprint(ranges) },
	})
	want := func(what, want string) {
		t.Helper()
		if got := <-told; got != want {
			t.Fatalf("%s: told of %s, want %s", what, got, want)
		}
	}
	pods := func(name, addr, pods string) *model.Node {
		n := node(name, addr)
		n.PodRanges = []netip.Prefix{netip.MustParsePrefix(pods)}
		return n
	}
	l.Apply(put(service("a", "10.96.0.1")))
	l.Synced()
	want("no tunnel", "[]")
	l.Apply(put(service("a", "10.96.0.1", forwarding(model.DSR)), pods("n1", "192.0.2.1", "10.244.1.0/24"), pods("here", "192.0.2.9", "10.244.9.0/24")))
	l.Apply(source.Update{NodesListed: true})
	want("a tunnel", "[10.244.1.0/24 10.244.9.0/24]")
	l.Apply(put(pods("n1", "192.0.2.2", "10.244.1.0/24"))) // its address alone
	l.Apply(put(pods("n2", "192.0.2.3", "10.244.2.0/24")))
	want("another node", "[10.244.1.0/24 10.244.2.0/24 10.244.9.0/24]")
	l.Apply(put(service("a", "10.96.0.1")))
	want("no tunnel any more", "[]")
}

// TestForwardingRefused: what cannot be had is a fault of the Service, and the default
// counts; a node that takes no part minds no Service.
func TestForwardingRefused(t *testing.T) {
	told := make(chan []model.Fault, 10)
	l := start(t, newStore(t), asIs, reconcile.Options{
		ForwardingRefused: "cannot be had",
		Faults:            func(_ model.Name, faults, _ []model.Fault) { told <- faults },
	})
	l.Apply(put(service("a", "10.96.0.1", forwarding(model.Hybrid)), on("a", "n1"), node("n1", "192.0.2.1")))
	l.Synced()
	l.eventually("10.96.0.1:80", "10.1.0.1:8080")
	if got := l.tunnels("a"); got != nil {
		t.Errorf("a is tunneled to %v", got)
	}
	want := model.Fault{Setting: "service.beeline.io/forwarding-mode", Reason: `"hybrid" cannot be had`}
	if got := <-told; len(got) != 1 || got[0] != want {
		t.Errorf("faults are %v, want %v", got, want)
	}

	l = start(t, newStore(t), asIs, reconcile.Options{NoTunnel: true, Forwarding: model.DSR})
	l.Apply(put(service("a", "10.96.0.1", forwarding(model.DSR)), on("a", "n1"), node("n1", "192.0.2.1")))
	l.Synced()
	l.eventually("10.96.0.1:80", "10.1.0.1:8080")
	if got := l.tunnels("a"); got != nil || l.nodes() != "" {
		t.Errorf("without a part in it, a is tunneled to %v; nodes are %q", got, l.nodes())
	}
}

// withoutNodeAddrs has no room for addresses of the node.
type withoutNodeAddrs struct{ tables.Store }

func (withoutNodeAddrs) PutNodeAddr(netip.Addr, tables.NodeAddr) error {
	return tables.Limit{Table: "bl_node_addr", Size: 4096}.Full()
}

// TestNodeAddrsFull: that there is no room for addresses of the node is told as of any other table.
func TestNodeAddrsFull(t *testing.T) {
	l := start(t, newStore(t), func(s tables.Store) tables.Store { return withoutNodeAddrs{s} }, reconcile.Options{})
	l.SetLocalAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.1")})
	l.Apply(put(service("web", "10.96.0.1"), slice("web-1", "web", "10.1.0.1")))
	l.Synced()
	if s := l.applied(); !s.Full["bl_node_addr"] || s.Pending > 0 {
		t.Errorf("tables full %v, %d Services wait", s.Full, s.Pending)
	}
}
