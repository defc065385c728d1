package differential

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/convert"
	"github.com/beeline-lb/beeline/tests/lab"
)

// explainedNode is a world that an agent in the test process serves. Its connections are explained
// and then made.
type explainedNode struct {
	*world
	agent     *lab.Agent
	datapath  *inspect.Datapath
	explainer *inspect.Explainer
	room      [4]uint32       // of the tables when they were opened
	packets   map[string]bool // the machines whose packets are served, not their sockets
	served    source.Update   // what the agent has
	ends      map[string]int  // how many connections of each kind of client ended so
}

func newExplainedNode(t *testing.T, o lab.AgentOptions) *explainedNode {
	t.Helper()
	n := &explainedNode{world: newWorld(t, "Beeline"), packets: map[string]bool{fromOutside: true, fromOther: true}, ends: make(map[string]int)}
	for _, pod := range []string{fromPod0, fromPod1} {
		n.at[pod].Populate() // it is found by its processes
		n.packets[pod] = len(o.PodDevices) > 0
	}
	for _, from := range []string{fromOutside, fromOther} {
		n.at[from].SetChecksumOffload(false) // XDP leaves unfinished checksums to tc
	}
	n.changeAddrs(extraAddrs[0][:])
	n.agent = n.host.Serve(o)
	n.open()
	t.Cleanup(n.close)
	return n
}

// open opens the maps, as the command does for each question. Those that are open see no more than
// the tables had room for then.
func (n *explainedNode) open() {
	n.t.Helper()
	var err error
	n.datapath, err = inspect.Open(n.host.BPFFS)
	n.must(err)
	n.explainer, n.room = n.datapath.Explainer(), n.tableRoom()
}

func (n *explainedNode) close() {
	if err := errors.Join(n.explainer.Close(), n.datapath.Close()); err != nil {
		n.t.Error(err)
	}
}

// tableRoom is for how many entries the tables that grow have room.
func (n *explainedNode) tableRoom() [4]uint32 {
	m := n.agent.Maps()
	return [...]uint32{m.Service.Len(), m.ServiceName.Len(), m.Backend.Len(), m.Slot.Len()}
}

func (n *explainedNode) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// show makes the cluster what the agent serves.
func (n *explainedNode) show(c *cluster) {
	n.t.Helper()
	next := source.Update{LocalNode: &model.LocalNode{Name: nodeName, Addrs: nodeAddrs[:], Zone: c.zone}}
	for _, s := range c.services {
		if m := convert.Service(s, convert.Allowed{Annotations: convert.AllAnnotations}); m != nil {
			next.PutServices = append(next.PutServices, m)
		}
	}
	for _, s := range c.slices {
		if m := convert.Slice(s, convert.AllAnnotations); m != nil {
			next.PutSlices = append(next.PutSlices, m)
		}
	}
	change := next
	for _, had := range n.served.PutServices {
		if !slices.ContainsFunc(next.PutServices, func(s *model.Service) bool { return s.Name == had.Name }) {
			change.DeleteServices = append(change.DeleteServices, had.Name)
		}
	}
	for _, had := range n.served.PutSlices {
		if !slices.ContainsFunc(next.PutSlices, func(s *model.Slice) bool { return s.Name == had.Name }) {
			change.DeleteSlices = append(change.DeleteSlices, had.Name)
		}
	}
	n.agent.Update(change)
	n.served = next
	if n.tableRoom() != n.room {
		n.close()
		n.open()
	}
}

// vary gives a cluster algorithms and weights, and the node's addresses, which stay.
func vary(c *cluster, seed, number uint64) *cluster {
	g := &generator{rand.New(rand.NewPCG(seed, number+1<<32))}
	for _, s := range c.services {
		s.Annotations = nil
		if g.chance(60) {
			s.Annotations = map[string]string{convert.AnnotationAlgorithm: one(g, model.Algorithms()...)}
		}
	}
	for _, s := range c.slices {
		s.Annotations = nil
		if g.chance(30) {
			s.Annotations = map[string]string{convert.AnnotationWeight: strconv.Itoa(one(g, 0, 1, 3))}
		}
	}
	c.addrs = slices.Clone(extraAddrs[0][:])
	return c
}

// stray leads some probes to another port, protocol or address, by the number of the cluster.
func stray(probes []probe, seed, number uint64) []probe {
	g := &generator{rand.New(rand.NewPCG(seed, number+2<<32))}
	for i := range probes {
		p := &probes[i]
		switch g.IntN(20) {
		case 0:
			p.to = netip.AddrPortFrom(p.to.Addr(), p.to.Port()+1)
		case 1:
			p.udp = !p.udp
		case 2: // which is not the node's
			p.to = netip.AddrPortFrom(extraAddrs[1][p.family()], p.to.Port())
		}
	}
	return probes
}
