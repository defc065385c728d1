package packets_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// The endpoints of the other node and of this one that tests of flows use.
var (
	remote      = endpoint{node: 2, place: "routed"}
	otherRemote = endpoint{node: 2, place: "bridged"}
	local       = endpoint{node: 1, place: "routed"}
	otherLocal  = endpoint{node: 1, place: "bridged"}
)

// serveCluster makes a cluster with its servers, where the agents of both nodes
// serve the manifests. It returns the agent of node 1, which clients meet.
func serveCluster(t *testing.T, manifests func(*cluster) []string, flags ...string) (*cluster, *agent) {
	t.Helper()
	c := newCluster(t, false)
	return c, c.serve(t, manifests(c), flags...)
}

// nodePort is where a client reaches the i-th Service by its node port.
func nodePort(network string, i int) netip.AddrPort {
	return netip.AddrPortFrom(nodeAddrs(1).of(network), uint16(30100+i))
}

// TestAffinity: a client stays with one backend of a Service port, whichever
// frontend it uses; other clients are balanced.
func TestAffinity(t *testing.T) {
	t.Parallel()
	endpoints := []endpoint{local, otherLocal, remote, otherRemote}
	c, _ := serveCluster(t, func(c *cluster) []string {
		return append(c.service(1, "sticky", "sessionAffinity: ClientIP,", endpoints),
			c.service(2, "free", "", endpoints)...)
	})
	for _, network := range networks {
		seen := map[int]map[string]bool{1: {}, 2: {}}
		for i := range seen {
			for range 10 {
				for _, f := range frontends {
					got, err := ask(c.client, network, netip.AddrPortFrom(f.address(i).of(network), uint16(f.port(i))), "x")
					if err != nil {
						t.Fatalf("%s by %s: %v", network, f.name, err)
					}
					seen[i][got.name] = true
				}
			}
		}
		if len(seen[1]) != 1 {
			t.Errorf("%s with affinity reached %v", network, seen[1])
		}
		if len(seen[2]) != len(endpoints) {
			t.Errorf("%s without affinity reached %v only", network, seen[2])
		}
	}
}

// TestSourceRanges: loadBalancerSourceRanges restrict the load-balancer addresses only; other
// frontends of the Service accept every client.
func TestSourceRanges(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string {
		return c.service(1, "guarded", `loadBalancerSourceRanges: ["10.1.0.2/32", "fd01::2/128"],`, []endpoint{local, remote})
	})
	for _, network := range networks {
		for _, f := range frontends {
			to := netip.AddrPortFrom(f.address(1).of(network), uint16(f.port(1)))
			if _, err := ask(c.client, network, to, "x"); err != nil {
				t.Errorf("%s to %s from inside of the ranges: %v", network, f.name, err)
			}
			if f.name == "load balancer" {
				if err := c.silent(c.other, network, to); !errors.Is(err, lab.ErrNothing) {
					t.Errorf("%s to %s from outside of the ranges: %v, want no answer", network, f.name, err)
				}
			} else if _, err := ask(c.other, network, to, "x"); err != nil {
				t.Errorf("%s to %s from outside of the ranges: %v", network, f.name, err)
			}
		}
	}
}

// TestInside: under externalTrafficPolicy Local, another node and its pods reach endpoints
// on this node only: their packets come in as those of clients outside of the cluster.
func TestInside(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string {
		manifests := c.service(1, "far", "externalTrafficPolicy: Local,", []endpoint{otherRemote})
		manifests = append(manifests, c.service(2, "near", "externalTrafficPolicy: Local,", []endpoint{local})...)
		return append(manifests, c.service(3, "self", "", []endpoint{remote})...)
	})
	pod, host := c.nodes[1].routed, c.nodes[1].Namespace
	for _, network := range networks {
		if got, err := ask(pod, network, nodePort(network, 3), "x"); err != nil || got.name != remote.server() {
			t.Errorf("%s from a pod to itself: %v, %v", network, got, err)
		}
		for _, from := range []*lab.Namespace{pod, host} {
			if err := c.silent(from, network, nodePort(network, 1)); !errors.Is(err, lab.ErrNothing) {
				t.Errorf("%s from outside to the other node: %v, want no answer", network, err)
			}
			got, err := ask(from, network, nodePort(network, 2), "x")
			if err == nil {
				err = c.checkSource(network, local, got)
			}
			if err != nil {
				t.Errorf("%s from inside to this node: %v, %v", network, got, err)
			}
		}
	}
}

