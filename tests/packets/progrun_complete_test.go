package packets_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/tier"
)

// checksumComplete runs a program on a packet whose sum the device has computed
// (CHECKSUM_COMPLETE), and has the kernel check that the program has kept it right:
// BPF_F_TEST_SKB_CHECKSUM_COMPLETE, Linux 6.11 and newer.
const checksumComplete = 1 << 2

// runComplete returns the verdict on a packet and the packet as it is then, or EBADMSG when
// the sum of the whole packet is wrong afterwards.
func (b *bench) runComplete(t *testing.T, program string, packet []byte) (verdict uint32, out []byte, err error) {
	t.Helper()
	p := b.programs.program(t, program)
	options := &ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+256), Flags: checksumComplete}
	err = b.host.Run(func() (err error) {
		verdict, err = p.Run(options)
		return err
	})
	return verdict, options.DataOut, err
}

// newCompleteBench makes a bench of a kernel that can check sums.
func newCompleteBench(t *testing.T) *bench {
	t.Helper()
	b := newTunnelBench(t)
	if _, _, err := b.runComplete(t, "bl_ingress", untouched()["ARP"]); errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported) {
		t.Skip("the kernel cannot check sums of whole packets (Linux 6.11)")
	} else if err != nil {
		t.Fatal(err)
	}
	return b
}

// wantComplete runs a program and fails the test unless the packet changes and its sum is
// kept.
func (b *bench) wantComplete(t *testing.T, what, program string, packet []byte) []byte {
	t.Helper()
	_, out, err := b.runComplete(t, program, packet)
	if err != nil {
		t.Errorf("%s: %v", what, err)
	} else if slices.Equal(out, packet) {
		t.Errorf("%s: nothing has changed", what)
	}
	return out
}

// TestCompleteChecksums: packets with CHECKSUM_COMPLETE have a right sum after each translation, so
// the kernel does not compute it again.
func TestCompleteChecksums(t *testing.T) {
	t.Parallel()
	b := newCompleteBench(t)
	for name, f := range requests() {
		family := familyOf(f)
		b.wantComplete(t, name, "bl_ingress", f.bytes())
		reply := f
		reply.from, reply.to, reply.flags = backend[family], f.from, flagSYN|flagACK
		b.wantComplete(t, "reply of "+name, "bl_egress", reply.bytes())
		if len(f.options) > 0 {
			continue
		}
		b.wantComplete(t, "error about a reply of "+name, "bl_ingress", icmpError(f.from.Addr(), f.to.Addr(), withSource(reply, f.to)))
		b.wantComplete(t, "error about "+name, "bl_egress", icmpError(backend[family].Addr(), f.from.Addr(), withDestination(f, backend[family])))
	}
}

// TestCompleteChecksumsWithout: a datagram without a checksum of its own.
func TestCompleteChecksumsWithout(t *testing.T) {
	t.Parallel()
	b := newCompleteBench(t)
	for _, family := range families {
		for _, options := range []bool{false, true} {
			// A source port that is translated as well.
			for port := range uint16(2) {
				f := frame{from: netip.AddrPortFrom(crafted[family].Addr(), 3000+port), to: virtual[family], protocol: unix.IPPROTO_UDP,
					payload: "a payload that is longer than a TCP header"}
				if options && family == 4 {
					f.options = []byte{1, 1, 1, 0}
				} else if options {
					f.options, f.extension = extensions(f.protocol, 8, unix.IPPROTO_DSTOPTS), unix.IPPROTO_DSTOPTS
				}
				packet := with(f.bytes(), headerSize(f.to.Addr())+len(f.options)+6, 0, 0)
				b.wantComplete(t, fmt.Sprintf("IPv%d with options %v", family, options), "bl_ingress", packet)
			}
		}
	}
}

