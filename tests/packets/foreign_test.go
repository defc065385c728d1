package packets_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestFramesOfOthers: frames for another host, which a promiscuous device receives, for all or many
// hosts, and frames of a VLAN are not translated. A priority tag (VLAN 0) changes nothing, and is not forwarded.
func TestFramesOfOthers(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"off", "native", "generic"} {
		t.Run("XDP "+mode, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, mode == "native")
			c := newClusterFor(t, mode)
			c.serve(t, append(c.service(1, "near", "", []endpoint{local}), c.service(2, "far", "", []endpoint{remote})...), "--xdp", mode)
			c.checkFrames(t)
		})
	}
}

// checkFrames sends frames for node 1 and for others to its uplink.
func (c *cluster) checkFrames(t *testing.T) {
	t.Helper()
	own := c.macOf(t, c.nodes[0].Namespace, uplink)
	err := c.nodes[0].Run(func() error {
		link, err := netlink.LinkByName(uplink)
		if err != nil {
			return err
		}
		return netlink.SetPromiscOn(link)
	})
	if err != nil {
		t.Fatal(err)
	}
	plain := func(p []byte) []byte { return toMAC(p, own) }
	port := uint16(5000)
	for i, e := range []endpoint{local, remote} {
		for _, network := range networks[2:] {
			for _, kind := range []struct {
				name   string
				change func(packet []byte) []byte
				served bool
			}{
				{"plain", plain, true},
				{"with a priority", func(p []byte) []byte { return tagged(toMAC(p, own), 0) }, true},
				{"of a VLAN", func(p []byte) []byte { return tagged(toMAC(p, own), 5) }, false},
				{"for another host", func(p []byte) []byte { return toMAC(p, net.HardwareAddr{2, 0, 0, 0, 0, 9}) }, false},
				{"for all hosts", func(p []byte) []byte { return toMAC(p, net.HardwareAddr{255, 255, 255, 255, 255, 255}) }, false},
				{"for many hosts", func(p []byte) []byte { return toMAC(p, net.HardwareAddr{1, 0, 0x5e, 1, 2, 3}) }, false},
			} {
				wire := c.nodes[e.node-1].Capture()
				port++
				f := frame{
					from: netip.AddrPortFrom(clientAddrs.of(network), port), to: nodePort(network, i+1),
					protocol: unix.IPPROTO_UDP, payload: fmt.Sprintf("payload %d, longer than a TCP header", port),
				}
				unserved := f.payload
				if !kind.served {
					if err := sendFrame(c.router, "node1", kind.change(f.bytes())); err != nil {
						t.Fatal(err)
					}
					// One that is served comes after it.
					port++
					f.from, f.payload = netip.AddrPortFrom(f.from.Addr(), port), "later, and longer than a TCP header"
					kind.change = plain
				}
				client := boundSocket(t, c.client, network, port)
				got, _, err := client.ReceiveAfter(func() error { return sendFrame(c.router, "node1", kind.change(f.bytes())) })
				if err != nil {
					t.Errorf("%s %s to %s: %q, %v", network, kind.name, e.server(), got, err)
				}
				if !kind.served && wire.Saw(c.addrsOf(e).of(network), unserved) {
					t.Errorf("%s %s was sent on to %s", network, kind.name, e.server())
				}
			}
		}
	}
}

