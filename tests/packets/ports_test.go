package packets_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// TestPortSettings: SNAT avoids net.ipv4.ip_local_port_range and ip_local_reserved_ports, and follows
// changes of both.
func TestPortSettings(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string {
		return c.service(1, "far", "", []endpoint{remote})
	})
	node := c.nodes[0]
	client := uint16(30000)
	given := make(map[string]bool) // network and port that were chosen for another one
	seen := func(network string, port uint16) uint16 {
		s, hello := connectFrom(t, c.client, network, port, nodePort(network, 1))
		s.Close()
		got := hello.client.Port()
		if given[fmt.Sprint(network, port)] {
			t.Skipf("%s: port %d was chosen for another flow", network, port)
		}
		given[fmt.Sprint(network, got)] = got != port
		return got
	}
	within := func(port, first, last uint16) bool { return port >= first && port <= last }
	for _, network := range networks {
		if got := seen(network, 40000); within(got, 32768, 60999) {
			t.Errorf("%s from port 40000 is seen from %d, one of the node's own", network, got)
		}
	}
	for _, now := range []struct {
		reserved, local string
		first, last     uint16          // of local
		from            map[uint16]bool // client's ports, and whether they are reserved
	}{
		{"5000-5010,7000", "10000 20000", 10000, 20000, map[uint16]bool{5005: true, 7000: true, 9000: false}},
		{"9001", "40000 41000", 40000, 41000, map[uint16]bool{5006: false, 9001: true}},
	} {
		node.SetSysctl("ipv4/ip_local_reserved_ports", now.reserved)
		node.SetSysctl("ipv4/ip_local_port_range", now.local)
		own := now.first + 500
		lab.Eventually(t, "ports "+now.local+" are left to the node", func() bool {
			client++
			own++
			return !within(seen("udp4", own), now.first, now.last)
		})
		for _, network := range networks {
			own++
			if got := seen(network, own); within(got, now.first, now.last) {
				t.Errorf("%s from port %d is seen from %d, one of the node's own", network, own, got)
			}
			for port, reserved := range now.from {
				if got := seen(network, port); (got != port) != reserved {
					t.Errorf("%s from port %d, reserved: %t, is seen from %d", network, port, reserved, got)
				}
			}
			// It belonged to the kernel before.
			client++
			if got := seen(network, client); got != client {
				t.Errorf("%s from port %d is seen from %d", network, client, got)
			}
		}
	}
}

// TestSourcePortsExhausted: connections that find no free source port are counted per endpoint.
func TestSourcePortsExhausted(t *testing.T) {
	t.Parallel()
	const ports, lost = 4, 3
	c, _ := serveCluster(t, func(c *cluster) []string {
		return append(c.service(1, "far", "", []endpoint{remote}), c.service(2, "idle", "", []endpoint{otherRemote})...)
	}, "--snat-port-range", fmt.Sprintf("61000-%d", 61000+ports-1))
	node := c.nodes[0]
	for i, network := range []string{"udp4", "udp6"} {
		to := nodePort(network, 1)
		for port := uint16(25000); port < 25000+ports+lost; port++ {
			connectFrom(t, c.client, network, port, to)
			if port < 25000+ports {
				_, hello := connectFrom(t, c.other, network, port, to)
				if got := hello.client.Port(); got < 61000 || got >= 61000+ports {
					t.Errorf("%s: the second client from port %d is seen from %d", network, port, got)
				}
				continue
			}
			s := boundSocket(t, c.other, network, port)
			if err := s.Connect(to); err != nil {
				t.Fatal(err)
			}
			if err := s.Send("lost"); err != nil {
				t.Fatal(err)
			}
		}
		backend := netip.AddrPortFrom(c.addrsOf(remote).of(network), backendPort)
		var got []string
		lab.Eventually(t, fmt.Sprintf("%s: %d connections to %s without a port", network, lost, backend), func() bool {
			got = exhaustedMetrics(t, node)
			return len(got) == i+1 && got[i] == fmt.Sprintf(`{endpoint="%s",namespace="default",protocol="UDP",service="far"} %d`, backend, lost)
		})
	}
}

// exhaustedMetrics returns labels and values of the metric of a node's agent, sorted.
func exhaustedMetrics(t *testing.T, n *node) (lines []string) {
	t.Helper()
	page, err := n.metrics()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^beeline_source_ports_exhausted_total(.*)$`).FindAllStringSubmatch(page, -1) {
		lines = append(lines, m[1])
	}
	return lines
}

// TestHostTakesThePortOfAClosedFlow: a process of the node connects to an endpoint from the source
// port of a closed flow to it, and gets the replies.
func TestHostTakesThePortOfAClosedFlow(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"off", "native"} {
		t.Run("XDP "+mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "off")
			c := newClusterFor(t, mode)
			// No expiry is to make room for the process.
			config := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(config, []byte("apiVersion: config.beeline.io/v1alpha1\nkind: BeelineConfiguration\nflowTimeouts: {tcpClose: 1h}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			c.serve(t, c.service(1, "far", "", []endpoint{remote}), "--xdp", mode, "--config", config)
			port := uint16(25000)
			for _, network := range networks[:2] {
				for _, to := range []addrs{c.addrsOf(remote), clusterIP(1)} {
					port++
					client, hello := connectFrom(t, c.client, network, port, nodePort(network, 1))
					if want := netip.AddrPortFrom(nodeAddrs(1).of(network), port); hello.client != want {
						t.Fatalf("%s: the endpoint sees %s, want %s, so this test proves nothing", network, hello.client, want)
					}
					client.Close()
					lab.Eventually(t, "the client's connection is over", func() bool {
						for _, f := range c.flowsOf(t, c.nodes[0]) {
							if f.Client.Port() == port {
								return f.State == flowmap.StateClosed
							}
						}
						t.Fatal("the flow has expired")
						return false
					})
					at := netip.AddrPortFrom(to.of(network), backendPort)
					if to == clusterIP(1) {
						at = netip.AddrPortFrom(to.of(network), 80)
					}
					process := boundSocket(t, c.nodes[0].Namespace, network, port)
					if err := process.ConnectWithin(at, wait.Limit); err != nil {
						t.Errorf("%s: the process connects to %s from port %d: %v", network, at, port, err)
						continue
					}
					if _, err := talkTCP(process, "first"); err != nil {
						t.Errorf("%s: the process: %v", network, err)
					}
				}
			}
		})
	}
}
