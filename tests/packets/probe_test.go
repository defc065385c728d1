package packets_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// nodeManifest returns the manifest of a node's Node object with the addresses that are
// given.
func nodeManifest(i int, list ...netip.Addr) string {
	text := make([]string, len(list))
	for i, a := range list {
		text[i] = fmt.Sprintf("{type: InternalIP, address: %q}", a)
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: node%d}\nstatus: {addresses: [%s]}\n", i, strings.Join(text, ", "))
}

// tunneled returns the manifests of both nodes and of a Service with a pod on each, of
// which some word stands in the annotations.
func (c *cluster) tunneled(annotation string) []string {
	endpoints := make([]string, len(c.nodes))
	var list []string
	for i, n := range c.nodes {
		a := nodeAddrs(n.index)
		list = append(list, nodeManifest(n.index, a[1], a[0]))
		endpoints[i] = fmt.Sprintf("{addresses: [%q], nodeName: %s}", n.routedAddrs()[0], n.name())
	}
	service := lab.Service("web", "{clusterIP: 10.96.0.1, type: NodePort, ports: [{port: 80, nodePort: 30080}]}")
	if annotation != "" {
		service = strings.Replace(service, "namespace: default",
			fmt.Sprintf("namespace: default, annotations: {service.beeline.io/forwarding-mode: %s}", annotation), 1)
	}
	return append(list, service, lab.SliceOf("web", fmt.Sprintf("%d/TCP", backendPort), endpoints...))
}

// allowForwarding lets the annotations of [cluster.tunneled] count.
var allowForwarding = []string{"--allowed-annotations", "service.beeline.io/forwarding-mode"}

// answerOf returns what node 1 knows of node 2.
func (c *cluster) answerOf(t *testing.T) nodemap.Node {
	t.Helper()
	maps, err := bpfmap.Open(datapath.Dir(c.nodes[0].BPFFS))
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	list, err := nodemap.New(maps).List()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list {
		if n.Name == c.nodes[1].name() {
			return n
		}
	}
	return nodemap.Node{}
}

// eventually waits until node 2 has said something to node 1.
func (c *cluster) eventually(t *testing.T, want nodemap.Answer) {
	t.Helper()
	var got nodemap.Node
	for deadline := time.Now().Add(wait.Limit); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if got = c.answerOf(t); got.Answer == want {
			if got.Tunnel != (want == nodemap.Accepts) {
				t.Errorf("node 2 %s, but the tunnel to it is used: %t", got.Answer, got.Tunnel)
			}
			return
		}
	}
	t.Fatalf("node 2 %s, want %s", got.Answer, want)
}

// TestProbe: the tunnel is used only to nodes that accept tunnel traffic.
func TestProbe(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		annotation string
		allowed    []string // flags of both nodes
		first      []string // flags of node 1
		second     []string // and of node 2
		want       nodemap.Answer
		stands     bool // for those of the same answer, see [tier.Variant]
	}{
		{"both by default", "", nil, []string{"--forwarding-mode", "dsr"}, []string{"--forwarding-mode", "hybrid"}, nodemap.Accepts, false},
		{"by annotation", "dsr", allowForwarding, nil, nil, nodemap.Accepts, false},
		{"another mode", "", nil, []string{"--forwarding-mode", "dsr"}, nil, nodemap.Unreachable, false},
		{"no part in it", "dsr", allowForwarding, nil, []string{"--dsr-port", "0"}, nodemap.Unreachable, false},
		{"another port", "dsr", allowForwarding, nil, []string{"--dsr-port", "6092"}, nodemap.Unreachable, false},
		{"no device", "dsr", allowForwarding, nil, []string{"--devices", "none"}, nodemap.Refuses, true},
		{"hidden clients", "dsr", allowForwarding, nil, []string{"--masquerade-all"}, nodemap.Unreachable, false},
		{"not asked for", "", allowForwarding, nil, nil, nodemap.NotAsked, false},
		{"not allowed", "dsr", nil, nil, nil, nodemap.NotAsked, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, tt.stands)
			c := newCluster(t, false)
			startAgent(t, c.nodes[1], c.tunneled(tt.annotation), slices.Concat(tt.allowed, tt.second)...)
			first := startAgent(t, c.nodes[0], c.tunneled(tt.annotation), slices.Concat(tt.allowed, tt.first)...)
			if tt.want == nodemap.NotAsked {
				// A node is to be asked from a sync on. This one comes after the first one's end.
				first.apply(c.tunneled(tt.annotation)...)
			}
			c.eventually(t, tt.want)
			if tt.want != nodemap.NotAsked && c.answerOf(t).Addr != nodeAddrs(2)[0] {
				t.Errorf("the tunnel to node 2 ends at %s", c.answerOf(t).Addr)
			}
		})
	}
}

// TestProbeIPv6: nodes without IPv4 addresses ask each other, too.
func TestProbeIPv6(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	manifests := c.tunneled("dsr")
	for i := range c.nodes {
		manifests[i] = nodeManifest(i+1, nodeAddrs(i + 1)[1])
	}
	for _, n := range c.nodes {
		startAgent(t, n, manifests, append([]string{"--node-ip", nodeAddrs(n.index)[1].String()}, allowForwarding...)...)
	}
	c.eventually(t, nodemap.Accepts)
	if c.answerOf(t).Addr != nodeAddrs(2)[1] {
		t.Errorf("the tunnel to node 2 ends at %s", c.answerOf(t).Addr)
	}
}

