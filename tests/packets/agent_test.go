package packets_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/lab"
)

// agent is beeline-agent on a node.
type agent struct {
	*lab.Standalone
	t       *testing.T
	node    *node
	flags   []string
	updates int
}

// startAgent starts an agent on a node and returns when it serves the manifests.
func startAgent(t *testing.T, n *node, manifests []string, flags ...string) *agent {
	t.Helper()
	address := nodeAddrs(n.index)
	a := &agent{Standalone: n.NewStandalone(manifests...), t: t, node: n, flags: append([]string{
		"--hostname-override", n.name(),
		"--node-ip", address[0].String() + "," + address[1].String(),
		"--cluster-cidr", strings.Join(podRanges, ","),
	}, flags...)}
	a.start()
	return a
}

func (a *agent) start() {
	a.t.Helper()
	a.Start(a.flags...)
}

// apply replaces the manifests and returns when they are served.
func (a *agent) apply(manifests ...string) {
	a.t.Helper()
	maps, err := bpfmap.Open(datapath.Dir(a.node.BPFFS))
	if err != nil {
		a.t.Fatal(err)
	}
	defer maps.Close()
	a.updates++
	marker := fmt.Sprintf("marker-%d", a.updates)
	before := maps.Agent().Syncs
	a.Write("first.yaml", append(manifests,
		lab.Service(marker, fmt.Sprintf("{clusterIP: 10.96.255.%d, ports: [{port: 1}]}", a.updates)))...)
	lab.Eventually(a.t, "the agent of "+a.node.name()+" serves new manifests", func() bool {
		syncs := maps.Agent().Syncs
		if !known(maps, marker) {
			before = syncs
			return false
		}
		return syncs != before
	})
}

// known reports whether a Service is in the kernel.
func known(maps *bpfmap.Maps, service string) bool {
	for _, name := range maps.ServiceNames() {
		if name.Port.Service.Name == service {
			return true
		}
	}
	return false
}
