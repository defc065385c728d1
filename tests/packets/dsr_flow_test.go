package packets_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// tunnelMTU is the MTU of the tunnel over a family.
func tunnelMTU(family int) int {
	if family == 0 {
		return 1500 - 68
	}
	return 1500 - 88
}

// TestDSRAtTheMTU: a packet of exactly the tunnel's MTU is forwarded; one byte more is answered by
// fragmentation needed with an MTU that then fits.
func TestDSRAtTheMTU(t *testing.T) {
	tier.Slow(t, "TestDSRTransfer fills packets, too")
	byTunnels(t, 2, func(t *testing.T, c *cluster, mode tunnelMode) {
		c.serveDSR(t, c.service(1, "web", "", []endpoint{remote}), "--xdp", mode.xdp)
		for _, network := range networks[2:] {
			headers, level, discover, pmtu := 20+8, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_MTU
			if network == "udp6" {
				headers, level, discover, pmtu = 40+8, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_MTU
			}
			s := c.client.Socket(network)
			if err := errors.Join(s.SetOption(level, discover, unix.IP_PMTUDISC_DO), s.Connect(nodePort(network, 1))); err != nil {
				t.Fatal(err)
			}
			fits := tunnelMTU(mode.family) - headers
			payload := strings.Repeat("x", fits)
			if got, err := s.Ask(payload[:fits-100]); err != nil || !strings.HasSuffix(got, " "+payload[:fits-100]) {
				t.Errorf("%s: %d bytes came back of a packet that is shorter than the tunnel: %v", network, len(got), err)
			}
			if err := s.Send(payload); err != nil {
				t.Fatal(err)
			}
			// The answer, which is longer, does not go by the tunnel.
			if got, _, err := s.Receive(); err != nil || !strings.HasSuffix(got, " "+payload) {
				t.Errorf("%s: %d bytes came back of a packet that fills the tunnel: %v", network, len(got), err)
			}
			lab.Eventually(t, network+" packets longer than the tunnel are answered", func() bool {
				return errors.Is(s.Send(payload+"x"), unix.EMSGSIZE)
			})
			if got, err := s.Option(level, pmtu); err != nil || got != tunnelMTU(mode.family) {
				t.Errorf("%s: the client has learned an MTU of %d, %v, want %d", network, got, err, tunnelMTU(mode.family))
			}
			lab.Eventually(t, network+" packets that fit go through again", func() bool {
				got, err := s.AskWithin(payload, time.Second)
				return err == nil && strings.HasSuffix(got, " "+payload)
			})
		}
	})
}

// TestDSRMSS: backends on the other node announce an MSS that leaves room for the tunnel.
// Without that, a transfer finds out by itself.
func TestDSRMSS(t *testing.T) {
	t.Parallel()
	for _, clamp := range []bool{true, false} {
		t.Run(fmt.Sprint("clamp ", clamp), func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, clamp)
			c := newCluster(t, false)
			c.serveDSR(t, append(c.service(1, "far", "", []endpoint{remote}), c.service(2, "near", "", []endpoint{local})...), fmt.Sprint("--dsr-clamp-mss=", clamp))
			for _, network := range networks[:2] {
				for i, far := range []bool{true, false} {
					s, _ := connect(t, c.client, network, nodePort(network, i+1))
					want := 1500 - 20 - headerSize(clientAddrs.of(network)) - 12 // with time stamps
					if far && clamp {
						want -= 88
					}
					if got, err := s.Option(unix.IPPROTO_TCP, unix.TCP_MAXSEG); err != nil || got != want {
						t.Errorf("%s to Service %d: the MSS is %d, %v, want %d", network, i+1, got, err, want)
					}
				}
				transfer(t, c.client, network, nodePort(network, 1))
			}
		})
	}
}

// TestDSRFragments: fragmented datagrams are forwarded through the tunnel, and their fragmented
// replies come back.
func TestDSRFragments(t *testing.T) {
	byTunnels(t, 0, func(t *testing.T, c *cluster, mode tunnelMode) {
		c.serveDSR(t, c.service(1, "web", "", []endpoint{remote}), "--xdp", mode.xdp)
		for _, network := range networks[2:] {
			for _, size := range []int{2000, 8000, 60000} {
				payload := strings.Repeat("datagram", size/8)
				want := fmt.Sprintf("%s %s:", remote.server(), clientAddrs.of(network))
				if network == "udp6" {
					want = fmt.Sprintf("%s [%s]:", remote.server(), clientAddrs.of(network))
				}
				// The first one tells the client what fits.
				lab.Eventually(t, fmt.Sprintf("%s: %d bytes come back", network, size), func() bool {
					got, err := exchangeWithin(c.client, network, nodePort(network, 1), payload, time.Second)
					return err == nil && strings.HasPrefix(got, want) && strings.HasSuffix(got, " "+payload)
				})
			}
		}
		// Later fragments come alone when the first one does not fit into the tunnel.
		c.checkDirect(t, "tunnel_no_service")
	})
}