// TestUndeclared: other ports of a ClusterIP are refused, packets to addresses without a Service are
// dropped, and other ports of the node are left to its processes.
func TestUndeclared(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string { return c.service(1, "web", "", []endpoint{local}) })
	for _, network := range networks {
		refused := netip.AddrPortFrom(clusterIP(1).of(network), 81)
		if got, err := ask(c.client, network, refused, "x"); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s to an undeclared port: %v, %v, want it refused", network, got, err)
		}
		unallocated := netip.AddrPortFrom(clusterIP(9).of(network), 80)
		if err := c.silent(c.client, network, unallocated); !errors.Is(err, lab.ErrNothing) {
			t.Errorf("%s to an unallocated address: %v, want no answer", network, err)
		}
		direct := netip.AddrPortFrom(nodeAddrs(1).of(network), backendPort)
		if got, err := ask(c.client, network, direct, "x"); err != nil || got.name != "node1/host" || got.client != got.self {
			t.Errorf("%s to a server of the node: %v, %v", network, got, err)
		}
	}
}

// TestSamePort: flows that differ only in the Service or in the client are distinguished at their
// common backend, here and on the other node.
func TestSamePort(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string {
		manifests := c.service(1, "near", "", []endpoint{local})
		manifests = append(manifests, c.service(2, "near-too", "", []endpoint{local})...)
		manifests = append(manifests, c.service(3, "far", "", []endpoint{remote})...)
		return append(manifests, c.service(4, "far-too", "", []endpoint{remote})...)
	})
	for _, network := range networks {
		for _, services := range [][2]int{{1, 2}, {3, 4}} {
			seen := map[netip.AddrPort]bool{}
			for _, from := range []*lab.Namespace{c.client, c.other} {
				for _, i := range services {
					got := askFromPort(t, from, network, 4242, nodePort(network, i))
					if seen[got.client] {
						t.Errorf("%s to Services %v: two flows from %s", network, services, got.client)
					}
					seen[got.client] = true
				}
			}
		}
	}
}

// askFromPort asks from a port of the client, and leaves the connection open.
func askFromPort(t *testing.T, n *lab.Namespace, network string, port uint16, to netip.AddrPort) answer {
	t.Helper()
	got, err := askBy(boundSocket(t, n, network, port), network, to, "x")
	if err != nil {
		t.Fatalf("%s from port %d to %s: %v", network, port, to, err)
	}
	return got
}

// boundSocket makes a socket at a port that others may have too.
func boundSocket(t *testing.T, n *lab.Namespace, network string, port uint16) *lab.Socket {
	t.Helper()
	s := n.Socket(network)
	if err := bindPort(s, network, port); err != nil {
		t.Fatal(err)
	}
	return s
}

