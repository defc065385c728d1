package packets_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/apiserver"
	"github.com/beeline-lb/beeline/tests/lab"
)

// publicServices are the Services of the API server: one with a backend on this
// node, one with a backend on the other, and one with a host's process there.
func publicServices() []string {
	const dual = "ipFamilyPolicy: RequireDualStack,"
	c := &cluster{nodes: [2]*node{{index: 1}, {index: 2}}}
	var all []string
	for i, at := range []endpoint{{node: 1, place: "routed"}, {node: 2, place: "routed"}, {node: 2, place: "host"}} {
		all = append(all, c.service(i+1, fmt.Sprintf("public-%d", i+1), dual, []endpoint{at})...)
	}
	return all
}

// longest is how long a connection may be silent while a node changes hands. It
// leaves room for a packet that has to be sent again, on a busy machine.
const longest = 2 * time.Second

// talk is a TCP connection on which a count goes there and back all the time.
type talk struct {
	name   string
	to     netip.AddrPort
	port   uint16 // the client's
	socket *lab.Socket
	stop   chan struct{}
	done   sync.WaitGroup

	mu      sync.Mutex
	count   int
	slowest time.Duration
	err     error
}

// start connects and begins to count.
func startTalk(t *testing.T, n *lab.Namespace, name, network string, to netip.AddrPort) *talk {
	t.Helper()
	k := &talk{name: fmt.Sprintf("%s to %s", name, to), to: to, socket: n.Socket(network), stop: make(chan struct{})}
	if err := k.socket.Connect(to); err != nil {
		t.Fatalf("%s: %v", k.name, err)
	}
	self, err := k.socket.Local()
	if err != nil {
		t.Fatal(err)
	}
	k.port = self.Port()
	if _, _, err := k.socket.Receive(); err != nil {
		t.Fatalf("%s: %v", k.name, err)
	}
	k.done.Go(k.run)
	t.Cleanup(k.end)
	return k
}

