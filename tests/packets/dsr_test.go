package packets_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// nodeManifests are the nodes of the cluster, with the addresses that the tunnel has.
func (c *cluster) nodeManifests() []string {
	all := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		all[i] = nodeManifest(n.index, n.listed...)
		if n.podCIDRs[0].IsValid() {
			all[i] += fmt.Sprintf("spec: {podCIDRs: [%q, %q]}\n", n.podCIDRs[0], n.podCIDRs[1])
		}
	}
	return all
}

// nodesOf returns the nodes that a node knows beside itself.
func nodesOf(t *testing.T, n *node) []nodemap.Node {
	t.Helper()
	return withMaps(t, n, func(maps *bpfmap.Maps) []nodemap.Node {
		nodes, err := nodemap.New(maps).List()
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(nodes, func(n nodemap.Node) bool { return n.Self })
	})
}

// setTunnel lets a node believe that all others accept tunnel traffic, or none does,
// until its agent ends.
func setTunnel(t *testing.T, n *node, accepts bool) {
	t.Helper()
	pin := pinned(t, n.BPFFS, "bl_node")
	entry := struct {
		Addr          [16]byte
		Flags, Answer uint32
	}{Answer: uint32(nodemap.Unreachable)}
	if accepts {
		entry.Flags, entry.Answer = nodeTunnel, uint32(nodemap.Accepts)
	}
	for _, other := range nodesOf(t, n) {
		entry.Addr = other.Addr.As16()
		if err := pin.Put(uint32(other.ID), entry); err != nil {
			t.Fatal(err)
		}
	}
}

// serveDSR serves the manifests, and those of the nodes, by direct server return: when it
// returns, the tunnel is used. It returns the agent of node 1.
func (c *cluster) serveDSR(t *testing.T, manifests []string, flags ...string) *agent {
	t.Helper()
	c.direct = true
	a := c.serveEverywhere(t, append(c.nodeManifests(), manifests...), append([]string{"--forwarding-mode", "dsr"}, flags...)...)
	lab.Eventually(t, "the nodes with endpoints accept tunnel traffic", func() bool {
		asked := 0
		for _, n := range c.nodes {
			for _, other := range nodesOf(t, n) {
				if other.Answer != nodemap.NotAsked {
					asked++
				}
				if other.Answer != nodemap.NotAsked && !other.Tunnel {
					return false
				}
			}
		}
		return asked > 0
	})
	return a
}

// moveNodeAddrs lists addresses of the nodes that are at their loopback devices, as where they are announced by BGP.
func (c *cluster) moveNodeAddrs(family int) {
	at := func(i int) netip.Addr {
		return parseAddrs(fmt.Sprintf("10.97.0.%d", i), fmt.Sprintf("fd90::%d", i))[family]
	}
	for _, n := range c.nodes {
		n.listed = []netip.Addr{at(n.index)}
		n.AddAddr("lo", netip.PrefixFrom(at(n.index), at(n.index).BitLen()).String())
		for _, other := range c.nodes {
			if other != n {
				n.AddRoute(netip.PrefixFrom(at(other.index), at(other.index).BitLen()), nodeAddrs(other.index)[family], uplink)
			}
		}
	}
}

// TestDSRNodeAddress: packets in the tunnel come from the address that the Node lists, and are accepted, where the
// device that they leave by does not have it.
func TestDSRNodeAddress(t *testing.T) {
	byTunnels(t, 0, func(t *testing.T, c *cluster, mode tunnelMode) {
		c.moveNodeAddrs(mode.family)
		c.checkDSRSource(t, mode)
	})
}

// TestDSRFirstAddress: the same where the device has others, of which SNAT takes the first one.
func TestDSRFirstAddress(t *testing.T) {
	byTunnels(t, 1, func(t *testing.T, c *cluster, mode tunnelMode) {
		for _, n := range c.nodes {
			n.AddAddr(uplink, fmt.Sprintf("10.99.0.%d/24", n.index))
			n.AddAddr(uplink, fmt.Sprintf("fd99::%d/64", n.index)) // the last one is first
		}
		c.checkDSRSource(t, mode)
	})
}

func (c *cluster) checkDSRSource(t *testing.T, mode tunnelMode) {
	t.Helper()
	c.serveDSR(t, c.service(1, "web", "", []endpoint{remote}), "--xdp", mode.xdp)
	for _, network := range networks {
		got, err := ask(c.client, network, nodePort(network, 1), "payload")
		if err != nil || got.name != remote.server() || got.client.Addr() != clientAddrs.of(network) {
			t.Fatalf("%s: %v, %v", network, got, err)
		}
	}
	c.checkDirect(t)
}

// tunnelMode is how packets are tunneled: by which programs, and over which family.
type tunnelMode struct {
	name   string
	xdp    string
	family int // of the address where it ends
}

// tunnelModes are those that tests run with.
var tunnelModes = []tunnelMode{
	{"tc over IPv4", "off", 0},
	{"tc over IPv6", "off", 1},
	{"XDP over IPv4", "native", 0},
	{"XDP over IPv6", "native", 1},
}

// newCluster makes a cluster whose nodes have the tunnel.
func (m tunnelMode) newCluster(t *testing.T) *cluster {
	t.Helper()
	c := newClusterFor(t, m.xdp)
	for _, n := range c.nodes {
		n.listed = n.listed[m.family:]
	}
	return c
}