// TestDSRPathMTU: a router between node and client sends fragmentation needed to the Service's
// address, so to node 1; the backend learns the path MTU.
func TestDSRPathMTU(t *testing.T) {
	byTunnels(t, 1, func(t *testing.T, c *cluster, mode tunnelMode) {
		c.serveDSR(t, c.service(1, "web", "", []endpoint{remote}), "--xdp", mode.xdp)
		for _, addr := range clientAddrs {
			if out, err := c.router.Output("ip", "route", "add", addr.String(), "dev", "clients", "mtu", "lock", "1300"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		for _, network := range networks[:2] {
			transfer(t, c.client, network, nodePort(network, 1))
		}
	})
}

// TestDSRClientBesideTheBackend: the backend's own node and a pod there reach it by a node
// port of another node, however pods are told from other clients.
func TestDSRClientBesideTheBackend(t *testing.T) {
	tier.Slow(t, "TestDSRReach has the other clients")
	t.Parallel()
	for _, tc := range []struct {
		name, xdp string
		ofNodes   bool // the ranges of pods are those of Nodes, and no others are known
		flags     []string
	}{
		{"XDP off", "off", false, nil},
		{"XDP native", "native", false, nil},
		{"BridgeInterface", "off", false, []string{"--detect-local-mode", "BridgeInterface", "--pod-bridge-interface", "cni0"}},
		{"InterfaceNamePrefix", "off", false, []string{"--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "veth"}},
		{"podCIDRs of Nodes", "off", true, []string{"--cluster-cidr", ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, tc.name == "XDP native" || tc.ofNodes)
			c := newXDPCluster(t, false)
			if tc.ofNodes {
				for _, n := range c.nodes {
					n.podCIDRs = podRangesOf(n.index)
				}
			}
			c.serveDSR(t, c.service(1, "web", "", []endpoint{remote}), append([]string{"--xdp", tc.xdp}, tc.flags...)...)
			for name, n := range map[string]*lab.Namespace{"node": c.nodes[1].Namespace, "pod": c.nodes[1].bridged} {
				for _, network := range networks {
					got, err := ask(n, network, nodePort(network, 1), "hello")
					if err != nil || got.client.Addr() != nodeAddrs(1).of(network) {
						t.Errorf("the %s by %s: the backend sees %s: %v", name, network, got.client, err)
					}
				}
			}
		})
	}
}

// TestDSRWithoutTunnel: a connection keeps its forwarding mode when the node at its end says
// that it no longer accepts tunnel traffic; new ones get SNAT. Likewise when it accepts
// tunnel traffic again.
func TestDSRWithoutTunnel(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	c.serveDSR(t, c.service(1, "web", "", []endpoint{remote}))
	type open struct {
		*lab.Socket
		network string
		direct  bool
	}
	var all []open
	for _, direct := range []bool{true, false, true} {
		setTunnel(t, c.nodes[0], direct)
		for _, network := range networks {
			s, hello := connect(t, c.client, network, nodePort(network, 1))
			want := clientAddrs.of(network)
			if !direct {
				want = nodeAddrs(1).of(network)
			}
			if hello.client.Addr() != want {
				t.Errorf("%s with the tunnel %v: %s has seen %s, want %s", network, direct, hello.name, hello.client, want)
			}
			all = append(all, open{s, network, direct})
		}
		directions := make(map[netip.AddrPort]flowmap.Tunnel)
		for _, f := range c.flowsOf(t, c.nodes[0]) {
			directions[f.Client] = f.Tunnel
		}
		for _, s := range all {
			if err := goesOn(s.Socket, s.network); err != nil {
				t.Errorf("%s that began with the tunnel %v: %v", s.network, s.direct, err)
			}
			self, err := s.Local()
			if err != nil {
				t.Fatal(err)
			}
			if (directions[self] == flowmap.LeavesByTunnel) != s.direct {
				t.Errorf("%s that began with the tunnel %v goes by the tunnel %v", s.network, s.direct, directions[self])
			}
		}
	}
}

// TestDSRMove: a UDP flow goes to another endpoint with the first datagram after its own
// has left, on the same node or another.
func TestDSRMove(t *testing.T) {
	tier.Slow(t, "TestMove shows it without the tunnel")
	t.Parallel()
	for _, network := range networks[2:] {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, network == "udp6")
			c := newCluster(t, false)
			dns := func(endpoints ...endpoint) []string {
				// Node 2 is asked about the tunnel as long as it has an endpoint.
				return append(c.service(2, "other", "", []endpoint{remote}), c.service(1, "dns", "", endpoints)...)
			}
			c.serveDSR(t, dns(remote))
			s, hello := connect(t, c.client, network, nodePort(network, 1))
			for _, next := range []endpoint{otherRemote, local, remote, otherRemote, remote} {
				// Node 2 takes packets for endpoints alone that it knows.
				for _, a := range slices.Backward(c.agents) {
					a.apply(append(c.nodeManifests(), dns(next)...)...)
				}
				before := hello
				hello = mustTalk(t, s)
				if hello.name != next.server() || hello.client.Addr() != clientAddrs.of(network) {
					t.Errorf("%v moved to %v, want %s", before, hello, next.server())
				}
			}
		})
	}
}