func (c *cluster) macOf(t *testing.T, n *lab.Namespace, device string) (mac net.HardwareAddr) {
	t.Helper()
	err := n.Run(func() error {
		link, err := netlink.LinkByName(device)
		if err == nil {
			mac = link.Attrs().HardwareAddr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

// sendFrame sends a frame out by a device.
func sendFrame(n *lab.Namespace, device string, frame []byte) error {
	return n.Run(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		fd, err := packetSocket(link.Attrs().Index)
		if err != nil {
			return err
		}
		_, err = unix.Write(fd, frame)
		return errors.Join(err, unix.Close(fd))
	})
}

// sendUntil sends a packet, and again each second until done returns true: queues on the way may
// drop it. It returns how many it has sent.
func sendUntil(t *testing.T, what string, send func() error, done func() bool) (sent int) {
	t.Helper()
	var last time.Time
	lab.Eventually(t, what, func() bool {
		if sent > 0 && done() {
			return true
		}
		if time.Since(last) > time.Second {
			if err := send(); err != nil {
				t.Fatal(err)
			}
			sent, last = sent+1, time.Now()
		}
		return false
	})
	return sent
}

// TestSegmentsTooBig: a client whose segments exceed the MTU of the path to the other node gets
// fragmentation needed, also when GRO has merged them.
func TestSegmentsTooBig(t *testing.T) {
	c := newCluster(t, true)
	c.serveAll(t)
	startAgent(t, c.nodes[0], c.service(1, "far", "", []endpoint{remote}))
	for _, network := range networks[:2] {
		c.learnsMTU(t, network)
	}
}

// TestDatagramTooBig: a flow that begins with a datagram too big for the way to the other node
// gets packet too big, and its next one is answered.
func TestDatagramTooBig(t *testing.T) {
	c := newCluster(t, true)
	c.serveAll(t)
	startAgent(t, c.nodes[0], c.service(1, "far", "", []endpoint{remote}))
	for _, network := range networks[2:] {
		to := nodePort(network, 1)
		connect(t, c.client, network, to) // the kernel knows the next hop from now on
		s := c.client.Socket(network)
		if err := s.Connect(to); err != nil {
			t.Fatal(err)
		}
		if _, err := talkUDP(s, strings.Repeat("x", 1452)); !errors.Is(err, unix.EMSGSIZE) {
			t.Fatalf("%s: a datagram of 1452 bytes: %v, want %v", network, err, unix.EMSGSIZE)
		}
		if _, err := talkUDP(s, "small"); err != nil {
			t.Errorf("%s: the next datagram: %v", network, err)
		}
	}
}

// TestDatagramFragmented: datagrams without "don't fragment" that are too big for the way to the other
// node arrive in fragments, as the kernel's would: whole ones and those that the client has sent in
// fragments itself, also when they begin the flow. The client is not told of the way's MTU.
func TestDatagramFragmented(t *testing.T) {
	t.Parallel()
	t.Run("overlay", func(t *testing.T) {
		t.Parallel()
		c := newCluster(t, true)
		c.serveAll(t)
		startAgent(t, c.nodes[0], c.service(1, "far", "", []endpoint{remote}))
		c.sendFragmentable(t)
	})
	t.Run("tunnel", func(t *testing.T) {
		t.Parallel()
		c := newCluster(t, false)
		c.serveDSR(t, c.service(1, "far", "", []endpoint{remote}))
		c.sendFragmentable(t)
		c.checkDirect(t)
	})
}

// sendFragmentable sends datagrams without "don't fragment" to the first Service. The client
// computes their checksums: those that a device is to compute go over one packet alone.
func (c *cluster) sendFragmentable(t *testing.T) {
	t.Helper()
	c.client.SetChecksumOffload(false)
	for _, size := range []int{1452, 1472, 1473, 1900} {
		s := c.client.Socket("udp4")
		if err := s.SetOption(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT); err != nil {
			t.Fatal(err)
		}
		if err := s.Connect(nodePort("udp4", 1)); err != nil {
			t.Fatal(err)
		}
		payload := strings.Repeat("datagram", size/8+1)[:size]
		for range 3 {
			if got, err := talkUDP(s, payload); err != nil || got.name != remote.server() {
				t.Errorf("a datagram of %d bytes: answered by %q, %v", size, got.name, err)
			}
		}
		if mtu, err := s.Option(unix.IPPROTO_IP, unix.IP_MTU); err != nil || mtu != 1500 {
			t.Errorf("after a datagram of %d bytes, the client takes the way's MTU for %d, %v, want 1500", size, mtu, err)
		}
	}
}

// learnsMTU sends much data over a connection and checks the path MTU that the client has learned.
func (c *cluster) learnsMTU(t *testing.T, network string) {
	t.Helper()
	s, _ := connect(t, c.client, network, nodePort(network, 1))
	for range 20 {
		if err := s.Send(string(make([]byte, 16<<10))); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < 16<<10; {
			part, _, err := s.Receive()
			if err != nil {
				t.Fatalf("%s: after %d bytes: %v", network, got, err)
			}
			got += len(part)
		}
	}
	level, option := unix.IPPROTO_IP, unix.IP_MTU
	if network == "tcp6" {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	if mtu, err := s.Option(level, option); err != nil || mtu != 1450 {
		t.Errorf("%s: the client takes the way's MTU for %d, %v, want 1450", network, mtu, err)
	}
}
