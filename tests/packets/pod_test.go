package packets_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// podFlags leave the sockets of pods alone and translate their packets.
var podFlags = []string{"--socket-lb", "host-namespace-only", "--pod-devices", "veth*"}

// podSets are the endpoints of Services that pods ask for. The i-th set is of
// Service i+1.
var podSets = []struct {
	policy    string
	endpoints []endpoint
}{
	{"Cluster", []endpoint{local}},
	{"Cluster", []endpoint{otherLocal}},
	{"Cluster", []endpoint{{node: 1, place: "host"}}},
	{"Cluster", []endpoint{remote}},
	{"Cluster", []endpoint{{node: 2, place: "host"}}},
	{"Local", []endpoint{remote}},
	{"Cluster", nil},
}

func (c *cluster) podServices() []string {
	var manifests []string
	for i, set := range podSets {
		manifests = append(manifests, c.service(i+1, fmt.Sprintf("pods-%d", i+1),
			"externalTrafficPolicy: "+set.policy+",", set.endpoints)...)
	}
	return manifests
}

// TestPods: a pod whose sockets are not translated reaches every kind of frontend and endpoint,
// itself included, because its packets are.
func TestPods(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"tcx", "clsact"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "clsact")
			c, _ := serveCluster(t, (*cluster).podServices, append([]string{"--tc-mode", mode}, podFlags...)...)
			for _, offload := range offloads {
				t.Run(offload.name, func(t *testing.T) {
					offload.set(c)
					c.watchChecksums(t)
					c.checkPod(t, local)
					c.checkPod(t, otherLocal)
				})
			}
		})
	}
}

// checkPod asks for every Service by every frontend from a pod.
func (c *cluster) checkPod(t *testing.T, at endpoint) {
	t.Helper()
	for i, set := range podSets {
		for _, f := range frontends {
			for _, network := range networks {
				to := netip.AddrPortFrom(f.address(i+1).of(network), uint16(f.port(i+1)))
				if err := c.checkPodAnswer(at, network, to, set.endpoints); err != nil {
					t.Errorf("%s from %s to the %s of %v under %s: %v", network, at.server(), f.name, set.endpoints, set.policy, err)
				}
			}
		}
	}
}

// ownAddr is what a pod sees that reaches itself at an address.
func ownAddr(network string, to netip.Addr) netip.Addr {
	if strings.HasPrefix(network, "udp") {
		return hairpinAddrs.of(network)
	}
	return to
}

