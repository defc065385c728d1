package packets_test

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// unheard are the manifests of the i-th Service, at whose endpoint on node 2 nobody listens.
func (c *cluster) unheard(i int) []string {
	ip := clusterIP(i)
	name := fmt.Sprintf("unheard-%d", i)
	manifests := []string{lab.Service(name, fmt.Sprintf(
		"{type: NodePort, clusterIPs: [%q, %q], ports: [{name: t, port: 80, nodePort: %d}, {name: u, port: 80, protocol: UDP, nodePort: %d}]}",
		ip[0], ip[1], 30100+i, 30100+i))}
	for _, addr := range c.addrsOf(remote) {
		manifests = append(manifests, lab.Slice(name, "t:9/TCP,u:9/UDP", addr))
	}
	return manifests
}

// checkUnheard: a client that asks for a Service, at whose endpoint nobody listens, is told.
func (c *cluster) checkUnheard(t *testing.T, to func(network string) netip.AddrPort) {
	t.Helper()
	for _, network := range networks {
		if got, err := ask(c.client, network, to(network), "x"); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s where nobody listens: %v, %v, want it refused", network, got, err)
		}
	}
}

// loosely lets packets of a namespace come in by another device than answers to them leave by.
func loosely(n *lab.Namespace, devices ...string) {
	for _, device := range append(devices, "all") {
		n.SetSysctl("ipv4/conf/"+device+"/rp_filter", "2")
	}
}

// TestBackendWithoutEthernet: the pods of another node are behind a device whose packets have no Ethernet header. Their
// replies, and ICMP errors from there, are sent on to the client.
func TestBackendWithoutEthernet(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	c.addMesh(t)
	c.nodes[0].replaceRoutes(t, meshAddrs(2), mesh)
	c.serve(t, append(c.service(1, "far", "", []endpoint{remote}), c.unheard(2)...), "--devices", uplink+","+mesh)
	c.watchChecksums(t)
	for _, network := range networks {
		got, err := ask(c.client, network, nodePort(network, 1), "payload")
		if err != nil || got.name != remote.server() || got.client.Addr() != meshAddrs(1).of(network) {
			t.Fatalf("%s: %v, %v", network, got.greeting, err)
		}
	}
	for _, network := range networks[:2] {
		transfer(t, c.client, network, nodePort(network, 1))
	}
	c.checkUnheard(t, func(network string) netip.AddrPort { return nodePort(network, 2) })
}

// behindVPN lets the clients of a cluster be behind a device of node 1 without Ethernet, and returns where they ask for
// the i-th Service.
func (c *cluster) behindVPN() func(network string, i int) netip.AddrPort {
	c.addVPN()
	for family, clients := range []string{"10.1.0.0/24", "fd01::/64"} {
		c.nodes[0].AddRoute(netip.MustParsePrefix(clients), parseAddrs("10.4.0.1", "fd04::1")[family], vpn)
	}
	loosely(c.router)
	loosely(c.nodes[0].Namespace, uplink, vpn)
	return func(network string, i int) netip.AddrPort {
		return netip.AddrPortFrom(vpnAddrs().of(network), nodePort(network, i).Port())
	}
}

// TestClientWithoutEthernet: clients behind a device whose packets have no Ethernet header reach a backend on another
// node, and are told that nobody listens there, or that a Service has no endpoints.
func TestClientWithoutEthernet(t *testing.T) {
	t.Parallel()
	c := newCluster(t, false)
	at := c.behindVPN()
	manifests := append(c.service(1, "far", "", []endpoint{remote}), c.unheard(2)...)
	c.serve(t, append(manifests, c.service(3, "none", "", nil)...), "--devices", uplink+","+vpn)
	c.watchChecksums(t)
	for _, network := range networks {
		got, err := ask(c.client, network, at(network, 1), "payload")
		if err != nil || got.name != remote.server() || got.client.Addr() != nodeAddrs(1).of(network) {
			t.Fatalf("%s: %v, %v", network, got.greeting, err)
		}
	}
	for _, network := range networks[:2] {
		transfer(t, c.client, network, at(network, 1))
	}
	c.checkUnheard(t, func(network string) netip.AddrPort { return at(network, 2) })
	c.checkUnheard(t, func(network string) netip.AddrPort { return at(network, 3) })
}

// TestDSRClientWithoutEthernet: their packets go in the tunnel to the backend's node.
func TestDSRClientWithoutEthernet(t *testing.T) {
	t.Parallel()
	for family, name := range []string{"IPv4", "IPv6"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, false)
			for _, n := range c.nodes {
				n.listed = n.listed[family : family+1]
			}
			at := c.behindVPN()
			c.serveDSR(t, c.service(1, "far", "", []endpoint{remote}), "--devices", uplink+","+vpn)
			c.watchChecksums(t)
			for _, network := range networks {
				got, err := ask(c.client, network, at(network, 1), "payload")
				if err != nil || got.name != remote.server() || got.client.Addr() != clientAddrs.of(network) {
					t.Fatalf("%s: %v, %v", network, got.greeting, err)
				}
			}
			for _, network := range networks[:2] {
				transfer(t, c.client, network, at(network, 1))
			}
			c.checkDirect(t)
		})
	}
}
