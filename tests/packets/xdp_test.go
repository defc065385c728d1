package packets_test

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// newXDPCluster makes a cluster whose devices can serve by XDP: checksums are made by
// the senders, as on a wire, and the router takes what XDP sends.
func newXDPCluster(t *testing.T, withOverlay bool) *cluster {
	t.Helper()
	c := newCluster(t, withOverlay)
	for _, n := range c.namespaces() {
		n.SetChecksumOffload(false)
	}
	for _, n := range c.nodes {
		c.router.PassXDP(n.name())
	}
	return c
}

// newClusterFor makes a cluster without an overlay whose devices can serve by XDP in a mode.
func newClusterFor(t *testing.T, xdp string) *cluster {
	t.Helper()
	if xdp == "off" {
		return newCluster(t, false)
	}
	return newXDPCluster(t, false)
}

// sentByXDP returns how many packets XDP has sent on at a node.
func sentByXDP(t *testing.T, n *node) uint64 {
	t.Helper()
	return eventCount(t, n, "xdp_sent")
}

// pinned opens a map of the agent with that BPF file system; it is closed when the test ends.
func pinned(t testing.TB, bpffs, name string) *ebpf.Map {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(datapath.Dir(bpffs), name), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func withMaps[T any](t *testing.T, n *node, read func(*bpfmap.Maps) T) T {
	t.Helper()
	maps, err := bpfmap.Open(datapath.Dir(n.BPFFS))
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	return read(maps)
}

// TestXDPReach is the table again, with XDP in the device's driver and in the
// kernel's receive path. The endpoints on the other node are reached by XDP, except
// from a driver through a tunnel.
func TestXDPReach(t *testing.T) {
	t.Parallel()
	for i, tc := range []struct{ mode, routing string }{
		{"native", "routes"}, {"native", "overlay"}, {"generic", "overlay"},
	} {
		t.Run(tc.mode+" over "+tc.routing, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, i != 1)
			c := newXDPCluster(t, tc.routing == "overlay")
			manifests, rows := c.table()
			rows = tier.Share(t, rows, i/2, 2)
			c.serve(t, manifests, "--xdp", tc.mode)
			c.watchChecksums(t)
			c.checkAll(t, rows)
			tunnel := tc.routing == "overlay" && tc.mode == "native"
			remote := 0
			for _, r := range rows {
				if len(r.may) == 1 && r.may[0].node == 2 && (!tunnel || r.may[0].place == "host") {
					remote++
				}
			}
			// A request and a reply at the least.
			if sent := sentByXDP(t, c.nodes[0]); sent < 2*uint64(remote) {
				t.Errorf("XDP has sent %d packets for %d requests to the other node", sent, remote)
			}
		})
	}
}

// TestXDPTransfer: a lot goes through a node port to the other node and back, and
// nearly all of it by XDP.
func TestXDPTransfer(t *testing.T) {
	tier.Slow(t, "TestXDPReach goes the same ways with less")
	t.Parallel()
	for _, mode := range []string{"native", "generic"} {
		c := newXDPCluster(t, false)
		c.serve(t, c.service(1, "web", "", []endpoint{remote}), "--xdp", mode)
		for _, network := range networks[:2] {
			t.Run(strings.Join([]string{mode, network}, " "), func(t *testing.T) {
				before := sentByXDP(t, c.nodes[0])
				transfer(t, c.client, network, nodePort(network, 1))
				if sent, least := sentByXDP(t, c.nodes[0])-before, uint64(2*transferSize/1500); sent < least {
					t.Errorf("XDP has sent %d packets, want %d at least", sent, least)
				}
			})
		}
	}
}

// TestXDPUnfinished: packets whose checksums are left to the receiver are right in generic
// mode, too, also when they are many in one: the router makes the checksums of what the
// senders and XDP have left.
func TestXDPUnfinished(t *testing.T) {
	tier.Slow(t, "TestTransfer has the checksums of all packets checked")
	t.Parallel()
	c := newCluster(t, false)
	c.serve(t, c.service(1, "web", "", []endpoint{remote}), "--xdp", "generic")
	offloads[2].set(c)
	c.watchChecksums(t)
	for _, network := range networks[:2] {
		transfer(t, c.client, network, nodePort(network, 1))
	}
	for _, network := range networks[2:] {
		if _, err := ask(c.client, network, nodePort(network, 1), "a question"); err != nil {
			t.Errorf("%s: %v", network, err)
		}
	}
}