// checkPodAnswer asks from a pod. The one endpoint has to see the pod's own address,
// or [ownAddr] when it is the pod itself. The port is the pod's own or,
// where another flow to the endpoint has it, another one.
func (c *cluster) checkPodAnswer(at endpoint, network string, to netip.AddrPort, endpoints []endpoint) error {
	got, err := ask(c.podOf(at), network, to, "payload")
	if len(endpoints) == 0 {
		if !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("reached %v, error %v, want it refused", got, err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	want, port := got.self.Addr(), got.client.Port()
	if endpoints[0] == at {
		want = ownAddr(network, to.Addr())
	}
	if got.name != endpoints[0].server() || got.client.Addr() != want || !c.maySee(endpoints[0], network, port, got.self, want != got.self.Addr()) {
		return fmt.Errorf("reached %v, want %s to have seen %s with a port for %d", got.greeting, endpoints[0].server(), want, got.self.Port())
	}
	return nil
}

// TestPodReachesItselfByOldSocket: a UDP socket that a pod has connected to a Service before Beeline came
// reaches the pod itself, whose own socket answers: sockets of the pod are served by now.
func TestPodReachesItselfByOldSocket(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	c.serveAll(t)
	old := make(map[string]*lab.Socket)
	for _, network := range []string{"udp4", "udp6"} {
		s := c.podOf(local).Socket(network)
		defer s.Close()
		if err := s.Connect(netip.AddrPortFrom(clusterIP(1).of(network), 80)); err != nil {
			t.Fatal(err)
		}
		old[network] = s
	}
	startAgent(t, c.nodes[0], c.service(1, "web", "", []endpoint{local}), "--pod-devices", "veth*")
	for network, s := range old {
		if hello, err := talkUDP(s, "hello"); err != nil || hello.name != local.server() || hello.client.Addr() != hairpinAddrs.of(network) {
			t.Errorf("%s: %v, %v, want to be seen as %s", network, hello, err, hairpinAddrs.of(network))
		}
	}
	for _, f := range c.flowsOf(t, c.nodes[0]) {
		if !slices.Contains(hairpinAddrs[:], f.Source.Addr()) {
			t.Errorf("the flow %+v is not from one of %s", f, hairpinAddrs)
		}
	}
}

// TestPodSockets: the packets of a pod leave it with the Service's address; those
// of a process of the node never have it, for its socket is translated.
func TestPodSockets(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, (*cluster).podServices, podFlags...)
	node := c.nodes[0]
	for i, set := range podSets[:4] {
		for _, network := range networks {
			to := netip.AddrPortFrom(clusterIP(i+1).of(network), 80)
			for _, from := range []struct {
				name      string
				ns        *lab.Namespace
				untouched bool
			}{
				{"the node", node.Namespace, false},
				{"a pod", node.routed, true},
			} {
				capture, payload := from.ns.Capture(), fmt.Sprintf("%d: %s from %s", i, network, from.name)
				got, err := ask(from.ns, network, to, payload)
				if err != nil || got.name != set.endpoints[0].server() {
					t.Errorf("%s from %s to %v: %v, %v", network, from.name, set.endpoints, got, err)
				}
				if saw := capture.Saw(to.Addr(), payload); saw != from.untouched {
					t.Errorf("%s from %s: packets with the Service's address: %t", network, from.name, saw)
				}
			}
		}
	}
}

// TestPodTransfer sends much data from a pod to itself and to the other node.
func TestPodTransfer(t *testing.T) {
	c, _ := serveCluster(t, (*cluster).podServices, podFlags...)
	for i, name := range map[int]string{1: "itself", 4: "the other node"} {
		for _, network := range networks[:2] {
			t.Run(network+" to "+name, func(t *testing.T) {
				watchChecksums(t, local.server(), c.nodes[0].routed)
				watchChecksums(t, remote.server(), c.nodes[1].routed)
				transfer(t, c.nodes[0].routed, network, netip.AddrPortFrom(clusterIP(i).of(network), 80))
			})
		}
	}
}

// TestPodFragments: fragmented datagrams of a pod reach every kind of endpoint, and their fragmented
// replies come back.
func TestPodFragments(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, (*cluster).podServices, podFlags...)
	c.watchChecksums(t)
	payload := strings.Repeat("datagram", 1000)
	for _, at := range []endpoint{local, otherLocal} {
		for i, set := range podSets[:5] {
			for _, network := range networks[2:] {
				to := netip.AddrPortFrom(clusterIP(i+1).of(network), 80)
				got, err := exchange(c.podOf(at), network, to, payload)
				if err != nil || !strings.HasPrefix(got, set.endpoints[0].server()+" ") || !strings.HasSuffix(got, " "+payload) {
					t.Errorf("%s from %s to %v: %d bytes came back: %v", network, at.server(), set.endpoints, len(got), err)
				}
			}
		}
	}
}

// TestPodMove: a pod's UDP flow moves to another endpoint when its own is removed, also to the pod
// itself.
func TestPodMove(t *testing.T) {
	t.Parallel()
	dns := func(c *cluster, endpoints ...endpoint) []string { return c.service(1, "dns", "", endpoints) }
	c, a := serveCluster(t, func(c *cluster) []string { return dns(c, remote) }, podFlags...)
	sockets := map[string]*lab.Socket{}
	for _, network := range networks[2:] {
		sockets[network], _ = connect(t, c.podOf(local), network, netip.AddrPortFrom(clusterIP(1).of(network), 80))
	}
	for _, next := range []endpoint{local, otherLocal, local, otherRemote} {
		a.apply(dns(c, next)...)
		for network, s := range sockets {
			if hello := mustTalk(t, s); hello.name != next.server() {
				t.Errorf("%s reached %s, want %s", network, hello.name, next.server())
			}
		}
	}
	a.apply(dns(c)...)
	for network, s := range sockets {
		if got, err := talkUDP(s, "x"); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s without endpoints: %v, %v, want it refused", network, got, err)
		}
	}
}

// TestPodUndeclared: a pod is refused at other ports of a ClusterIP, and what it
// sends to addresses that no Service has is dropped.
func TestPodUndeclared(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, (*cluster).podServices, podFlags...)
	for _, at := range []endpoint{local, otherLocal} {
		for _, network := range networks {
			refused := netip.AddrPortFrom(clusterIP(1).of(network), 81)
			if got, err := ask(c.podOf(at), network, refused, "x"); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s from %s to an undeclared port: %v, %v, want it refused", network, at.server(), got, err)
			}
			unallocated := netip.AddrPortFrom(clusterIP(99).of(network), 80)
			if err := c.silent(c.podOf(at), network, unallocated); !errors.Is(err, lab.ErrNothing) {
				t.Errorf("%s from %s to an unallocated address: %v, want no answer", network, at.server(), err)
			}
		}
	}
}