// bindPort binds a socket to a port, which others may have, too.
func bindPort(s *lab.Socket, network string, port uint16) error {
	any := map[byte]netip.Addr{'4': netip.IPv4Unspecified(), '6': netip.IPv6Unspecified()}[network[3]]
	return errors.Join(s.SetOption(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), s.SetOption(unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
		s.Bind(netip.AddrPortFrom(any, port)))
}

// connect opens a connection and returns who greeted.
func connect(t *testing.T, n *lab.Namespace, network string, to netip.AddrPort) (*lab.Socket, greeting) {
	t.Helper()
	s := n.Socket(network)
	return s, begin(t, s, network, to)
}

// begin connects a socket and returns who greeted.
func begin(t *testing.T, s *lab.Socket, network string, to netip.AddrPort) greeting {
	t.Helper()
	err := s.Connect(to)
	if err != nil {
		t.Fatalf("%s to %s: %v", network, to, err)
	}
	talk := talkTCP
	if strings.HasPrefix(network, "udp") {
		talk = talkUDP
	}
	hello, err := talk(s, "first")
	if err != nil {
		t.Fatalf("%s to %s: %v", network, to, err)
	}
	return hello
}

// TestDrain: a TCP connection goes on when its endpoint is terminating, gone, and
// when the Service is deleted; new ones go elsewhere.
func TestDrain(t *testing.T) {
	t.Parallel()
	for _, network := range networks[:2] {
		for _, from := range []endpoint{local, remote} {
			t.Run(network+" "+from.server(), func(t *testing.T) {
				t.Parallel()
				tier.Variant(t, network == "tcp6" && from == local || network == "tcp4" && from == remote)
				web := func(endpoints ...endpoint) func(c *cluster) []string {
					return func(c *cluster) []string { return c.service(1, "web", "", endpoints) }
				}
				c, a := serveCluster(t, web(from))
				s, _ := connect(t, c.client, network, nodePort(network, 1))
				leaving := from
				leaving.terminating = true
				for _, step := range []struct {
					what      string
					manifests []string
				}{
					{"terminating", web(leaving, otherLocal)(c)},
					{"gone", web(otherLocal)(c)},
					{"gone with the Service", nil},
				} {
					a.apply(step.manifests...)
					if err := echo(s, step.what); err != nil {
						t.Errorf("the endpoint is %s: %v", step.what, err)
					}
					if step.manifests == nil {
						continue
					}
					got, err := ask(c.client, network, nodePort(network, 1), "x")
					if err != nil || got.name != otherLocal.server() {
						t.Errorf("the endpoint is %s, a new connection reached %v, %v", step.what, got, err)
					}
				}
			})
		}
	}
}

// TestMove: a UDP flow moves to another endpoint with the first datagram after its own is removed,
// also when the Service has no endpoint or is deleted for a while.
func TestMove(t *testing.T) {
	t.Parallel()
	for _, network := range networks[2:] {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, network == "udp4")
			dns := func(c *cluster, endpoints ...endpoint) []string { return c.service(1, "dns", "", endpoints) }
			c, a := serveCluster(t, func(c *cluster) []string { return dns(c, remote) })
			s, hello := connect(t, c.client, network, nodePort(network, 1))
			for _, next := range []endpoint{local, otherRemote, otherLocal, remote} {
				before := hello
				a.apply(dns(c, next)...)
				hello = mustTalk(t, s)
				if hello.name != next.server() {
					t.Errorf("%s moved to %s, want %s", before.name, hello.name, next.server())
				}
			}
			a.apply(dns(c)...)
			if got, err := talkUDP(s, "x"); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("scaled to zero: %v, %v, want it refused", got, err)
			}
			a.apply(dns(c, otherRemote)...)
			if hello = mustTalk(t, s); hello.name != otherRemote.server() {
				t.Errorf("scaled up again, reached %s", hello.name)
			}
			a.apply()
			if got, err := talkUDP(s, "x"); err == nil {
				t.Errorf("the Service is deleted, reached %v", got)
			}
			a.apply(dns(c, local)...)
			if hello = mustTalk(t, s); hello.name != local.server() {
				t.Errorf("made again, reached %s", hello.name)
			}
		})
	}
}

// questions is how often mustTalk has been called.
var questions atomic.Int64

func mustTalk(t *testing.T, s *lab.Socket) greeting {
	t.Helper()
	hello, err := talkUDP(s, fmt.Sprintf("x%d", questions.Add(1)))
	if err != nil {
		t.Fatal(err)
	}
	return hello
}

