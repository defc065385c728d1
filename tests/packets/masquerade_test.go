package packets_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// masqueradeSets are the endpoints of Services; the i-th set is of Service i+1.
var masqueradeSets = []struct {
	policy string
	at     endpoint
}{
	{"Cluster", local},
	{"Cluster", otherLocal},
	{"Cluster", remote},
	{"Cluster", endpoint{node: 1, place: "host"}},
	{"Local", local},
	{"Local", otherLocal},
}

func (c *cluster) masqueradeServices() []string {
	var manifests []string
	for i, set := range masqueradeSets {
		manifests = append(manifests, c.service(i+1, fmt.Sprintf("hidden-%d", i+1),
			"externalTrafficPolicy: "+set.policy+",", []endpoint{set.at})...)
	}
	return manifests
}

// TestMasqueradeAll: with --masquerade-all, endpoints on this node see the node's address as every
// client's, unless the traffic policy keeps the source. Without it they see the client's.
func TestMasqueradeAll(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"tcx", "clsact"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "tcx")
			c, a := serveCluster(t, (*cluster).masqueradeServices, "--tc-mode", mode, "--masquerade-all")
			for _, offload := range offloads {
				t.Run(offload.name, func(t *testing.T) {
					offload.set(c)
					c.watchChecksums(t)
					c.checkMasquerade(t, c.client, true)
				})
			}
			t.Run("off again", func(t *testing.T) {
				a.Signal(unix.SIGTERM)
				if err := a.Wait(); err != nil {
					t.Fatal(err)
				}
				a.flags = append(a.flags, "--masquerade-all=false")
				a.start()
				// From other ports than before: a flow of UDP that is known stays as it is.
				c.client.SetSysctl("ipv4/ip_local_port_range", "10000 20000")
				c.checkMasquerade(t, c.client, false)
			})
		})
	}
}

// TestMasqueradeAllOfPods: the same for packets of pods whose sockets are not translated, also for a
// pod that reaches itself.
func TestMasqueradeAllOfPods(t *testing.T) {
	tier.Slow(t, "TestMasqueradeAll has the same flows of clients outside")
	t.Parallel()
	for _, mode := range []string{"tcx", "clsact"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "clsact")
			c, _ := serveCluster(t, (*cluster).masqueradeServices, append([]string{"--tc-mode", mode, "--masquerade-all"}, podFlags...)...)
			c.watchChecksums(t)
			for _, at := range []endpoint{local, otherLocal} {
				c.checkMasquerade(t, c.podOf(at), true)
			}
		})
	}
}

// checkMasquerade asks for every Service by every frontend.
func (c *cluster) checkMasquerade(t *testing.T, from *lab.Namespace, all bool) {
	t.Helper()
	for i, set := range masqueradeSets {
		for _, f := range frontends {
			for _, network := range networks {
				to := netip.AddrPortFrom(f.address(i+1).of(network), uint16(f.port(i+1)))
				got, err := ask(from, network, to, "payload")
				if err != nil || got.name != set.at.server() {
					t.Errorf("%s to the %s of %v: %v, %v", network, f.name, set, got.greeting, err)
					continue
				}
				shown := set.policy == "Local" && f.name != "ClusterIP" && from == c.client
				want := got.self.Addr()
				if set.at.place != "host" && (set.at.node != 1 || all && !shown) {
					want = nodeAddrs(1).of(network)
				}
				if got.client.Addr() != want || !c.maySee(set.at, network, got.client.Port(), got.self, want != got.self.Addr()) {
					t.Errorf("%s from %s to the %s of %v: it has seen %s, want %s", network, got.self, f.name, set, got.client, want)
				}
			}
		}
	}
}

// TestMasqueradeAllOfMuch sends fragmented datagrams and much data.
func TestMasqueradeAllOfMuch(t *testing.T) {
	tier.Slow(t, "TestTransfer and TestFragments send as much by the same programs")
	c, _ := serveCluster(t, (*cluster).masqueradeServices, "--masquerade-all")
	c.watchChecksums(t)
	payload := strings.Repeat("datagram", 1000)
	for i := range 2 {
		for _, network := range networks[2:] {
			want := fmt.Sprintf("%s %s", masqueradeSets[i].at.server(), netip.AddrPortFrom(nodeAddrs(1).of(network), 0))
			got, err := exchange(c.client, network, nodePort(network, i+1), payload)
			if err != nil || !strings.HasPrefix(got, strings.TrimSuffix(want, "0")) || !strings.HasSuffix(got, " "+payload) {
				t.Errorf("%s to %s: %d bytes came back: %v", network, masqueradeSets[i].at.server(), len(got), err)
			}
		}
		for _, network := range networks[:2] {
			transfer(t, c.client, network, nodePort(network, i+1))
		}
	}
}