// byTunnels runs a test in a cluster of each tunnel mode, side by side; in make test
// one stands for all.
func byTunnels(t *testing.T, stands int, test func(*testing.T, *cluster, tunnelMode)) {
	t.Parallel()
	for i, mode := range tunnelModes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, i == stands)
			test(t, mode.newCluster(t), mode)
		})
	}
}

// TestDSRReach is the table again: backends on the other node see the client, and answer
// it themselves.
func TestDSRReach(t *testing.T) {
	byTunnels(t, 3, func(t *testing.T, c *cluster, mode tunnelMode) {
		manifests, rows := c.table()
		c.serveDSR(t, manifests, "--xdp", mode.xdp)
		for i, offload := range offloads {
			part := tier.Part(rows, i, len(offloads))
			if mode.xdp == "native" {
				if offload.name != "offloads off" {
					continue
				}
				part = rows
			}
			t.Run(offload.name, func(t *testing.T) {
				offload.set(c)
				c.watchChecksums(t)
				c.checkAll(t, part)
			})
		}
		c.checkDirect(t)
		if sent := sentByXDP(t, c.nodes[0]); (sent > 0) != (mode.xdp == "native") {
			t.Errorf("XDP has sent %d packets", sent)
		}
	})
}

// TestDSRByGenericXDP: XDP sends by the tunnel from where the kernel receives packets, too,
// but for those that have yet to get their checksums.
func TestDSRByGenericXDP(t *testing.T) {
	tier.Slow(t, "moves hundreds of megabytes")
	t.Parallel()
	c := newCluster(t, false)
	c.serveDSR(t, c.service(1, "web", "", []endpoint{remote}), "--xdp", "generic")
	for _, offload := range offloads[:2] {
		offload.set(c)
		for _, network := range networks[:2] {
			t.Run(offload.name+" "+network, func(t *testing.T) {
				c.watchChecksums(t)
				transfer(t, c.client, network, nodePort(network, 1))
				c.checkDirect(t)
			})
		}
	}
	if sent := sentByXDP(t, c.nodes[0]); sent < uint64(2*transferSize/1500) {
		t.Errorf("XDP has sent %d packets", sent)
	}
}

// checkDirect checks that node 2 has accepted what came by the tunnel from node 1, and that
// node 1 has nothing to do with the replies. The numbers may differ: a queue drops packets,
// and the kernel splits them. Packets may be dropped for the given reasons.
func (c *cluster) checkDirect(t *testing.T, may ...string) {
	t.Helper()
	sent, received := eventCount(t, c.nodes[0], "tunnel_sent"), eventCount(t, c.nodes[1], "tunnel_received")
	if sent == 0 || received == 0 {
		t.Errorf("node 1 has sent %d packets by the tunnel, node 2 has received %d", sent, received)
	}
	for _, refused := range []string{"tunnel_unknown_sender", "tunnel_malformed", "tunnel_no_service", "tunnel_no_backend", "tunnel_no_flow", "tunnel_wrong_secret"} {
		if n := eventCount(t, c.nodes[1], refused); n > 0 && !slices.Contains(may, refused) {
			t.Errorf("node 2 has counted %d packets as %s", n, refused)
		}
	}
	for _, f := range c.flowsOf(t, c.nodes[0]) {
		if f.SNAT {
			t.Errorf("node 1 has the flow %+v", f)
		}
	}
}

// flowsOf returns the flows of a node.
func (c *cluster) flowsOf(t *testing.T, n *node) []flowmap.Flow {
	t.Helper()
	return withMaps(t, n, func(maps *bpfmap.Maps) []flowmap.Flow {
		flows, _ := allFlows(t, maps)
		return flows
	})
}

// TestDSRTransfer sends a lot to the other node and has it sent back, with checksums and
// segmentation made by whoever. None of what comes back goes by node 1.
func TestDSRTransfer(t *testing.T) {
	for i, mode := range tunnelModes {
		t.Run(mode.name, func(t *testing.T) {
			tier.Variant(t, i == 3)
			testDSRTransfer(t, mode)
		})
	}
}

func testDSRTransfer(t *testing.T, mode tunnelMode) {
	c := mode.newCluster(t)
	c.serveDSR(t, c.service(1, "web", "", []endpoint{remote}), "--xdp", mode.xdp)
	for _, offload := range offloads {
		if mode.xdp == "native" && offload.name != "offloads off" {
			continue
		}
		offload.set(c)
		for _, network := range networks[:2] {
			t.Run(offload.name+" "+network, func(t *testing.T) {
				watchChecksums(t, "client", c.client)
				watchChecksums(t, remote.server(), c.nodes[1].routed)
				translated := eventCount(t, c.nodes[0], "packet_translated")
				sent := eventCount(t, c.nodes[0], "tunnel_sent")
				transfer(t, c.client, network, nodePort(network, 1))
				c.checkDirect(t)
				translated = eventCount(t, c.nodes[0], "packet_translated") - translated
				sent = eventCount(t, c.nodes[0], "tunnel_sent") - sent
				if translated > sent {
					t.Errorf("node 1 has translated %d packets and sent %d by the tunnel", translated, sent)
				}
			})
		}
	}
}
