package packets_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/nodemap"
	dsr "github.com/beeline-lb/beeline/pkg/tunnel"
	"github.com/beeline-lb/beeline/tests/lab"
)

// secretFile is a node's file with the secrets of the tunnel.
type secretFile struct {
	t    *testing.T
	node *node
	name string
}

// write replaces the secrets.
func (f secretFile) write(secrets ...string) {
	f.t.Helper()
	fresh := f.name + ".new"
	if err := os.WriteFile(fresh, []byte(strings.Join(secrets, "\n")), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(fresh, f.name); err != nil {
		f.t.Fatal(err)
	}
}

// serves reports whether the node's programs send the first of the secrets and accept them all.
func (f secretFile) serves(secrets ...string) bool {
	f.t.Helper()
	pin := pinned(f.t, f.node.BPFFS, "bl_secret")
	var have [3]dsr.Mark // sent, accepted
	if err := pin.Lookup(uint32(0), &have); err != nil {
		f.t.Fatal(err)
	}
	list, err := dsr.ParseSecrets([]byte(strings.Join(secrets, "\n")))
	if err != nil {
		f.t.Fatal(err)
	}
	sent, accepted := list.Marks()
	if have[0] != sent {
		return false
	}
	for _, mark := range accepted {
		if have[1] != mark && have[2] != mark {
			return false
		}
	}
	return len(accepted) == 2 || have[1] == have[2]
}

// TestDSRSecret: who has a node's address, as a process of it or a pod that it masquerades,
// gets nothing through the tunnel, nor who forges the address on the way; one secret takes the
// place of another while a connection goes on; and nodes of different secrets serve new
// connections by SNAT.
func TestDSRSecret(t *testing.T) {
	t.Parallel()
	lab.Need(t, "nft")
	const before, after, other = "the secret of the cluster", "the next secret of it", "one of somebody else"
	c := newCluster(t, false)
	c.direct = true
	c.serveAll(t)
	manifests := append(c.nodeManifests(), c.service(1, "web", "", []endpoint{remote})...)
	var files []secretFile
	for _, n := range c.nodes {
		f := secretFile{t, n, filepath.Join(t.TempDir(), "secrets")}
		f.write(before)
		startAgent(t, n, manifests, "--forwarding-mode", "dsr", "--dsr-secret-file", f.name)
		files = append(files, f)
	}
	c.eventually(t, nodemap.Accepts)
	s, _ := connect(t, c.client, "tcp4", nodePort("tcp4", 1))
	goesOn := func(when string) {
		t.Helper()
		if _, err := s.Ask("still there?"); err != nil {
			t.Fatalf("%s the connection has ended: %v", when, err)
		}
	}
	goesOn("at once")
	if sent, received := eventCount(t, c.nodes[0], "tunnel_sent"), eventCount(t, c.nodes[1], "tunnel_received"); sent == 0 || received == 0 {
		t.Errorf("node 1 has sent %d packets by the tunnel, node 2 has received %d", sent, received)
	}
	dropped := func() uint64 { return eventCount(t, c.nodes[1], "tunnel_wrong_secret") }
	if n := dropped(); n > 0 {
		t.Errorf("%d packets have been dropped", n)
	}
	c.masquerade(t, c.nodes[0])
	spoofed := 0
	for _, sender := range []*lab.Namespace{c.nodes[0].Namespace, c.podOf(local)} {
		for _, more := range []string{"", strings.Repeat("fragments", 500)} {
			spoofed += sendUntil(t, "node 1 drops a forged packet", func() error { return c.spoof(sender, more) }, func() bool {
				return eventCount(t, c.nodes[0], "tunnel_spoofed") > uint64(spoofed)
			})
		}
	}
	if n := dropped(); n > 0 {
		t.Errorf("%d packets that node 1 should have dropped have come to node 2", n)
	}
	forged := toMAC(c.forged(), c.macOf(t, c.nodes[1].Namespace, uplink))
	sent := uint64(sendUntil(t, "node 2 drops a forged packet", func() error { return sendFrame(c.router, "node2", forged) }, func() bool { return dropped() > 0 }))
	if flows := c.flowsOf(t, c.nodes[1]); len(flows) != 1 {
		t.Errorf("node 2 has the flows %+v", flows)
	}

	for _, step := range [][]string{{before, after}, {after, before}, {after}} {
		for _, f := range files {
			f.write(step...)
			lab.Eventually(t, "the node goes by its file", func() bool {
				goesOn("while secrets change,")
				return f.serves(step...)
			})
			goesOn("after secrets have changed,")
		}
	}
	if n := dropped(); n > sent {
		t.Errorf("%d packets have been dropped while secrets changed", n-sent)
	}

	files[1].write(other)
	c.eventually(t, nodemap.Refuses)
	tunnelled := eventCount(t, c.nodes[0], "tunnel_sent")
	c.direct = false
	connect(t, c.client, "tcp4", nodePort("tcp4", 1))
	if n := eventCount(t, c.nodes[0], "tunnel_sent") - tunnelled; n > 0 {
		t.Errorf("a new connection has sent %d packets by the tunnel", n)
	}
}

// forged returns a packet that differs from one of node 1's tunnel in the secret alone.
func (c *cluster) forged() []byte {
	f := frame{from: netip.AddrPortFrom(clientAddrs.of("tcp4"), 999), to: nodePort("tcp4", 1), protocol: unix.IPPROTO_TCP, flags: flagSYN}
	return c.tunnelled(netip.AddrPortFrom(c.addrsOf(remote)[0], backendPort), f)
}

// tunnelled returns a packet of node 1's tunnel to node 2, for a backend there.
func (c *cluster) tunnelled(backend netip.AddrPort, f frame) []byte {
	return tunnelled(c.nodes[0].listed[0], c.nodes[1].listed[0], 0xc123, backend, f.bytes())
}

// spoof sends what the packet of [cluster.forged] has, and more, by a socket.
func (c *cluster) spoof(sender *lab.Namespace, more string) error {
	to := c.nodes[1].listed[0]
	udp := c.forged()[ethernetSize+headerSize(to):]
	network := "udp4"
	if to.Is6() {
		network = "udp6"
	}
	return sender.Socket(network).SendTo(string(udp[geneveAt:])+more, netip.AddrPortFrom(to, binary.BigEndian.Uint16(udp[2:])))
}

// masquerade gives packets of pods the node's address, as many network plugins do.
func (c *cluster) masquerade(t *testing.T, n *node) {
	t.Helper()
	rules := fmt.Sprintf(`table ip cni {
	chain postrouting {
		type nat hook postrouting priority srcnat;
		oifname %q ip saddr != %s masquerade;
	}
}`, uplink, nodeAddrs(1)[0])
	if _, err := n.Output("nft", rules); err != nil {
		t.Fatal(failure(err))
	}
}
