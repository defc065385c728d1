package packets_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// A burst is so many datagrams that a process hands to the kernel as one (UDP_SEGMENT), as QUIC does. On a virtual
// device it is one packet.
const (
	burstDatagrams = 8
	burstSize      = 1200 // of each datagram, which has room in a tunnel
	burstPort      = 8081
	burstPatience  = 3 * time.Second
	burstTries     = 5
)

// makeBurst returns datagrams that differ, of which the first has a byte.
func makeBurst(first byte) []byte {
	var b []byte
	for i := range burstDatagrams {
		b = append(b, bytes.Repeat([]byte{first + byte(i)}, burstSize)...)
	}
	return b
}

var (
	burstAsked    = makeBurst('a')
	burstAnswered = makeBurst('A')
)

// sendsBursts has what is written to a socket sent as a burst.
func sendsBursts(conn *net.UDPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, burstSize) })
	return errors.Join(err, failed)
}

// serveBursts starts a server at each address that answers a burst by one.
func serveBursts(t *testing.T, n *lab.Namespace, at addrs) {
	t.Helper()
	for _, addr := range at {
		var conn *net.UDPConn
		err := n.Run(func() (err error) {
			if conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, burstPort))); err != nil {
				return err
			}
			t.Cleanup(func() { conn.Close() })
			return sendsBursts(conn)
		})
		if err != nil {
			t.Fatal(err)
		}
		go answerBursts(conn)
	}
}

func answerBursts(conn *net.UDPConn) {
	got := make(map[netip.AddrPort][]byte)
	buf := make([]byte, 65536)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if got[from] = append(got[from], buf[:n]...); bytes.Equal(got[from], burstAsked) {
			_, _ = conn.WriteToUDPAddrPort(burstAnswered, from) // a client that went away misses it
		}
	}
}

// askBurst sends a burst and receives the answer, each in datagrams of its own. The machine may drop some: see
// [lab.Socket].
func askBurst(n *lab.Namespace, to netip.AddrPort) (err error) {
	for range burstTries {
		if err = tryBurst(n, to); err == nil {
			break
		}
	}
	return err
}

func tryBurst(n *lab.Namespace, to netip.AddrPort) error {
	var conn *net.UDPConn
	err := n.Run(func() (err error) {
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := errors.Join(sendsBursts(conn), conn.SetReadDeadline(time.Now().Add(burstPatience))); err != nil {
		return err
	}
	if _, err := conn.Write(burstAsked); err != nil {
		return err
	}
	buf := make([]byte, 65536)
	for i := range burstDatagrams {
		n, err := conn.Read(buf)
		if err != nil {
			return fmt.Errorf("after %d datagrams of %d: %w", i, burstDatagrams, err)
		}
		if !bytes.Equal(buf[:n], burstAnswered[i*burstSize:(i+1)*burstSize]) {
			return fmt.Errorf("datagram %d of the answer has %d bytes, or others", i, n)
		}
	}
	return nil
}

// TestUDPSegments: datagrams that the kernel carries as one packet (GSO) reach each kind of endpoint one by one, and so do
// those of the answer. For the tunnel the node's uplink separates them, as a network card does.
func TestUDPSegments(t *testing.T) {
	for _, tc := range []struct {
		name    string
		overlay bool
		dsr     bool
		flags   []string
	}{
		{name: "overlay", overlay: true},
		{name: "dsr", dsr: true},
		{name: "generic XDP", flags: []string{"--xdp", "generic"}},
		{name: "masquerade", flags: []string{"--masquerade-all"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tier.Variant(t, tc.overlay)
			t.Parallel()
			c := newCluster(t, tc.overlay)
			endpoints := map[string]struct {
				at   addrs
				node *node
				in   *lab.Namespace
			}{
				"here":              {c.nodes[0].routedAddrs(), c.nodes[0], c.nodes[0].routed},
				"here, on the node": {nodeAddrs(1), c.nodes[0], c.nodes[0].Namespace},
				"elsewhere":         {c.nodes[1].routedAddrs(), c.nodes[1], c.nodes[1].routed},
			}
			var manifests []string
			frontends := make(map[string]addrs)
			for name, e := range endpoints {
				serveBursts(t, e.in, e.at)
				service := fmt.Sprintf("burst-%d", len(frontends))
				frontends[name] = clusterIP(50 + len(frontends))
				manifests = append(manifests, lab.Service(service, fmt.Sprintf("{clusterIPs: [%q, %q], ports: [{name: u, protocol: UDP, port: 80}]}",
					frontends[name][0], frontends[name][1])))
				for family := range 2 {
					manifests = append(manifests, lab.SliceOf(service, fmt.Sprintf("u:%d/UDP", burstPort),
						fmt.Sprintf("{addresses: [%q], nodeName: %s}", e.at[family], e.node.name())))
				}
			}
			if tc.dsr {
				c.nodes[0].SetFeatures(false, uplink, "tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation")
				c.serveDSR(t, manifests, tc.flags...)
			} else {
				c.serve(t, manifests, tc.flags...)
			}
			for name, frontend := range frontends {
				for _, addr := range frontend {
					if err := askBurst(c.client, netip.AddrPortFrom(addr, 80)); err != nil {
						t.Errorf("endpoint %s, by %s: %v", name, addr, err)
					}
				}
			}
		})
	}
}