// TestMasqueradeAllErrors: ICMP errors pass both flows of a masqueraded connection. An endpoint learns
// the path MTU from a router on the way to the client, and a client that nobody listens.
func TestMasqueradeAllErrors(t *testing.T) {
	tier.Slow(t, "TestMasqueradeAll has the same flows")
	t.Parallel()
	flags := append([]string{"--masquerade-all"}, podFlags...)
	t.Run("fragmentation needed", func(t *testing.T) {
		t.Parallel()
		c, _ := serveCluster(t, (*cluster).masqueradeServices, flags...)
		for _, addr := range clientAddrs {
			if out, err := c.router.Output("ip", "route", "add", addr.String(), "dev", "clients", "mtu", "lock", "1300"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		for i := range masqueradeSets[:2] {
			for _, network := range networks[:2] {
				transfer(t, c.client, network, nodePort(network, i+1))
			}
		}
	})
	t.Run("port unreachable", func(t *testing.T) {
		t.Parallel()
		c := newCluster(t, false)
		startAgent(t, c.nodes[0], c.masqueradeServices(), flags...)
		for i, set := range masqueradeSets[:3] {
			for name, from := range map[string]*lab.Namespace{"client": c.client, "pod": c.podOf(local), "pod at a bridge": c.podOf(otherLocal)} {
				for _, network := range networks[2:] {
					to := netip.AddrPortFrom(clusterIP(i+1).of(network), 80)
					if got, err := ask(from, network, to, "x"); !errors.Is(err, unix.ECONNREFUSED) {
						t.Errorf("%s from the %s to %s, where nobody listens: %v, %v, want it refused", network, name, set.at.server(), got, err)
					}
				}
			}
		}
	})
}

// TestMasqueradeAllEvicted: an open connection goes on when the kernel has evicted the reply entries
// of its flows, or the whole flow that gives its packets their source.
func TestMasqueradeAllEvicted(t *testing.T) {
	t.Parallel()
	c, a := serveCluster(t, (*cluster).masqueradeServices, append([]string{"--masquerade-all"}, podFlags...)...)
	type open struct {
		what   string
		socket *lab.Socket
		hello  greeting
	}
	var list []open
	for client, from := range []*lab.Namespace{c.client, c.podOf(local), c.podOf(otherLocal)} {
		// From distinct ports, which all stay as they are: another connection may not have taken one.
		from.SetSysctl("ipv4/ip_local_port_range", fmt.Sprintf("%d %d", 10000+1000*client, 10999+1000*client))
		sets := masqueradeSets[:3]
		if from == c.client {
			sets = sets[:2] // it reaches the other node by one flow
		}
		for i, set := range sets {
			for _, network := range networks {
				s, hello := connect(t, from, network, netip.AddrPortFrom(clusterIP(i+1).of(network), 80))
				if want := nodeAddrs(1).of(network); hello.client.Addr() != want {
					t.Errorf("%s to %s: it has seen %s, want %s", network, set.at.server(), hello.client, want)
				}
				list = append(list, open{fmt.Sprintf("%s from client %d to %s", network, client, set.at.server()), s, hello})
			}
		}
	}
	for _, step := range []struct {
		what  string
		which func(entry []byte) bool
	}{
		{"reply entries", isReply},
		{"flows with SNAT", func(entry []byte) bool { return entry[flowBitsAt]&snatBit != 0 }},
	} {
		time.Sleep(1100 * time.Millisecond) // entries are looked after once a second
		if n := a.evict(step.which); n < 2*len(list) {
			t.Errorf("only %d entries of %d flows are %s", n, len(list), step.what)
		}
		for _, o := range list {
			if strings.HasPrefix(o.what, "tcp") {
				if err := echo(o.socket, "x"); err != nil {
					t.Errorf("%s without %s: %v", o.what, step.what, err)
				}
			} else if hello := mustTalk(t, o.socket); hello != o.hello {
				t.Errorf("%s without %s: the flow of %v goes on as that of %v", o.what, step.what, o.hello, hello)
			}
		}
	}
}

// TestMasqueradeAllTurnedOff: open TCP and UDP flows go on when the agent is restarted without
// --masquerade-all. New ones keep the client's address.
func TestMasqueradeAllTurnedOff(t *testing.T) {
	tier.Slow(t, "TestMasqueradeAll has the same flows, and TestRestart another agent")
	t.Parallel()
	for _, mode := range []string{"tcx", "clsact"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "clsact")
			c, a := serveCluster(t, (*cluster).masqueradeServices, "--tc-mode", mode, "--masquerade-all")
			type open struct {
				socket *lab.Socket
				first  greeting
				what   string
				talk   func(*lab.Socket, string) (greeting, error)
			}
			var list []open
			for i, set := range masqueradeSets[:2] {
				for _, network := range networks {
					o := open{socket: c.client.Socket(network), what: fmt.Sprintf("%s to %v", network, set)}
					got, err := askBy(o.socket, network, nodePort(network, i+1), "first")
					if err != nil || got.client.Addr() != nodeAddrs(1).of(network) {
						t.Fatalf("%s: %v, %v", o.what, got.greeting, err)
					}
					o.first = got.greeting
					o.talk = func(s *lab.Socket, payload string) (greeting, error) { return o.first, echo(s, payload) }
					if network[:3] == "udp" {
						o.talk = talkUDP
					}
					list = append(list, o)
				}
			}
			a.Signal(unix.SIGTERM)
			if err := a.Wait(); err != nil {
				t.Fatal(err)
			}
			a.flags = append(a.flags, "--masquerade-all=false")
			a.start()
			for _, o := range list {
				if got, err := o.talk(o.socket, "then"); err != nil || got != o.first {
					t.Errorf("%s: %v, %v, before it was %v", o.what, got, err, o.first)
				}
			}
			c.checkMasquerade(t, c.client, false)
		})
	}
}

// TestMasqueradeFromNodePorts: a client's source port is also a NodePort of the node. The endpoint's
// reply to that port is not taken for a request to the NodePort.
func TestMasqueradeFromNodePorts(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, (*cluster).masqueradeServices, "--masquerade-all")
	for i, set := range masqueradeSets[:3] {
		for _, network := range networks {
			for other := range masqueradeSets {
				s := c.client.Socket(network)
				port := nodePort(network, other+1).Port()
				if err := bindPort(s, network, port); err != nil {
					t.Fatal(err)
				}
				got, err := askBy(s, network, netip.AddrPortFrom(clusterIP(i+1).of(network), 80), "payload")
				if err != nil || got.name != set.at.server() || got.client.Addr() != nodeAddrs(1).of(network) {
					t.Errorf("%s from port %d to %v: %v, %v", network, port, set, got.greeting, err)
				}
			}
		}
	}
}