// TestPortReuse: a client that reconnects from the same port at once gets a new flow, to any backend,
// after FIN and after RST.
func TestPortReuse(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string {
		return c.service(1, "web", "", []endpoint{local, otherLocal, remote, otherRemote})
	})
	reusePort(t, c, 4)
}

// reusePort connects again and again from one port of the client to the NodePort of Service
// 1, which has that many backends.
func reusePort(t *testing.T, c *cluster, backends int) {
	t.Helper()
	for i, network := range networks[:2] {
		seen := map[string]bool{}
		for range 40 {
			var got answer
			var err error
			// A child that another test starts has a copy of the last socket until it
			// runs its program.
			lab.Eventually(t, "the last connection is closed", func() bool {
				s := boundSocket(t, c.client, network, uint16(4300+i))
				if err := s.SetLinger(0); err != nil {
					t.Fatal(err)
				}
				got, err = askBy(s, network, nodePort(network, 1), "x")
				s.Close() // with a reset
				return !errors.Is(err, unix.EADDRNOTAVAIL)
			})
			if err != nil {
				t.Fatalf("%s: %v", network, err)
			}
			seen[got.name] = true
		}
		if len(seen) != backends {
			t.Errorf("%s: one port reached %v only", network, seen)
		}
	}
}

// TestReplyEvicted: a flow whose reply entry was evicted goes on with the client's next packet.
func TestReplyEvicted(t *testing.T) {
	t.Parallel()
	c, a := serveCluster(t, func(c *cluster) []string {
		return append(c.service(1, "near", "", []endpoint{local}), c.service(2, "far", "", []endpoint{remote})...)
	})
	type flow struct {
		name   string
		socket *lab.Socket
		hello  greeting
	}
	var flows []flow
	for _, network := range networks {
		for _, i := range []int{1, 2} {
			s, hello := connect(t, c.client, network, nodePort(network, i))
			flows = append(flows, flow{fmt.Sprintf("%s to Service %d", network, i), s, hello})
		}
	}
	time.Sleep(1100 * time.Millisecond) // entries are looked after once a second
	if n := a.evict(isReply); n < len(flows) {
		t.Errorf("only %d reply entries of %d flows", n, len(flows))
	}
	for _, f := range flows {
		if strings.HasPrefix(f.name, "tcp") {
			if err := echo(f.socket, "x"); err != nil {
				t.Errorf("%s: %v", f.name, err)
			}
		} else if hello := mustTalk(t, f.socket); hello != f.hello {
			t.Errorf("%s: the flow of %v goes on as that of %v", f.name, f.hello, hello)
		}
	}
}