func (k *talk) run() {
	for {
		select {
		case <-k.stop:
			return
		case <-time.After(10 * time.Millisecond):
		}
		start := time.Now()
		err := echo(k.socket, fmt.Sprintf("count %08d", k.count+1))
		k.mu.Lock()
		k.err = err
		k.count++
		k.slowest = max(k.slowest, time.Since(start))
		k.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// end closes the connection, if it is not yet.
func (k *talk) end() {
	select {
	case <-k.stop:
	default:
		close(k.stop)
	}
	k.done.Wait()
	k.socket.Close()
}

// progress returns how far the count is.
func (k *talk) progress() (count int, slowest time.Duration, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.count, k.slowest, k.err
}

// talks are connections that are to live on.
type talks []*talk

// openTalks makes a connection for each way to each Service. A firewall lets pods reach
// pods only.
func openTalks(t *testing.T, c *cluster, firewall bool) talks {
	t.Helper()
	var all talks
	for _, network := range networks[:2] {
		for i := 1; i <= 3; i++ {
			cluster := netip.AddrPortFrom(clusterIP(i).of(network), 80)
			all = append(all,
				startTalk(t, c.nodes[0].Namespace, "the node", network, cluster),
				startTalk(t, c.client, "the client", network, nodePort(network, i)),
				startTalk(t, c.client, "the client", network, netip.AddrPortFrom(externalIP(i).of(network), 80)))
			if i < 3 || !firewall {
				all = append(all, startTalk(t, c.nodes[0].bridged, "a pod", network, cluster))
			}
		}
	}
	return all
}

// goOn checks that every connection has come further twice since the last step.
func (all talks) goOn(t *testing.T, when string) {
	t.Helper()
	for range 2 {
		before := make(map[*talk]int)
		for _, k := range all {
			before[k], _, _ = k.progress()
		}
		deadline := time.Now().Add(longest)
		for _, k := range all {
			for {
				count, slowest, err := k.progress()
				if err != nil || slowest > longest {
					t.Fatalf("%s: %s: after %d answers, the slowest after %s: %v", when, k.name, count, slowest, err)
				}
				if count > before[k] {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%s: %s: no answer for %s", when, k.name, longest)
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
	}
}

func (all talks) end() {
	for _, k := range all {
		k.end()
	}
}

// byKubeProxy checks whose the connections are: kube-proxy's have the Service's
// address as their destination in the node's connection tracking, Beeline's the
// backend's or are not there at all.
func (all talks) byKubeProxy(t *testing.T, n *lab.Namespace, want bool) {
	t.Helper()
	tracked, err := n.Output("cat", "/proc/thread-self/net/nf_conntrack")
	if err != nil {
		t.Fatal(failure(err))
	}
	found := make(map[string]bool)
	for line := range strings.Lines(tracked) {
		var destination netip.Addr
		for _, field := range strings.Fields(line) {
			if text, ok := strings.CutPrefix(field, "dst="); ok {
				destination, _ = netip.ParseAddr(text)
			}
			if text, ok := strings.CutPrefix(field, "sport="); ok {
				found[destination.String()+" "+text] = true
				break // what follows are the replies
			}
		}
	}
	for _, k := range all {
		if got := found[fmt.Sprintf("%s %d", k.to.Addr(), k.port)]; got != want {
			t.Errorf("%s is kube-proxy's: %t, want %t", k.name, got, want)
		}
	}
}

// startClusterAgent starts an agent that follows the API server, with other ports than
// kube-proxy's, and returns when it serves.
func startClusterAgent(t *testing.T, server *apiserver.Server, n *node) *lab.Process {
	t.Helper()
	p := n.Start(lab.AgentBinary(t), "--kubeconfig", server.Kubeconfig, "--hostname-override", n.name(),
		"--cluster-cidr", strings.Join(podRanges, ","), "--bpffs", n.BPFFS, "--cgroup-root", n.Cgroup,
		"--metrics-bind-address=127.0.0.1:19249", "--healthz-bind-address=127.0.0.1:19256",
		// What concerns the whole machine is left as it is.
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--oom-score-adj=0")
	lab.Eventually(t, "the agent serves", func() bool {
		maps, err := bpfmap.Open(datapath.Dir(n.BPFFS))
		if err != nil {
			return p.Ended()
		}
		defer maps.Close()
		agent := maps.Agent()
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
// back, and new ones are served all the time; with a firewall as without.
func testHandover(t *testing.T, server *apiserver.Server, m proxyMode, firewall bool) {
	c := newCluster(t, false)
	c.serveAll(t)
	node := c.nodes[0]
	forgetSoon(node.Namespace)
	if firewall {
		dropForwarded(t, node.Namespace, m)
	}
	proxy := newKubeProxy(t, server, node.Namespace, m)
	proxy.start()
	old := openTalks(t, c, firewall)
	old.goOn(t, "with kube-proxy")
	old.byKubeProxy(t, node.Namespace, true)

	agent := startClusterAgent(t, server, node)
	old.goOn(t, "with both")
	new := openTalks(t, c, firewall)
	proxy.stop()
	if out := cleanupByAgent(t, node.Namespace); !strings.Contains(out, "kept table beeline-handover: ") {
		t.Errorf("the cleanup says %q", out)
	}
	slices.Concat(old, new).goOn(t, "after the cleanup")
	new = append(new, openTalks(t, c, firewall)...)
	slices.Concat(old, new).goOn(t, "with Beeline")
	new.byKubeProxy(t, node.Namespace, false)

	old.end()
	lab.Eventually(t, "nothing of kube-proxy is left", func() bool {
		tables, err := node.Output("nft", "list", "tables")
		return err == nil && !strings.Contains(tables+cleanupByAgent(t, node.Namespace), "beeline-handover")
	})
	new.goOn(t, "without anything of kube-proxy")
	handBack(t, c, proxy, agent, new, firewall)
}

// handBack gives the node back to kube-proxy, with connections of Beeline.
func handBack(t *testing.T, c *cluster, proxy *kubeProxy, agent *lab.Process, old talks, firewall bool) {
	t.Helper()
	node := c.nodes[0]
	proxy.start()
	old.goOn(t, "with both again")
	agent.Signal(unix.SIGTERM)
	if err := agent.Wait(); err != nil {
		t.Fatal(err)
	}
	drain := node.Start(lab.AgentBinary(t), "--drain", "--bpffs", node.BPFFS, "--cgroup-root", node.Cgroup)
	lab.Eventually(t, "the drain waits", func() bool {
		return drain.Ended() || strings.Contains(drain.Output(), "waiting for ")
	})
	new := openTalks(t, c, firewall)
	new.byKubeProxy(t, node.Namespace, true)
	slices.Concat(old, new).goOn(t, "while Beeline drains")
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
	new.goOn(t, "without Beeline")
	openTalks(t, c, firewall).byKubeProxy(t, node.Namespace, true)
}

// forgetSoon makes connection tracking forget a connection a second after its end.
func forgetSoon(n *lab.Namespace) {
	for _, state := range []string{"fin_wait", "close_wait", "last_ack", "time_wait", "close"} {
		n.SetSysctl("netfilter/nf_conntrack_tcp_timeout_"+state, "1")
	}
}
