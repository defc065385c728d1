package differential

import (
	"flag"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

var explained = flag.Uint64("explained", 0, "how many random clusters are explained; 0 is 30, and 60 of all tests")

// connectionsOfCluster is how many connections are explained, and then made, in each cluster.
const connectionsOfCluster = 8

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
			attempts, all = append(attempts, a), append(all, &disagreement{probe: p, said: said})
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

// TestExplainRandomClusters: in clusters that change at random, connections of processes and of
// clients outside end as was explained before. It prints the smallest cluster in which one does not.
func TestExplainRandomClusters(t *testing.T) {
	count := *explained
	if count == 0 {
		count = 30
		if tier.All(t) {
			count = 60
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
	const enough = 500 // clusters, whatever the seed
	if to-from < enough {
		return
	}
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
