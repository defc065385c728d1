package packets_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// publicServices are the Services of the API server: one with a backend on this
// node, one with a backend on the other, and one with a host's process there.
func publicServices() []string {
	const dual = "ipFamilyPolicy: RequireDualStack,"
	c := &cluster{nodes: []*node{{index: 1}, {index: 2}}}
	var all []string
	for i, at := range []endpoint{{node: 1, place: "routed"}, {node: 2, place: "routed"}, {node: 2, place: "host"}} {
		all = append(all, c.service(i+1, fmt.Sprintf("public-%d", i+1), dual, []endpoint{at})...)
	}
	return all
}

// startClusterAgent starts an agent that follows the API server, with other ports than
// kube-proxy's, and returns when it serves.
func startClusterAgent(t *testing.T, server *apiserver.Server, n *node, flags ...string) *lab.Process {
	t.Helper()
	p := n.Start(lab.AgentBinary(t), append(flags, "--kubeconfig", server.Kubeconfig, "--hostname-override", n.name(),
		"--cluster-cidr", strings.Join(podRanges, ","), "--bpffs", n.BPFFS, "--cgroup-root", n.Cgroup,
		"--metrics-bind-address=127.0.0.1:19249", "--healthz-bind-address=127.0.0.1:19256",
		// What concerns the whole machine is left as it is.
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--oom-score-adj=0")...)
	lab.Eventually(t, "the agent serves", func() bool {
		maps, err := bpfmap.Open(datapath.Dir(n.BPFFS))
		if err != nil {
			return p.Ended()
		}
		defer maps.Close()
		agent := statusmap.New(maps).Agent()
		return p.Ended() || agent.PID == p.PID() && !agent.Synced.IsZero()
	})
	if p.Ended() {
		t.Fatalf("the agent ended: %v", p.Wait())
	}
	return p
}

// dropForwarded makes a firewall that drops what the node passes on, but from pod to
// pod.
func dropForwarded(t *testing.T, n *lab.Namespace, m proxyMode) {
	t.Helper()
	for i, program := range []string{"iptables", "ip6tables"} {
		for _, rule := range []string{
			"-P FORWARD DROP",
			"-A FORWARD -s " + podRanges[i] + " -d " + podRanges[i] + " -j ACCEPT",
		} {
			if _, err := n.Output(program+"-"+m.iptables, strings.Fields("-w "+rule)...); err != nil {
				t.Fatal(failure(err))
			}
		}
	}
}

// testHandover: connections live on while a node goes from kube-proxy to Beeline and
// back, and new ones are served all the time; with a firewall as without. While both run, beeline
// verify says so: it is one of the cases in docs/troubleshooting.md.
func testHandover(t *testing.T, server *apiserver.Server, m proxyMode, firewall bool) {
	c := newCluster(t, false)
	c.serveAll(t)
	node := c.nodes[0]
	forgetSoon(node.Namespace)
	node.SetSysctl("netfilter/nf_conntrack_acct", "1") // for reports
	if firewall {
		dropForwarded(t, node.Namespace, m)
	}
	proxy := newKubeProxy(t, server, node.Namespace, m)
	proxy.start()
	old := openTalks(t, c, "kube-proxy", firewall)
	old.goOn(t, node, "with kube-proxy")
	old.checkProxy(t, node)

	agent := startClusterAgent(t, server, node)
	if said := beeline(t, node, "verify"); !strings.Contains(said, "\nmachine: kube-proxy\n  kube-proxy has made: ") || !strings.Contains(said, "make sure that kube-proxy does not run on this node") {
		t.Errorf("while kube-proxy runs, beeline verify says:\n%s", said)
	}
	old.goOn(t, node, "with both")
	new := openTalks(t, c, "Beeline", firewall)
	proxy.stop()
	if out := cleanupByAgent(t, node.Namespace); !strings.Contains(out, "kept table beeline-handover: ") {
		t.Errorf("the cleanup says %q", out)
	}
	slices.Concat(old, new).goOn(t, node, "after the cleanup")
	new = append(new, openTalks(t, c, "Beeline", firewall)...)
	slices.Concat(old, new).goOn(t, node, "with Beeline")
	new.checkProxy(t, node)

	old.end()
	lab.Eventually(t, "nothing of kube-proxy is left", func() bool {
		tables, err := node.Output("nft", "list", "tables")
		return err == nil && !strings.Contains(tables+cleanupByAgent(t, node.Namespace), "beeline-handover")
	})
	new.goOn(t, node, "without anything of kube-proxy")
	if said := beeline(t, node, "verify"); strings.Contains(said, "kube-proxy") {
		t.Errorf("when kube-proxy is gone, beeline verify says:\n%s", said)
	}
	handBack(t, c, proxy, agent, new, firewall)
}

// beeline returns what a command of beeline says on a node.
func beeline(t *testing.T, n *node, command ...string) string {
	t.Helper()
	var said bytes.Buffer
	err := n.Thread(func() error {
		cli.Run(t.Context(), cli.Env{Out: &said, Err: &said, Now: time.Now}, append([]string{"--bpffs", n.BPFFS}, command...)...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return said.String()
}

// handBack hands the node back to kube-proxy, with connections of Beeline.
func handBack(t *testing.T, c *cluster, proxy *kubeProxy, agent *lab.Process, old talks, firewall bool) {
	t.Helper()
	node := c.nodes[0]
	proxy.start()
	old.goOn(t, node, "with both again")
	agent.Signal(unix.SIGTERM)
	if err := agent.Wait(); err != nil {
		t.Fatal(err)
	}
	drain := startDrain(t, node)
	new := openTalks(t, c, "kube-proxy", firewall)
	new.checkProxy(t, node)
	slices.Concat(old, new).goOn(t, node, "while Beeline drains")
	if drain.Ended() {
		t.Fatalf("the drain ended while connections were open: %v", drain.Wait())
	}

	old.end()
	if err := drain.Wait(); err != nil || !strings.Contains(drain.Output(), "waiting for 0 connections") {
		t.Fatalf("the drain ended: %v", err)
	}
	if left, err := os.ReadDir(node.BPFFS); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	for _, program := range []string{"iptables-nft-save", "iptables-legacy-save", "ip6tables-nft-save", "ip6tables-legacy-save"} {
		if rules, err := node.Output(program); err != nil || strings.Contains(rules, "BEELINE") {
			t.Errorf("left behind, %s: %v\n%s", program, err, rules)
		}
	}
	new.goOn(t, node, "without Beeline")
	openTalks(t, c, "kube-proxy", firewall).checkProxy(t, node)
}

// startDrain drains a node and returns when that waits for connections, or has ended.
func startDrain(t *testing.T, n *node) *lab.Process {
	t.Helper()
	return startDrainUntil(t, n, "waiting for ")
}

// startDrainUntil drains a node and returns when that says something, or has ended.
func startDrainUntil(t *testing.T, n *node, says string) *lab.Process {
	t.Helper()
	drain := n.Start(lab.AgentBinary(t), "--drain", "--bpffs", n.BPFFS, "--cgroup-root", n.Cgroup)
	lab.Eventually(t, "the drain says "+says, func() bool {
		return drain.Ended() || strings.Contains(drain.Output(), says)
	})
	return drain
}

// TestMasqueradingGone: connections that netfilter masquerades as the only rules that know
// any do go on while these rules are gone, as those of a CNI plugin while it is restarted. The
// kernel would know and translate no connection any more, where kube-proxy's rules are gone, too.
func TestMasqueradingGone(t *testing.T) {
	lab.Need(t, "iptables-nft", "iptables-legacy", "nft")
	for _, kind := range []string{"nft", "legacy"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, kind == "nft")
			c := newCluster(t, false)
			c.serveAll(t)
			client := c.nodes[1]
			forgetSoon(client.Namespace)
			masquerade := func(rule string) {
				t.Helper()
				for i, program := range []string{"iptables", "ip6tables"} {
					args := "-w -t nat " + rule + " POSTROUTING -s " + podRanges[i] + " ! -d " + podRanges[i] + " -j MASQUERADE --random-fully"
					if _, err := client.Output(program+"-"+kind, strings.Fields(args)...); err != nil {
						t.Fatal(failure(err))
					}
				}
			}
			service := c.service(1, "near", "", []endpoint{local})
			startAgent(t, c.nodes[0], service)
			a := startAgent(t, client, service)
			masquerade("-A")
			var all talks
			for _, network := range networks[:2] {
				k := startTalk(t, client.routed, "a pod", "netfilter", network, nodePort(network, 1))
				if k.seen.Addr() != nodeAddrs(2).of(network) {
					t.Fatalf("%s: the endpoint sees %s, want %s", k.name, k.seen, nodeAddrs(2).of(network))
				}
				all = append(all, k)
			}
			held := func() int { return strings.Count(nftTables(t, client.Namespace), "beeline-handover") }
			lab.Eventually(t, "the connections are held", func() bool { return held() == 2 })
			all.goOn(t, client, "with the rules")
			masquerade("-D")
			all.goOn(t, client, "without the rules")
			masquerade("-A")
			all.goOn(t, client, "with the rules again")

			a.Signal(unix.SIGTERM)
			if err := a.Wait(); err != nil {
				t.Fatal(err)
			}
			if out := cleanupByAgent(t, client.Namespace); held() > 0 {
				t.Errorf("with rules that hold the connections, the cleanup leaves the tables and says %q", out)
			}
			all.goOn(t, client, "with the rules alone")
		})
	}
}

// nftTables lists the tables of nftables.
func nftTables(t *testing.T, n *lab.Namespace) string {
	t.Helper()
	tables, err := n.Output("nft", "list", "tables")
	if err != nil {
		t.Fatal(failure(err))
	}
	return tables
}

// forgetSoon makes connection tracking forget a connection a second after its end.
func forgetSoon(n *lab.Namespace) {
	for _, state := range []string{"fin_wait", "close_wait", "last_ack", "time_wait", "close"} {
		n.SetSysctl("netfilter/nf_conntrack_tcp_timeout_"+state, "1")
	}
}