// TestForeign: a connection that is older than the Service is not translated.
func TestForeign(t *testing.T) {
	t.Parallel()
	c, a := serveCluster(t, func(c *cluster) []string { return c.service(2, "other", "", nil) })
	for _, network := range networks[:2] {
		c.nodes[0].ServeTCP(nodePort(network, 1))
	}
	var before []*lab.Socket
	for _, network := range networks[:2] {
		s := c.client.Socket(network)
		if err := s.Connect(nodePort(network, 1)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Receive(); err != nil {
			t.Fatal(err)
		}
		before = append(before, s)
	}
	a.apply(c.service(1, "web", "", []endpoint{remote})...)
	for i, s := range before {
		if err := echo(s, "still here"); err != nil {
			t.Errorf("%s: %v", networks[i], err)
		}
		if _, hello := connect(t, c.client, networks[i], nodePort(networks[i], 1)); hello.name != remote.server() {
			t.Errorf("%s: a new connection reached %s", networks[i], hello.name)
		}
	}
}

// TestTimeExceeded: a packet with a TTL of 1 is answered by this node when its backend is on the
// other one, and is served when the backend is here.
func TestTimeExceeded(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string {
		return append(c.service(1, "far", "", []endpoint{remote}), c.service(2, "near", "", []endpoint{{node: 1, place: "host"}})...)
	})
	for _, f := range []struct {
		network          string
		family, protocol int
		level, hops      int
		typeAt           int
		timeExceeded     byte
	}{
		{"udp4", unix.AF_INET, unix.IPPROTO_ICMP, unix.IPPROTO_IP, unix.IP_TTL, 20, 11},
		{"udp6", unix.AF_INET6, unix.IPPROTO_ICMPV6, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 0, 3},
	} {
		errs := c.client.RawSocket(f.family, unix.SOCK_RAW, f.protocol)
		s := c.client.Socket(f.network)
		// The router takes one of the two hops.
		if err := s.SetOption(f.level, f.hops, 2); err != nil {
			t.Fatal(err)
		}
		for {
			packet, from, err := errs.ReceiveAfter(func() error { return s.SendTo("x", nodePort(f.network, 1)) })
			if err != nil {
				t.Errorf("%s: %v", f.network, err)
				break
			}
			if packet[f.typeAt] != f.timeExceeded {
				continue // neighbour discovery
			}
			if from.Addr() != nodeAddrs(1).of(f.network) {
				t.Errorf("%s: time exceeded at %s", f.network, from.Addr())
			}
			break
		}
		if err := s.Connect(nodePort(f.network, 2)); err != nil {
			t.Fatal(err)
		}
		if _, err := talkUDP(s, "x"); err != nil {
			t.Errorf("%s: last hop at the node itself: %v", f.network, err)
		}
	}
}

// TestRestart: no packet of a flow is lost while the agent is killed and started
// again.
func TestRestart(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"tcx", "clsact"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "tcx")
			c, a := serveCluster(t, func(c *cluster) []string { return c.service(1, "web", "", []endpoint{remote}) }, "--tc-mode", mode)
			c.restart(t, a, a)
		})
	}
}

// restart checks that no packet of a flow is lost while agents are killed and started again,
// one after the other, and that new flows go their way as before.
func (c *cluster) restart(t *testing.T, agents ...*agent) {
	t.Helper()
	want := c.snat(false)[0]
	if c.direct {
		want = clientAddrs[0]
	}
	tcp, _ := connect(t, c.client, "tcp4", nodePort("tcp4", 1))
	udp, hello := connect(t, c.client, "udp6", nodePort("udp6", 1))
	var answered atomic.Int64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { keepTalking(t, udp, hello, &answered, stop); close(done) }()
	more := func(when string) {
		t.Helper()
		had := answered.Load()
		lab.Eventually(t, "datagrams go over "+when, func() bool { return answered.Load() >= had+10 })
	}
	for _, a := range agents {
		a.Signal(unix.SIGKILL)
		_ = a.Wait() // killed
		more("without an agent")
		if err := echo(tcp, "no agent"); err != nil {
			t.Error(err)
		}
		a.start()
		more("with a new agent")
		if err := echo(tcp, "a new agent"); err != nil {
			t.Error(err)
		}
		if _, hello := connect(t, c.client, "tcp4", nodePort("tcp4", 1)); hello.client.Addr() != want {
			t.Errorf("with a new agent of %s, the backend has seen %s, want %s", a.node.name(), hello.client, want)
		}
	}
	close(stop)
	<-done
}

// keepTalking sends a datagram every few milliseconds, each of which must be
// answered at once and in the same flow, and counts those that were.
func keepTalking(t *testing.T, s *lab.Socket, hello greeting, answered *atomic.Int64, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(2 * time.Millisecond):
		}
		got, err := talkUDP(s, "x")
		if err != nil || got != hello {
			t.Errorf("datagram %d: %v, %v, want %v", answered.Load(), got, err, hello)
			return
		}
		answered.Add(1)
	}
}