// TestProbeAgentAway: a restart of the other node's agent changes nothing; while it is down for long
// the tunnel is not used, and is again once it runs; the same goes for endpoints.
func TestProbeAgentAway(t *testing.T) {
	tier.Slow(t, "waits until three questions are unanswered")
	t.Parallel()
	c := newCluster(t, false)
	first := startAgent(t, c.nodes[0], c.tunneled("dsr"), allowForwarding...)
	second := startAgent(t, c.nodes[1], c.tunneled("dsr"), allowForwarding...)
	c.eventually(t, nodemap.Accepts)
	for _, a := range []*agent{second, first} {
		a.Signal(unix.SIGKILL)
		if err := a.Wait(); err == nil {
			t.Fatal("the agent ended by itself")
		}
		if got := c.answerOf(t); !got.Tunnel {
			t.Error("without an agent, the tunnel is not used any more")
		}
		a.start()
	}
	// When the second question comes, the answer to the first one has counted.
	arrivals, questions := c.nodes[1].RawSocket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP), 0
	wait.Until(t, "two questions after the agents' start", func() bool {
		if got := c.answerOf(t); !got.Tunnel {
			t.Fatalf("after the agents' start, node 2 %s", got.Answer)
		}
		if arrivals.Ready(0) && isQuestion(t, arrivals, nodeAddrs(1)[0]) {
			questions++
		}
		return questions >= 2
	})
	// A node with an agent has answered the question before, up to 11 s ago; the third one from
	// then on is 27 s after it at the earliest.
	stopped := time.Now()
	second.Signal(unix.SIGTERM)
	if err := second.Wait(); err != nil {
		t.Fatal(err)
	}
	c.eventually(t, nodemap.Unreachable)
	if took := time.Since(stopped); took < 15*time.Second {
		t.Errorf("node 2 is unreachable after %s", took)
	}
	second.start()
	c.eventually(t, nodemap.Accepts)
	first.apply(c.tunneled("")...)
	if got := c.answerOf(t); got.Tunnel || got.Addr.IsValid() {
		t.Errorf("without a Service that asks for it, node 2 is %+v", got)
	}
}

// isQuestion reports whether the next datagram that a raw socket receives is the question of a
// node.
func isQuestion(t *testing.T, s *lab.Socket, node netip.Addr) bool {
	t.Helper()
	packet, from, err := s.Receive()
	if err != nil {
		t.Fatal(err)
	}
	const kind = 20 + 8 + 9 // after the headers of IP and UDP
	return from.Addr() == node && len(packet) > kind && packet[kind] == 1
}

// TestProbePortChange: a node's answer for one tunnel port is not used for another port.
func TestProbePortChange(t *testing.T) {
	tier.Slow(t, "starts six agents")
	t.Parallel()
	c := newCluster(t, false)
	var agents []*agent
	for _, n := range c.nodes {
		agents = append(agents, startAgent(t, n, c.tunneled("dsr"), allowForwarding...))
	}
	c.eventually(t, nodemap.Accepts)
	for i, a := range agents {
		a.Signal(unix.SIGKILL)
		if err := a.Wait(); err == nil {
			t.Fatal("the agent ended by itself")
		}
		a.flags = append(a.flags, "--dsr-port", "6092")
		a.start()
		if got := c.answerOf(t); i == 0 && got.Tunnel {
			t.Error("the tunnel is used to a port at which nobody has answered")
		}
	}
	c.eventually(t, nodemap.Accepts)
}

// TestProbeStranger: a probe from an address that is no node's gets no answer.
func TestProbeStranger(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	// The first node has no agent, whose programs would drop what another process asks.
	startAgent(t, c.nodes[1], c.tunneled("dsr"), allowForwarding...)
	question := make([]byte, 24)
	copy(question, []byte{0, 0x80, 0x88, 0xb5, 0, 0, 0, 0, 1, 1})
	node, stranger := c.nodes[0].Socket("udp4"), c.client.Socket("udp4")
	for _, s := range []*lab.Socket{node, stranger} {
		if err := s.Connect(netip.AddrPortFrom(nodeAddrs(2)[0], 6091)); err != nil {
			t.Fatal(err)
		}
	}
	answered := func() bool {
		_, err := node.AskWithin(string(question), time.Second)
		return err == nil
	}
	lab.Eventually(t, "a node gets an answer", answered)
	if err := stranger.Send(string(question)); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "a node gets another answer", answered)
	if stranger.Ready(0) {
		t.Error("the client got an answer")
	}
}

// TestDSROverlay: where the CNI has an overlay, direct server return uses the nodes' own addresses.
func TestDSROverlay(t *testing.T) {
	t.Parallel()
	c := newCluster(t, true)
	c.serveEverywhere(t, c.tunneled("dsr"), allowForwarding...)
	c.eventually(t, nodemap.Accepts)
	seen := make(map[string]int)
	for range 50 {
		got, err := ask(c.client, "tcp4", netip.AddrPortFrom(nodeAddrs(1)[0], 30080), "x")
		if err != nil || got.client.Addr() != clientAddrs[0] {
			t.Errorf("got %v, %v", got, err)
		}
		seen[got.name]++
	}
	if len(seen) != 2 || eventCount(t, c.nodes[0], "tunnel_sent") == 0 {
		t.Errorf("answers came from %v, %d packets by the tunnel", seen, eventCount(t, c.nodes[0], "tunnel_sent"))
	}
}