// TestDSRRestart: no packet is lost while the agents of either node are killed and started
// again.
func TestDSRRestart(t *testing.T) {
	tier.Slow(t, "TestRestart shows it without the tunnel")
	t.Parallel()
	c := newCluster(t, false)
	c.serveDSR(t, c.service(1, "web", "", []endpoint{remote}))
	c.restart(t, c.agents[1], c.agents[0])
}

// TestDSRPortReuse: a client that connects again from the same port at once begins a new
// connection, which may go to another backend, after an orderly end and after a reset by
// either side.
func TestDSRPortReuse(t *testing.T) {
	tier.Slow(t, "TestPortReuse shows it without the tunnel")
	t.Parallel()
	c := newCluster(t, false)
	c.serveDSR(t, c.service(1, "web", "", everywhere))
	reusePort(t, c, len(everywhere))
}

// TestDSRSCTP: an association goes to a backend on the other node by the tunnel and back.
func TestDSRSCTP(t *testing.T) {
	tier.Slow(t, "TestDSRReach has the same ways of TCP and UDP")
	byTunnels(t, 0, func(t *testing.T, c *cluster, mode tunnelMode) {
		c.serveDSR(t, c.sctpService(1, "far", remote), "--xdp", mode.xdp)
		for network, family := range sctpFamilies {
			client, backend := newSCTPSocket(c.client, family), newSCTPSocket(c.podOf(remote), family)
			for _, to := range []netip.AddrPort{nodePort(network, 1), netip.AddrPortFrom(clusterIP(1).of(network), 80)} {
				if err := associate(client, backend, to); err != nil {
					t.Errorf("%s to %s: %v", network, to, err)
				}
			}
		}
		c.checkDirect(t)
	})
}

// mesh is a device between nodes whose packets have no Ethernet header.
const mesh = "mesh"

func meshAddrs(i int) addrs {
	return parseAddrs(fmt.Sprintf("10.4.0.%d", i), fmt.Sprintf("fd04::%d", i))
}

// addMesh connects the two nodes by devices without Ethernet headers, until the test ends.
func (c *cluster) addMesh(t *testing.T) {
	t.Helper()
	c.nodes[0].AddTUN(mesh, c.nodes[1].Namespace, 0)
	for _, n := range c.nodes {
		addAddrs(n.Namespace, mesh, meshAddrs(n.index))
	}
}

// TestDSRWithoutEthernet: the tunnel comes by a device whose packets start with the IP
// header, and what is inside may be of another family.
func TestDSRWithoutEthernet(t *testing.T) {
	t.Parallel()
	for family, name := range []string{"IPv4", "IPv6"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tier.Slow(t, "few devices are such, and TestDSROverlay tunnels through another one")
			c := newCluster(t, false)
			c.addMesh(t)
			// Clients' packets come in by it, too.
			for _, n := range c.nodes {
				n.listed = []netip.Addr{meshAddrs(n.index)[family]}
				for _, device := range []string{"all", mesh, uplink} {
					n.SetSysctl("ipv4/conf/"+device+"/rp_filter", "2")
				}
			}
			manifests := append(c.service(1, "web", "", []endpoint{remote}), c.service(2, "host", "", []endpoint{{node: 2, place: "host"}})...)
			c.serveDSR(t, manifests, "--devices", uplink+","+mesh)
			c.watchChecksums(t)
			for i, e := range []endpoint{remote, {node: 2, place: "host"}} {
				for _, network := range networks {
					got, err := ask(c.client, network, nodePort(network, i+1), "payload")
					if err == nil {
						err = c.checkSource(network, e, got)
					}
					if err != nil || got.name != e.server() {
						t.Errorf("%s to %s: %v, %v", network, e.server(), got, err)
					}
				}
			}
			c.checkDirect(t)
			for _, network := range networks[:2] {
				transfer(t, c.client, network, nodePort(network, 1))
			}
		})
	}
}
