package packets_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/killpoint"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// migrating is a node that both proxies have served, with connections of both. kube-proxy has
// ended.
type migrating struct {
	node  *node
	talks talks
}

func newMigrating(t *testing.T, server *apiserver.Server, m proxyMode) *migrating {
	t.Helper()
	c := newCluster(t, false)
	c.serveAll(t)
	g := &migrating{node: c.nodes[0]}
	firewall := m.proxy == "iptables" // else connections need nothing in place of KUBE-FORWARD
	if firewall {
		dropForwarded(t, g.node.Namespace, m)
	}
	proxy := newKubeProxy(t, server, g.node.Namespace, m)
	proxy.start()
	old := openTalks(t, c, "kube-proxy", firewall)
	startClusterAgent(t, server, g.node)
	proxy.stop()
	g.talks = slices.Concat(old, openTalks(t, c, "Beeline", firewall))
	return g
}

// cleanup removes kube-proxy's rules and is killed at a write, unless that is 0.
func (g *migrating) cleanup(t *testing.T, kill int64) *lab.Writes {
	t.Helper()
	return g.node.StartWatched(lab.NetfilterWrites, kill, lab.AgentBinary(t), "--cleanup-kube-proxy")
}

// dump returns all rules of the node. Tables come in the order in which both proxies have made
// them, which differs.
func (g *migrating) dump(t *testing.T) string {
	t.Helper()
	ofPrograms, ofNFT, _ := strings.Cut(dumpFirewall(t, g.node.Namespace), "== nft\n")
	tables := strings.SplitAfter(ofNFT, "\n}\n")
	slices.Sort(tables)
	return ofPrograms + strings.Join(tables, "")
}

// testCleanupKilled kills the clean-up at a system call that may change netfilter's tables: all
// connections go on, and the next clean-up ends as one that was not killed.
func testCleanupKilled(t *testing.T, server *apiserver.Server, m proxyMode) {
	tier.Variant(t, m.name == "iptables-nft")
	whole := newMigrating(t, server, m)
	before := whole.dump(t)
	w := whole.cleanup(t, 0)
	if err := w.Wait(); err != nil {
		t.Fatal(err)
	}
	want := whole.dump(t)
	if want == before {
		t.Fatal("the clean-up has changed nothing, so this test proves nothing")
	}
	killpoint.Each(t, 1, w.Count(), func(t *testing.T, at int64) {
		g := newMigrating(t, server, m)
		if w := g.cleanup(t, at); !w.Killed(at) {
			t.Fatalf("the clean-up ended after %d writes, before it was killed", w.Count())
		}
		g.talks.goOn(t, g.node, "after the clean-up was killed")
		cleanupByAgent(t, g.node.Namespace)
		g.talks.goOn(t, g.node, "after the next clean-up")
		if got := g.dump(t); got != want {
			t.Errorf("after the next clean-up:\n%s\nwant:\n%s", got, want)
		}
	})
}

// TestDrainKilled kills a drain at a system call that writes a map, a pin or a link, while connections
// are open or when they have ended: they go on, and the next drain removes everything.
func TestDrainKilled(t *testing.T) {
	t.Parallel()
	tier.Slow(t, "TestDrainKeepsSourcePorts drains, and TestKubeProxy has a clean-up killed")
	drain := func(t *testing.T, kill int64) *lab.Writes {
		c, a := serveCluster(t, func(c *cluster) []string { return c.service(1, "far", "", []endpoint{remote}) })
		node := c.nodes[0]
		open := make(map[string]*lab.Socket)
		for _, network := range networks[:2] {
			open[network], _ = connect(t, c.client, network, nodePort(network, 1))
		}
		a.Signal(unix.SIGTERM)
		if err := a.Wait(); err != nil {
			t.Fatal(err)
		}
		w := node.StartWatched(lab.BPFWrites, kill, lab.AgentBinary(t), "--drain", "--bpffs", node.BPFFS, "--cgroup-root", node.Cgroup)
		lab.Eventually(t, "the drain waits", func() bool {
			return w.Ended() || strings.Contains(w.Output(), "waiting for ")
		})
		for network, s := range open {
			if err := goesOn(s, network); err != nil {
				t.Errorf("%s: %v", network, err)
			}
			s.Close()
		}
		if killed := w.Killed(kill); killed != (kill > 0) {
			t.Fatalf("the drain ended after %d writes, was killed: %v", w.Count(), killed)
		}
		if kill > 0 {
			if _, err := node.Output(lab.AgentBinary(t), "--drain", "--bpffs", node.BPFFS, "--cgroup-root", node.Cgroup); err != nil {
				t.Fatal(failure(err))
			}
		}
		if left, err := os.ReadDir(node.BPFFS); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
		return w
	}
	killpoint.Each(t, 2, drain(t, 0).Count(), func(t *testing.T, at int64) { drain(t, at) })
}
