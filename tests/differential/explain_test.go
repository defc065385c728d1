package differential

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/source/convert"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

var explained = flag.Uint64("explained", 0, "how many random clusters are explained; 0 is 50, and 2,000 of all tests")

// connectionsOfCluster is how many connections are explained, and then made, in each cluster.
const connectionsOfCluster = 8

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
		if m := convert.Service(s, convert.AllAnnotations); m != nil {
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

// disagreement is a connection that did not end as was explained.
type disagreement struct {
	probe
	said *inspect.Explanation
	what string
}

func (d *disagreement) String() string {
	text := fmt.Sprintf("%s\n  %s, explained as %s:\n", d.probe, d.what, d.said.Verdict)
	for _, s := range d.said.Steps {
		text += fmt.Sprintf("    %-14s %s\n", s.Step, s.Result)
	}
	for _, b := range d.said.Backends {
		text += fmt.Sprintf("    %s, share %.3f: %s\n", netip.AddrPortFrom(b.Address, b.TargetPort), b.Share, b.Why)
	}
	return text
}

// check explains and makes connections, those of sockets one after the other, those of packets
// together. It returns the first one that ends otherwise.
func (n *explainedNode) check(probes []probe) *disagreement {
	n.t.Helper()
	packets := make(map[string][]probe)
	for i, p := range probes {
		if n.packets[p.machine] {
			packets[p.machine] = append(packets[p.machine], p)
			continue
		}
		bound := p.machine == fromNode && i%2 == 0 && !p.to.Addr().IsLoopback()
		if d := n.checkSocket(p, bound); d != nil {
			return d
		}
	}
	for _, from := range []string{fromOutside, fromOther, fromPod0, fromPod1} {
		if d := n.checkPackets(from, packets[from]); d != nil {
			return d
		}
	}
	return nil
}

// explain explains a connection in the calling thread's namespace.
func (n *explainedNode) explain(p probe, from string) (*inspect.Explanation, error) {
	protocol := model.TCP
	if p.udp {
		protocol = model.UDP
	}
	return n.explainer.Explain(inspect.ExplainOptions{From: from, To: p.to, Protocol: protocol})
}

// checkSocket is check of a process, whose socket may be bound to the node's address.
func (n *explainedNode) checkSocket(p probe, bound bool) *disagreement {
	n.t.Helper()
	d := &disagreement{probe: p}
	from, a := "", attempt{udp: p.udp, to: p.to, unconnected: p.udp}
	if bound {
		a.from = nodeAddrs[p.family()]
		from = a.from.String()
	}
	n.must(n.at[p.machine].Run(func() (err error) {
		if d.said, err = n.explain(p, from); err != nil {
			return err
		}
		within := wait.Limit
		if d.said.Verdict == inspect.VerdictNoService {
			within = 0 // what the kernel makes of it is not asked
		}
		before, err := n.counts()
		if err != nil {
			return err
		}
		got, err := n.at[p.machine].once(a, within)
		if err != nil {
			return err
		}
		after, err := n.counts()
		if d.what = differs(d.said, got); d.what == "" {
			d.what = miscounted(d.said, before, after)
		}
		return err
	}))
	n.ends["sockets: "+d.said.Verdict]++
	if d.what == "" {
		return nil
	}
	return d
}

// checkPackets is check of clients whose packets are served. An address makes one connection, for
// the next one may depend on that.
func (n *explainedNode) checkPackets(from string, probes []probe) *disagreement {
	n.t.Helper()
	m := n.at[from]
	var attempts []attempt
	var all []*disagreement
	n.must(n.host.Run(func() error {
		for i, p := range probes {
			own := map[string]addrs{fromOutside: outsideAddrs(p.group, i), fromOther: otherAddrs, fromPod0: podAddrs[0], fromPod1: podAddrs[1]}[from]
			a := attempt{udp: p.udp, from: own[p.family()], port: uint16(m.nextPort()), to: p.to}
			said, err := n.explain(p, netip.AddrPortFrom(a.from, a.port).String())
			if err != nil {
				return err
			}
			n.ends["packets: "+said.Verdict]++
			if said.Verdict != inspect.VerdictNoService { // what the kernel makes of it is not asked
				attempts, all = append(attempts, a), append(all, &disagreement{probe: p, said: said})
			}
			if from != fromOutside {
				break
			}
		}
		return nil
	}))
	before, err := n.counts()
	n.must(err)
	results, err := m.try(attempts, 0)
	n.must(err)
	after, err := n.counts()
	n.must(err)
	for i, d := range all {
		if d.what = differs(d.said, results[i]); d.what == "" && !elsewhere(d.said, results[i]) {
			d.what = unmoved(d.said, before, after)
		}
		if d.what != "" {
			return d
		}
	}
	return nil
}

// elsewhere reports whether a connection has reached another backend than the one by which its way
// was told.
func elsewhere(x *inspect.Explanation, got result) bool {
	return x.Chosen != nil && netip.AddrPortFrom(x.Chosen.Address, x.Chosen.TargetPort) != got.server
}

// unmoved says which counter of those named has not moved.
func unmoved(x *inspect.Explanation, before, after counts) string {
	for i, r := range after.reasons {
		if slices.Contains(x.Counters, r.Name) && r.Count == before.reasons[i].Count {
			return fmt.Sprintf("counter %s does not move", r.Name)
		}
	}
	return ""
}

// differs says how the end of a connection differs from what was said, if it does.
func differs(x *inspect.Explanation, got result) string {
	want := map[string]verdict{
		inspect.VerdictServed: reached, inspect.VerdictRefused: refused, inspect.VerdictDropped: dropped,
	}[x.Verdict]
	switch {
	case want == "":
		return ""
	case got.verdict != want:
		return fmt.Sprintf("it is %s %s", got.verdict, got.server)
	case want != reached:
		return ""
	}
	chosen := netip.AddrPortFrom(x.Chosen.Address, x.Chosen.TargetPort)
	source := netip.AddrPortFrom(got.source, got.sourcePort)
	switch {
	case x.Certain && got.server != chosen:
		return fmt.Sprintf("it reaches %s", got.server)
	case !slices.ContainsFunc(x.Backends, func(b inspect.ExplainedBackend) bool {
		return b.Share > 0 && netip.AddrPortFrom(b.Address, b.TargetPort) == got.server
	}):
		return fmt.Sprintf("it reaches %s, which is to get nothing", got.server)
	case x.Path.Hook != "socket" && got.server == chosen && source != x.Path.Source:
		return fmt.Sprintf("%s sees %s", got.server, source)
	}
	return ""
}

// counts are the counters of the node.
type counts struct {
	reasons  []statusmap.Reason
	services []statusmap.ServiceStat
}

func (n *explainedNode) counts() (c counts, err error) {
	const ids = 64 // more than a cluster needs
	status := statusmap.New(n.agent.Maps())
	if c.reasons, err = status.Reasons(); err != nil {
		return c, err
	}
	c.services, err = status.ServiceStats(ids)
	return c, err
}

// miscounted says which counter a connection of a socket has moved or not against what was said.
func miscounted(x *inspect.Explanation, before, after counts) string {
	if what := unmoved(x, before, after); what != "" {
		return what
	}
	for i, r := range after.reasons {
		if r.Count != before.reasons[i].Count && !slices.Contains(x.Counters, r.Name) && (r.Effect == statusmap.Refused || r.Effect == statusmap.Dropped) {
			return fmt.Sprintf("counter %s moves", r.Name)
		}
	}
	for id, s := range after.services {
		want := before.services[id]
		if x.Service != nil && x.Service.ID == uint32(id) {
			switch x.Verdict {
			case inspect.VerdictServed:
				want.Connections++
			case inspect.VerdictRefused, inspect.VerdictDropped:
				want.Refused++
			}
		}
		if s != want {
			return fmt.Sprintf("service port %d counts %+v, to be %+v", id, s, want)
		}
	}
	return ""
}

// TestExplainRandomClusters: in clusters that change at random, connections of processes and of
// clients outside end as was explained before. It prints the smallest cluster in which one does not.
func TestExplainRandomClusters(t *testing.T) {
	count := *explained
	if count == 0 {
		count = 50
		if tier.All() {
			count = 2000
		}
	}
	uplink := []string{"uplink"}
	for i, s := range []struct {
		name string
		lab.AgentOptions
	}{
		{"sockets", lab.AgentOptions{Devices: uplink}},
		{"packets", lab.AgentOptions{Devices: uplink, PodDevices: []string{"vethpod*"}}},
		{"xdp", lab.AgentOptions{Devices: uplink, XDP: datapath.XDPGeneric}},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.ServiceRanges = serviceRanges
			newExplainedNode(t, s.AgentOptions).run(*seed+uint64(i)<<32, *first, *first+(count+2)/3)
		})
	}
}

