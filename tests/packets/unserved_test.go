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

// hairpinAddrs stand for the node where it is a client of its own backends.
var hairpinAddrs = parseAddrs("192.0.0.8", "100:0:0:1::8")

// TestUnservedSockets: packets to a Service from a socket of the node that was not translated reach
// every kind of endpoint, here and on the other node, and replies come from the Service. Sockets
// outside of the served cgroup stand in for those of the kernel, such as NFS's.
func TestUnservedSockets(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"tcx", "clsact"} {
		for _, filter := range []string{"1", "2"} {
			t.Run(mode+" rp_filter="+filter, func(t *testing.T) {
				t.Parallel()
				tier.Variant(t, mode == "tcx" && filter == "1")
				c := newCluster(t, false)
				c.serveAll(t)
				node := c.nodes[0]
				node.SetSysctl("ipv4/conf/all/rp_filter", filter)
				startAgent(t, node, c.podServices(), "--tc-mode", mode, "--cgroup-root", lab.NewCgroup(t))
				for _, offload := range offloads {
					t.Run(offload.name, func(t *testing.T) {
						offload.set(c)
						c.watchChecksums(t)
						c.checkUnserved(t)
					})
				}
				if said := beeline(t, node, "status"); strings.Contains(said, "\nSandboxes") {
					t.Errorf("no pod has asked for a Service, beeline status says:\n%s", said)
				}
			})
		}
	}
}

// checkUnserved asks for every Service from node 1.
func (c *cluster) checkUnserved(t *testing.T) {
	t.Helper()
	for i, set := range podSets[:5] {
		e := set.endpoints[0]
		for _, network := range networks {
			to := netip.AddrPortFrom(clusterIP(i+1).of(network), 80)
			want := hairpinAddrs.of(network)
			if e.node != 1 {
				want = nodeAddrs(1).of(network)
			}
			for _, payload := range []string{"payload", strings.Repeat("p", 1300)} {
				got, err := ask(c.nodes[0].Namespace, network, to, payload)
				if err != nil || got.name != e.server() || got.client.Addr() != want {
					t.Errorf("%s to %s, %d bytes: %v, %v, want to be seen as %s", network, e.server(), len(payload), got.greeting, err, want)
				}
			}
			if network[:3] != "udp" {
				continue
			}
			payload := strings.Repeat("datagram", 1000)
			got, err := exchange(c.nodes[0].Namespace, network, to, payload)
			if err != nil || !strings.HasPrefix(got, e.server()+" ") || !strings.HasSuffix(got, " "+payload) {
				t.Errorf("%s to %s in fragments: %d bytes came back: %v", network, e.server(), len(got), err)
			}
		}
	}
}

// TestUnservedRefused: the RST or ICMP error of a closed port of a pod here reaches the client with
// the Service's address.
func TestUnservedRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	node := c.nodes[0]
	startAgent(t, node, c.podServices(), "--cgroup-root", lab.NewCgroup(t))
	for i := range podSets[:3] {
		for _, network := range networks {
			to := netip.AddrPortFrom(clusterIP(i+1).of(network), 80)
			if got, err := ask(node.Namespace, network, to, "x"); err != unix.ECONNREFUSED {
				t.Errorf("%s to %v without a server: %v, %v, want it refused", network, podSets[i].endpoints, got, err)
			}
		}
	}
}

// TestUnservedTransfer sends much data to a pod of the node and to the node itself.
func TestUnservedTransfer(t *testing.T) {
	c := newCluster(t, false)
	c.serveAll(t)
	node := c.nodes[0]
	startAgent(t, node, c.podServices(), "--cgroup-root", lab.NewCgroup(t))
	for _, i := range []int{1, 3} {
		for _, network := range networks[:2] {
			t.Run(fmt.Sprintf("%s to %s", network, podSets[i-1].endpoints[0].server()), func(t *testing.T) {
				transfer(t, node.Namespace, network, netip.AddrPortFrom(clusterIP(i).of(network), 80))
			})
		}
	}
}
