package packets_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

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

// TestMasqueradeAllTurnedOff: open TCP and UDP flows go on when the agent is restarted without
// --masquerade-all. New ones keep the client's address.
func TestMasqueradeAllTurnedOff(t *testing.T) {
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