// TestXDPHandsOver: flows go on while agents without XDP and with each mode take turns.
func TestXDPHandsOver(t *testing.T) {
	tier.Slow(t, "TestRestart has flows that go on with another agent")
	t.Parallel()
	c := newXDPCluster(t, false)
	a := c.serve(t, c.service(1, "web", "", []endpoint{remote}), "--xdp", "native")
	flags := a.flags[:len(a.flags)-1]
	open := make(map[string]*lab.Socket)
	for _, network := range networks {
		open[network], _ = connect(t, c.client, network, nodePort(network, 1))
	}
	for turn := range 4 {
		mode := []string{"off", "generic", "native", "generic"}[turn]
		a.Signal(unix.SIGKILL)
		_ = a.Wait()
		a.flags = append(slices.Clone(flags), mode)
		a.start()
		for _, network := range networks {
			before := sentByXDP(t, c.nodes[0])
			if err := goesOn(open[network], network); err != nil {
				t.Errorf("%s with XDP %s: %v", network, mode, err)
			}
			if sent := sentByXDP(t, c.nodes[0]) - before; (sent > 0) != (mode != "off") {
				t.Errorf("%s with XDP %s: XDP has sent %d packets", network, mode, sent)
			}
		}
	}
}

// TestXDPHandsOverInATransfer: nothing of a transfer is lost when XDP leaves it to tc on
// its way.
func TestXDPHandsOverInATransfer(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ network, mode string }{{"tcp4", "native"}, {"tcp6", "native"}, {"tcp4", "generic"}} {
		t.Run(tc.mode+" "+tc.network, func(t *testing.T) {
			t.Parallel()
			tier.Slow(t, "TestXDPHandsOver shows the same of flows that are not in a hurry")
			c := newXDPCluster(t, false)
			a := c.serve(t, c.service(1, "web", "", []endpoint{remote}), "--xdp", tc.mode)
			done := make(chan struct{})
			go func() {
				defer close(done)
				transferOf(t, c.client, tc.network, nodePort(tc.network, 1), longTransfer)
			}()
			lab.Eventually(t, "the transfer goes by XDP", func() bool { return sentByXDP(t, c.nodes[0]) > 100 })
			a.Signal(unix.SIGKILL)
			_ = a.Wait()
			a.flags[len(a.flags)-1] = "off"
			a.start()
			<-done
		})
	}
}

// TestXDPAtTheMTU: XDP sends what fits the device; what is a byte longer gets the
// answer that tc gives it.
func TestXDPAtTheMTU(t *testing.T) {
	t.Parallel()
	c := newXDPCluster(t, false)
	c.serve(t, c.service(1, "web", "", []endpoint{remote}), "--xdp", "native")
	// A veth device takes a few bytes more than it sends.
	c.client.SetMTU(uplink, 1504)
	for _, device := range []string{"client", "clients", "nodes", "node1"} {
		c.router.SetMTU(device, 1504)
	}
	for _, network := range networks[2:] {
		t.Run(network, func(t *testing.T) {
			headers := 20 + 8
			if network == "udp6" {
				headers = 40 + 8
			}
			if _, err := ask(c.client, network, nodePort(network, 1), "neighbours are known now"); err != nil {
				t.Fatal(err)
			}
			before := sentByXDP(t, c.nodes[0])
			s := c.client.Socket(network)
			never := s.SetOption(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
			if network == "udp6" {
				never = s.SetOption(unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
			}
			if err := errors.Join(never, s.Connect(nodePort(network, 1))); err != nil {
				t.Fatal(err)
			}
			if err := s.Send(strings.Repeat("x", 1500-headers)); err != nil {
				t.Fatal(err)
			}
			lab.Eventually(t, "XDP sends a packet as long as the MTU", func() bool { return sentByXDP(t, c.nodes[0]) > before })
			lab.Eventually(t, "a packet longer than the MTU is answered", func() bool {
				return errors.Is(s.Send(strings.Repeat("x", 1501-headers)), unix.EMSGSIZE)
			})
		})
	}
}
