package packets_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// watchChecksums watches every namespace of the cluster.
func (c *cluster) watchChecksums(t *testing.T) {
	t.Helper()
	for i, name := range c.names() {
		watchChecksums(t, name, c.namespaces()[i])
	}
}

// watchChecksums fails the test when a packet that passes a device of the namespace
// has a wrong checksum, until the test ends. Packets whose checksum is left to the
// receiver are not looked at.
func watchChecksums(t *testing.T, name string, n *lab.Namespace) {
	t.Helper()
	fd := -1
	err := n.Run(func() (err error) {
		all := binary.NativeEndian.Uint16([]byte{unix.ETH_P_ALL >> 8, unix.ETH_P_ALL & 0xff})
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		wake := unix.Timeval{Usec: 50_000}
		return errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wake),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1))
	})
	if err != nil {
		t.Fatalf("watch %s: %v", name, err)
	}
	var ended atomic.Bool
	done := make(chan error)
	go func() { done <- readPackets(fd, &ended) }()
	t.Cleanup(func() {
		ended.Store(true)
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		unix.Close(fd)
	})
}

// readPackets checks packets until it is told to end and none is left. It returns
// the first fault and how many there were.
func readPackets(fd int, ended *atomic.Bool) error {
	packet, control := make([]byte, 1<<16), make([]byte, 256)
	var first error
	faults := 0
	for {
		last := ended.Load()
		size, controlSize, _, _, err := unix.Recvmsg(fd, packet, control, 0)
		if err != nil {
			if last {
				break
			}
			continue // nothing in a while
		}
		if checksumLater(control[:controlSize]) {
			continue
		}
		if err := checkPacket(packet[:size]); err != nil {
			faults++
			if first == nil {
				first = err
			}
		}
	}
	if faults > 0 {
		return fmt.Errorf("%d packets with a wrong checksum, the first: %w", faults, first)
	}
	return nil
}

// auxdata is struct tpacket_auxdata.
type auxdata struct {
	status, size, captured uint32
	mac, net, vlan, vlanID uint16
}

// checksumLater reports whether the kernel says that the checksum is not made yet.
func checksumLater(control []byte) bool {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) == 0 || len(messages[0].Data) < int(unsafe.Sizeof(auxdata{})) {
		return false
	}
	return (*auxdata)(unsafe.Pointer(&messages[0].Data[0])).status&unix.TP_STATUS_CSUMNOTREADY != 0
}

// checkPacket checks the checksums of an IP packet and of the TCP, UDP or ICMP
// in it.
func checkPacket(p []byte) error {
	if len(p) < 20 {
		return nil
	}
	switch p[0] >> 4 {
	case 4:
		return checkIPv4(p)
	case 6:
		return checkIPv6(p)
	}
	return nil
}

func checkIPv4(p []byte) error {
	header, total := int(p[0]&0xf)*4, int(binary.BigEndian.Uint16(p[2:]))
	if header < 20 || total < header || total > len(p) {
		return fmt.Errorf("bad IPv4 lengths: % x", p[:20])
	}
	if sum(0, p[:header]) != 0xffff {
		return fmt.Errorf("IPv4 header: % x", p[:header])
	}
	if binary.BigEndian.Uint16(p[6:])&0x3fff != 0 {
		return nil // a fragment
	}
	segment := p[header:total]
	pseudo := sum(uint32(p[9])+uint32(len(segment)), p[12:20])
	return checkSegment(p[9], uint32(pseudo), segment)
}

func checkIPv6(p []byte) error {
	if len(p) < 40 {
		return errors.New("short IPv6 header")
	}
	size := int(binary.BigEndian.Uint16(p[4:]))
	if 40+size > len(p) {
		return fmt.Errorf("bad IPv6 length: % x", p[:40])
	}
	segment := p[40 : 40+size]
	pseudo := sum(uint32(p[6])+uint32(size), p[8:40])
	return checkSegment(p[6], uint32(pseudo), segment)
}

func checkSegment(protocol byte, pseudo uint32, segment []byte) error {
	switch protocol {
	case unix.IPPROTO_ICMP:
		pseudo = 0
	case unix.IPPROTO_UDP:
		if len(segment) >= 8 && segment[6] == 0 && segment[7] == 0 {
			return nil // none, as allowed for tunnels
		}
	case unix.IPPROTO_TCP, unix.IPPROTO_ICMPV6:
	default:
		return nil
	}
	if sum(pseudo, segment) != 0xffff {
		return fmt.Errorf("protocol %d: % x", protocol, segment[:min(len(segment), 64)])
	}
	return nil
}

// sum is the Internet checksum's sum, folded: 0xffff over what holds a right
// checksum.
func sum(start uint32, bytes []byte) uint16 {
	total := uint64(start)
	for ; len(bytes) > 3; bytes = bytes[4:] {
		total += uint64(binary.BigEndian.Uint32(bytes))
	}
	var rest [4]byte
	copy(rest[:], bytes)
	total += uint64(binary.BigEndian.Uint32(rest[:]))
	for total > 0xffff {
		total = total&0xffff + total>>16
	}
	return uint16(total)
}

// TestChecksum: the check tells right checksums from wrong ones.
func TestChecksum(t *testing.T) {
	t.Parallel()
	packet := []byte{0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
		0, 1, 0, 2, 0, 9, 0, 0, 'x'}
	binary.BigEndian.PutUint16(packet[10:], ^sum(0, packet[:20]))
	pseudo := sum(17+9, packet[12:20])
	binary.BigEndian.PutUint16(packet[26:], ^sum(uint32(pseudo), packet[20:]))
	if err := checkPacket(packet); err != nil {
		t.Fatal(err)
	}
	for i := range packet {
		if i == 0 || i == 1 || i == 6 {
			continue // version, fragment: another kind of packet
		}
		packet[i] ^= 4
		if checkPacket(packet) == nil {
			t.Errorf("a change of byte %d is not seen", i)
		}
		packet[i] ^= 4
	}
}