// run checks the clusters of a stream by their numbers.
func (n *explainedNode) run(stream, from, to uint64) {
	n.t.Helper()
	begin := time.Now()
	var c *cluster
	for number := from - from%fresh; number < to; number++ {
		if number%fresh == 0 {
			c = nil
		}
		c = vary(generate(stream, number, c), stream, number)
		if number < from {
			continue
		}
		n.show(c)
		probes := stray(sample(c, connectionsOfCluster, stream, number), stream, number)
		if d := n.check(probes); d != nil {
			n.report(number, c, d)
			return
		}
	}
	n.t.Logf("%d clusters of seed %d in %s: %v", to-from, *seed, time.Since(begin).Round(time.Millisecond), n.ends)
	for _, client := range []string{"sockets", "packets"} {
		for _, v := range []string{inspect.VerdictServed, inspect.VerdictRefused, inspect.VerdictDropped, inspect.VerdictNoService} {
			if n.ends[client+": "+v] == 0 {
				n.t.Errorf("no connection of %s is %s", client, v)
			}
		}
	}
}

// report fails the test with the smallest cluster that shows a disagreement by itself.
func (n *explainedNode) report(number uint64, c *cluster, d *disagreement) {
	n.t.Helper()
	text := fmt.Sprintf("cluster %d of seed %d: %s", number, *seed, d)
	fails := func(c *cluster) bool {
		const tries = 8 // the backend may be left to chance
		n.show(&cluster{zone: c.zone})
		n.show(c)
		for range tries {
			if again := n.check([]probe{d.probe}); again != nil {
				d = again
				return true
			}
		}
		return false
	}
	if !fails(c) {
		n.t.Errorf("%sIt does not show again.\n%s", text, c)
		return
	}
	small := minimise(c, fails)
	fails(small)
	n.t.Errorf("%sThe smallest cluster that shows\n%s\n%s", text, d, small)
}