// TestCompleteChecksumsOfAnswers: the same of echo requests that the node answers. (Of an
// answer that has another length than its packet, the kernel drops the sum.)
func TestCompleteChecksumsOfAnswers(t *testing.T) {
	t.Parallel()
	b := newCompleteBench(t)
	for _, family := range families {
		echo := echoRequest(crafted[family].Addr(), virtual[family].Addr())
		b.wantComplete(t, fmt.Sprintf("echo request of IPv%d", family), "bl_ingress", echo)
	}
}

// TestCompleteChecksumsElsewhere: the same for packets forwarded to another node, whose TTL is
// decremented, with SNAT and in the tunnel; and for decapsulated ones.
func TestCompleteChecksumsElsewhere(t *testing.T) {
	tier.Slow(t, "TestTransfer has the checksums of all packets checked")
	t.Parallel()
	newCompleteBench(t)
	for _, tunnel := range []bool{false, true} {
		x := newXDPBench(t)
		if tunnel {
			x.serveByTunnel(t, 6)
		}
		b := x.tc()
		for name, f := range xdpRequests() {
			b.wantComplete(t, fmt.Sprintf("%s, by a tunnel %v", name, tunnel), "bl_ingress", f.bytes())
			if tunnel {
				continue
			}
			reply := f
			reply.from, reply.to, reply.flags = xdpBackend[familyOf(f)], netip.AddrPortFrom(nodeAddrOf(f), f.from.Port()), flagSYN|flagACK
			b.wantComplete(t, "reply of "+name, "bl_ingress", reply.bytes())
		}
	}
	b := newCompleteBench(t)
	for _, outer := range families {
		for name, f := range requests() {
			f.payload = "a payload that needs no padding behind an IPv6 header"
			packet := toThisNode(outer, backend[familyOf(f)], f.bytes())
			b.wantComplete(t, fmt.Sprintf("%s in the tunnel over IPv%d", name, outer), "bl_ingress", packet)
		}
	}
}

func withSource(f frame, from netip.AddrPort) frame    { f.from = from; return f }
func withDestination(f frame, to netip.AddrPort) frame { f.to = to; return f }

// icmpError returns the error that a router sends of which f is the reason: time exceeded.
func icmpError(from, to netip.Addr, f frame) []byte {
	quote := f.bytes()[ethernetSize:]
	message := append([]byte{11, 0, 0, 0, 0, 0, 0, 0}, quote[:headerSize(to)+8]...)
	if to.Is6() {
		message[0] = 3
	}
	return icmpPacket(from, to, message)
}

func echoRequest(from, to netip.Addr) []byte {
	message := []byte{8, 0, 0, 0, 0, 1, 0, 1, 'p', 'i', 'n', 'g'}
	if to.Is6() {
		message[0] = 128
	}
	return icmpPacket(from, to, message)
}

// icmpPacket returns a packet with a message whose checksum is filled in.
func icmpPacket(from, to netip.Addr, message []byte) []byte {
	pseudo, protocol := uint16(0), byte(unix.IPPROTO_ICMP)
	if to.Is6() {
		protocol = unix.IPPROTO_ICMPV6
		pseudo = sum(uint32(protocol)+uint32(len(message)), slices.Concat(from.AsSlice(), to.AsSlice()))
	}
	binary.BigEndian.PutUint16(message[2:], ^sum(uint32(pseudo), message))
	if to.Is6() {
		header := make([]byte, 40)
		header[0], header[6], header[7] = 6<<4, protocol, 64
		binary.BigEndian.PutUint16(header[4:], uint16(len(message)))
		copy(header[8:], from.AsSlice())
		copy(header[24:], to.AsSlice())
		return slices.Concat(ethernet(unix.ETH_P_IPV6), header, message)
	}
	header := make([]byte, 20)
	header[0], header[8], header[9] = 4<<4|5, 64, protocol
	binary.BigEndian.PutUint16(header[2:], uint16(20+len(message)))
	copy(header[12:], from.AsSlice())
	copy(header[16:], to.AsSlice())
	binary.BigEndian.PutUint16(header[10:], ^sum(0, header))
	return slices.Concat(ethernet(unix.ETH_P_IP), header, message)
}
