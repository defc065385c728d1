package packets_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/lab"
)

// The chunks of SCTP that begin an association.
const (
	sctpInit    = 1
	sctpInitAck = 2
)

// sctpPacket is an SCTP packet as a raw socket sends it, from its header on. The
// kernel here has no SCTP of its own.
type sctpPacket struct {
	from, to uint16
	chunk    byte
	payload  string
}

// bytes returns the packet with a right checksum.
func (p sctpPacket) bytes() []byte {
	b := make([]byte, 16)
	binary.BigEndian.PutUint16(b[0:], p.from)
	binary.BigEndian.PutUint16(b[2:], p.to)
	b[12] = p.chunk
	binary.BigEndian.PutUint16(b[14:], uint16(4+len(p.payload)))
	b = append(b, p.payload...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// sctpSocket is a raw socket for SCTP packets of a family.
type sctpSocket struct {
	*lab.Socket
	header int // bytes of IP header that come with each packet
}

func newSCTPSocket(n *lab.Namespace, family int) sctpSocket {
	s := sctpSocket{n.RawSocket(family, unix.SOCK_RAW, unix.IPPROTO_SCTP), 0}
	if family == unix.AF_INET {
		s.header = 20
	}
	return s
}

// receiveAfter returns the packet that comes after sending, and who sent it.
func (s sctpSocket) receiveAfter(send func() error) ([]byte, netip.Addr, error) {
	text, from, err := s.ReceiveAfter(send)
	if err != nil {
		return nil, netip.Addr{}, err
	}
	return []byte(text)[s.header:], from.Addr(), nil
}

// send sends from the SCTP header on.
func (s sctpSocket) send(packet []byte, to netip.Addr) error {
	return s.SendTo(string(packet), netip.AddrPortFrom(to, 0))
}

// sctpService returns the manifests of a Service whose one port is of SCTP.
func (c *cluster) sctpService(i int, name string, endpoints ...endpoint) []string {
	manifests := []string{lab.Service(name, fmt.Sprintf("{type: NodePort, clusterIPs: [%q, %q],"+
		" ports: [{port: 80, protocol: SCTP, nodePort: %d}]}", clusterIP(i)[0], clusterIP(i)[1], 30100+i))}
	for family := range 2 {
		for _, e := range endpoints {
			manifests = append(manifests, lab.SliceOf(name, fmt.Sprintf("%d/SCTP", backendPort),
				fmt.Sprintf("{addresses: [%q], nodeName: node%d}", c.addrsOf(e)[family], e.node)))
		}
	}
	return manifests
}

func (c *cluster) podOf(e endpoint) *lab.Namespace {
	if e.place == "routed" {
		return c.nodes[e.node-1].routed
	}
	return c.nodes[e.node-1].bridged
}

var sctpFamilies = map[string]int{"udp4": unix.AF_INET, "udp6": unix.AF_INET6}

// TestSCTP: an association goes to a backend here or on the other node and back,
// and every packet arrives with a right checksum.
func TestSCTP(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string {
		return append(c.sctpService(1, "near", local), c.sctpService(2, "far", remote)...)
	})
	for network, family := range sctpFamilies {
		client, node := newSCTPSocket(c.client, family), newSCTPSocket(c.nodes[0].Namespace, family)
		for i, e := range []endpoint{local, remote} {
			backend := newSCTPSocket(c.podOf(e), family)
			c.explainSCTP(t, node, backend, c.addrsOf(e).of(network), netip.AddrPortFrom(clusterIP(i+1).of(network), 80), nodePort(network, i+1))
			for _, to := range []netip.AddrPort{nodePort(network, i+1), netip.AddrPortFrom(clusterIP(i+1).of(network), 80)} {
				if err := associate(client, backend, to); err != nil {
					t.Errorf("%s to %s at %s: %v", network, e.server(), to, err)
				}
			}
		}
	}
}

// explainSCTP: of a process of the node no connect program sees SCTP; its packets to a Service are explained as they leave
// the node, and then sent. Those to an address of the node meet no program.
func (c *cluster) explainSCTP(t *testing.T, node, backend sctpSocket, at netip.Addr, to, own netip.AddrPort) {
	t.Helper()
	said := c.explainNode(t, inspect.ExplainOptions{To: to, Protocol: model.SCTP})
	if said.Verdict != inspect.VerdictServed || said.Client.Kind != "node-packet" || said.Chosen.Address != at {
		t.Errorf("of the node to %s: %+v", to, said.Steps)
	}
	got, source, err := backend.receiveAfter(func() error {
		return node.send(sctpPacket{said.Client.Port, to.Port(), sctpInit, "x"}.bytes(), to.Addr())
	})
	if err != nil || netip.AddrPortFrom(source, binary.BigEndian.Uint16(got)) != said.Path.Source {
		t.Errorf("of the node to %s: %s has seen %s, %v, explained as %+v", to, at, source, err, said.Steps)
	}
	if said := c.explainNode(t, inspect.ExplainOptions{To: own, Protocol: model.SCTP}); !said.Unseen {
		t.Errorf("of the node to %s: %+v", own, said.Steps)
	}
}

// associate has packets of some sizes go to a Service and come back.
func associate(client, backend sctpSocket, to netip.AddrPort) error {
	const port = 5001
	for _, size := range []int{0, 1, 2, 3, 1000} {
		payload := strings.Repeat("x", size)
		got, source, err := backend.receiveAfter(func() error {
			return client.send(sctpPacket{port, to.Port(), sctpInit, payload}.bytes(), to.Addr())
		})
		if err != nil {
			return fmt.Errorf("at the backend, %d bytes: %w", size, err)
		}
		sourcePort := binary.BigEndian.Uint16(got)
		if want := (sctpPacket{sourcePort, backendPort, sctpInit, payload}).bytes(); !bytes.Equal(got, want) {
			return fmt.Errorf("at the backend: % x, want % x", got, want)
		}
		got, source, err = client.receiveAfter(func() error {
			return backend.send(sctpPacket{backendPort, sourcePort, sctpInitAck, payload}.bytes(), source)
		})
		if err != nil {
			return fmt.Errorf("at the client, %d bytes: %w", size, err)
		}
		if want := (sctpPacket{to.Port(), port, sctpInitAck, payload}).bytes(); !bytes.Equal(got, want) || source != to.Addr() {
			return fmt.Errorf("at the client from %s: % x, want % x", source, got, want)
		}
	}
	return nil
}

// TestSCTPRefused: without endpoints the client is told by ICMP.
func TestSCTPRefused(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string { return c.sctpService(1, "none") })
	for network, icmp := range map[string]struct {
		protocol, header int
		unreachable      string
	}{
		"udp4": {unix.IPPROTO_ICMP, 20, "\x03\x03"},
		"udp6": {unix.IPPROTO_ICMPV6, 0, "\x01\x04"},
	} {
		family := sctpFamilies[network]
		errs := c.client.RawSocket(family, unix.SOCK_RAW, icmp.protocol)
		to := nodePort(network, 1)
		request := sctpPacket{5001, to.Port(), sctpInit, ""}.bytes()
		s := newSCTPSocket(c.client, family)
		for {
			answer, from, err := errs.ReceiveAfter(func() error { return s.send(request, to.Addr()) })
			if err != nil {
				t.Errorf("%s: %v", network, err)
				break
			}
			if !strings.HasPrefix(answer[icmp.header:], icmp.unreachable) {
				continue // neighbour discovery
			}
			if from.Addr() != to.Addr() || !strings.HasSuffix(answer, string(request[:8])) {
				t.Errorf("%s: refused by %s: % x", network, from, answer)
			}
			break
		}
	}
}

