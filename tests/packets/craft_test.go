package packets_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	ethernetSize = 14
	flagFIN      = 0x01
	flagSYN      = 0x02
	flagRST      = 0x04
	flagACK      = 0x10
)

// frame is a packet to be made. Its checksums and lengths are right.
type frame struct {
	from, to netip.AddrPort
	protocol byte
	// options are IPv4 options; with IPv6, extension headers, of which the first is
	// of type extension.
	options   []byte
	extension byte
	more      string // options of TCP, in whole words
	flags     byte   // of TCP
	seq, ack  uint32 // of TCP
	payload   string
}

// bytes returns the packet with an Ethernet header.
func (f frame) bytes() []byte {
	if f.to.Addr().Is4() {
		return f.ipv4()
	}
	return f.ipv6()
}

func (f frame) ipv4() []byte {
	segment := f.segment()
	header := make([]byte, 20, 20+len(f.options))
	header = append(header, f.options...)
	header[0] = 4<<4 | byte(len(header)/4)
	binary.BigEndian.PutUint16(header[2:], uint16(len(header)+len(segment)))
	header[8], header[9] = 64, f.protocol
	copy(header[12:], f.from.Addr().AsSlice())
	copy(header[16:], f.to.Addr().AsSlice())
	binary.BigEndian.PutUint16(header[10:], ^sum(0, header))
	return slices.Concat(ethernet(unix.ETH_P_IP), header, segment)
}

func (f frame) ipv6() []byte {
	segment := f.segment()
	header := make([]byte, 40)
	header[0] = 6 << 4
	binary.BigEndian.PutUint16(header[4:], uint16(len(f.options)+len(segment)))
	header[6], header[7] = f.protocol, 64
	if len(f.options) > 0 {
		header[6] = f.extension
	}
	copy(header[8:], f.from.Addr().AsSlice())
	copy(header[24:], f.to.Addr().AsSlice())
	return slices.Concat(ethernet(unix.ETH_P_IPV6), header, f.options, segment)
}

// segment returns the TCP or UDP header and the payload.
func (f frame) segment() []byte {
	var segment []byte
	checksum := 16
	if f.protocol == unix.IPPROTO_TCP {
		segment = make([]byte, 20)
		segment[12], segment[13] = byte(5+len(f.more)/4)<<4, f.flags
		binary.BigEndian.PutUint32(segment[4:], f.seq)
		binary.BigEndian.PutUint32(segment[8:], f.ack)
		segment = append(segment, f.more...)
	} else {
		segment = make([]byte, 8)
		binary.BigEndian.PutUint16(segment[4:], uint16(8+len(f.payload)))
		checksum = 6
	}
	binary.BigEndian.PutUint16(segment[0:], f.from.Port())
	binary.BigEndian.PutUint16(segment[2:], f.to.Port())
	segment = append(segment, f.payload...)
	pseudo := sum(uint32(f.protocol)+uint32(len(segment)), slices.Concat(f.from.Addr().AsSlice(), f.to.Addr().AsSlice()))
	binary.BigEndian.PutUint16(segment[checksum:], ^sum(uint32(pseudo), segment))
	return segment
}

// ethernet returns a header with the destination of the loopback device, at which the
// kernel runs programs: they leave alone what is for others.
func ethernet(protocol uint16) []byte {
	header := []byte{0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 2, 0, 0}
	binary.BigEndian.PutUint16(header[12:], protocol)
	return header
}

// toMAC returns the packet with another destination of its Ethernet header.
func toMAC(packet []byte, to net.HardwareAddr) []byte {
	return slices.Concat(to, packet[6:])
}

// tagged returns the packet with the tag of a VLAN.
func tagged(packet []byte, vlan byte) []byte {
	return slices.Concat(packet[:12], []byte{0x81, 0, 0, vlan}, packet[12:])
}

// with returns the packet with bytes replaced, counted from the IP header on.
func with(packet []byte, at int, bytes ...byte) []byte {
	packet = slices.Clone(packet)
	copy(packet[ethernetSize+at:], bytes)
	return packet
}

// extensions returns IPv6 extension headers of types, each of size bytes, the last
// of which leads to protocol.
func extensions(protocol byte, size int, types ...byte) []byte {
	var bytes []byte
	for i := range types {
		header := make([]byte, size)
		header[0], header[1] = protocol, byte(size/8-1)
		if i+1 < len(types) {
			header[0] = types[i+1]
		}
		// One option that pads the rest.
		header[2], header[3] = 1, byte(size-4)
		bytes = append(bytes, header...)
	}
	return bytes
}
