package packets_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/tests/lab"
)

// agent is beeline-agent on a node.
type agent struct {
	*lab.Standalone
	t       *testing.T
	node    *node
	flags   []string
	former  string // see [lab.Standalone]
	updates int
}

// startAgent starts an agent on a node and returns when it serves the manifests.
func startAgent(t *testing.T, n *node, manifests []string, flags ...string) *agent {
	t.Helper()
	a := newAgent(t, n, manifests, flags...)
	a.start()
	return a
}

// newAgent is startAgent of one that is not started yet.
func newAgent(t *testing.T, n *node, manifests []string, flags ...string) *agent {
	t.Helper()
	address := nodeAddrs(n.index)
	a := &agent{Standalone: n.NewStandalone(manifests...), t: t, node: n, flags: append([]string{
		"--hostname-override", n.name(),
		"--node-ip", address[0].String() + "," + address[1].String(),
		"--cluster-cidr", strings.Join(podRanges, ","),
	}, flags...)}
	t.Cleanup(func() {
		if t.Failed() {
			page, err := n.metrics()
			t.Logf("the agent of %s counts: %v %s", n.name(), err, losses.FindAllString(page, -1))
		}
	})
	return a
}

// losses are an agent's counters of what was not served.
var losses = regexp.MustCompile(`(?m)^beeline_\w*(?:events|refused|exhausted|evicted|full|unapplied)\w*.* [^0].*$`)

// metrics returns the page of metrics of the node's agent.
func (n *node) metrics() (string, error) {
	return n.Get("http://127.0.0.1:10249/metrics")
}

// serve starts the servers of all nodes, and the agent of node 1, which clients meet, that serves
// the manifests. To the other nodes come packets of connections with endpoints there, as from any client.
func (c *cluster) serve(t *testing.T, manifests []string, flags ...string) *agent {
	t.Helper()
	c.serveAll(t)
	c.agents = append(c.agents, startAgent(t, c.nodes[0], manifests, flags...))
	return c.agents[0]
}

// serveEverywhere is serve with an agent on each node.
func (c *cluster) serveEverywhere(t *testing.T, manifests []string, flags ...string) *agent {
	t.Helper()
	c.serve(t, manifests, flags...)
	for _, n := range c.nodes[1:] {
		c.agents = append(c.agents, startAgent(t, n, manifests, flags...))
	}
	return c.agents[0]
}

func (a *agent) start() {
	a.t.Helper()
	a.Former = a.former
	a.Start(a.flags...)
}

// apply replaces the manifests and returns when they are served.
func (a *agent) apply(manifests ...string) {
	a.t.Helper()
	a.updates++
	marker := fmt.Sprintf("marker-%d", a.updates)
	before, _ := a.served(marker)
	a.Write("first.yaml", append(manifests,
		lab.Service(marker, fmt.Sprintf("{clusterIP: 10.96.255.%d, ports: [{port: 1}]}", a.updates)))...)
	lab.Eventually(a.t, "the agent of "+a.node.name()+" serves new manifests", func() bool {
		syncs, known := a.served(marker)
		if !known {
			before = syncs
		}
		return known && syncs != before
	})
}

// served returns how many syncs the agent has ended, and whether a Service was in
// the kernel after that.
func (a *agent) served(service string) (syncs uint64, known bool) {
	a.t.Helper()
	maps, err := bpfmap.Open(datapath.Dir(a.node.BPFFS))
	if err != nil {
		a.t.Fatal(err)
	}
	defer maps.Close()
	syncs = statusmap.New(maps).Agent().Syncs
	for _, name := range servicemap.New(maps).ServiceNames() {
		known = known || name.Port.Service.Name == service
	}
	return syncs, known
}