// TestSCTPOffloaded: a checksum that is offloaded to the sending device stays unchanged.
func TestSCTPOffloaded(t *testing.T) {
	t.Parallel()
	c, _ := serveCluster(t, func(c *cluster) []string {
		return append(c.sctpService(1, "near", local), c.sctpService(2, "far", remote)...)
	})
	for network, family := range sctpFamilies {
		for i, e := range []endpoint{local, remote} {
			backend := newSCTPSocket(c.podOf(e), family)
			to := nodePort(network, i+1)
			request := sctpPacket{5001, to.Port(), sctpInit, ""}.bytes()
			copy(request[8:], "\x01\x02\x03\x04")
			f := frame{from: netip.AddrPortFrom(clientAddrs.of(network), 5001), to: to, protocol: unix.IPPROTO_SCTP, payload: string(request[8:])}
			packet := f.bytes()
			copy(packet[len(packet)-len(request):], request)
			got, _, err := backend.receiveAfter(func() error { return c.sendUnsummed(packet, len(packet)-len(request), 8) })
			if err != nil {
				t.Errorf("%s to %s: %v", network, e.server(), err)
				continue
			}
			want := bytes.Clone(request)
			copy(want, got[:2])
			binary.BigEndian.PutUint16(want[2:], backendPort)
			if !bytes.Equal(got, want) {
				t.Errorf("%s to %s: % x, want % x", network, e.server(), got, want)
			}
		}
	}
}

// sendUnsummed sends a packet from the client to its router, as of a sender that
// leaves the checksum to the device: that of what begins at start, at offset in it.
func (c *cluster) sendUnsummed(packet []byte, start, offset int) error {
	// struct virtio_net_hdr: flags, type, four lengths.
	header := make([]byte, 10)
	header[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
	binary.NativeEndian.PutUint16(header[6:], uint16(start))
	binary.NativeEndian.PutUint16(header[8:], uint16(offset))
	_, router, err := device(c.router, "clients")
	if err != nil {
		return err
	}
	index, _, err := device(c.client, uplink)
	if err != nil {
		return err
	}
	return c.client.Run(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		copy(packet, router)
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.Sendto(fd, slices.Concat(header, packet), 0, &unix.SockaddrLinklayer{Ifindex: index}))
	})
}

// device returns the index and the address of a device.
func device(n *lab.Namespace, name string) (index int, address net.HardwareAddr, err error) {
	err = n.Run(func() error {
		link, err := netlink.LinkByName(name)
		if err == nil {
			index, address = link.Attrs().Index, link.Attrs().HardwareAddr
		}
		return err
	})
	return index, address, err
}
