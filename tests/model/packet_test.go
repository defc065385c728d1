package model_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	ethernetSize = 14
	ttl          = 64
)

// The flags of TCP.
const (
	fin = 1 << iota
	syn
	rst
	psh
	ack
)

// packet is one of TCP or UDP with right lengths and checksums.
type packet struct {
	from, to netip.AddrPort
	protocol byte
	flags    byte
	class    byte // of service
	id       uint16
	sequence uint32
	payload  []byte
	// ipOptions are IPv4 options, or IPv6 extension headers of a destination's options.
	ipOptions  []byte
	tcpOptions []byte
	// plain: UDP over IPv4 goes without a checksum.
	plain bool
}

// describe returns the packet in the words of tcpdump.
func (p packet) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s > %s", p.from, p.to)
	if p.protocol == unix.IPPROTO_TCP {
		names := []string{}
		for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK"} {
			if p.flags&(1<<i) != 0 {
				names = append(names, name)
			}
		}
		fmt.Fprintf(&b, " TCP [%s]", strings.Join(names, ","))
	} else {
		b.WriteString(" UDP")
	}
	fmt.Fprintf(&b, " %d bytes", len(p.payload))
	if len(p.ipOptions) > 0 {
		fmt.Fprintf(&b, ", %d bytes of IP options", len(p.ipOptions))
	}
	if len(p.tcpOptions) > 0 {
		fmt.Fprintf(&b, ", %d bytes of TCP options", len(p.tcpOptions))
	}
	if p.plain {
		b.WriteString(", no checksum")
	}
	return b.String()
}

func (p packet) is4() bool { return p.to.Addr().Is4() }

// ip returns the packet from its IP header on.
func (p packet) ip() []byte {
	return p.header(p.protocol, p.segment())
}

// header puts an IP header before what is in it.
func (p packet) header(protocol byte, body []byte) []byte {
	if p.is4() {
		header := append(make([]byte, 20), p.ipOptions...)
		header[0], header[1] = 4<<4|byte(len(header)/4), p.class
		binary.BigEndian.PutUint16(header[2:], uint16(len(header)+len(body)))
		binary.BigEndian.PutUint16(header[4:], p.id)
		header[8], header[9] = ttl, protocol
		copy(header[12:], p.from.Addr().AsSlice())
		copy(header[16:], p.to.Addr().AsSlice())
		binary.BigEndian.PutUint16(header[10:], ^sum(header))
		return append(header, body...)
	}
	header := make([]byte, 40)
	header[0], header[1] = 6<<4|p.class>>4, p.class<<4
	binary.BigEndian.PutUint16(header[4:], uint16(len(p.ipOptions)+len(body)))
	header[6], header[7] = protocol, ttl
	copy(header[8:], p.from.Addr().AsSlice())
	copy(header[24:], p.to.Addr().AsSlice())
	if len(p.ipOptions) == 0 {
		return append(header, body...)
	}
	options := slices.Clone(p.ipOptions)
	header[6], options[0] = unix.IPPROTO_DSTOPTS, protocol
	return slices.Concat(header, options, body)
}

// segment returns the TCP or UDP header and the payload.
func (p packet) segment() []byte {
	var segment []byte
	at := 16
	if p.protocol == unix.IPPROTO_TCP {
		segment = append(make([]byte, 20), p.tcpOptions...)
		segment[12], segment[13] = byte(len(segment)/4)<<4, p.flags
		binary.BigEndian.PutUint32(segment[4:], p.sequence)
		binary.BigEndian.PutUint16(segment[14:], 512)
	} else {
		segment = make([]byte, 8)
		binary.BigEndian.PutUint16(segment[4:], uint16(8+len(p.payload)))
		at = 6
	}
	binary.BigEndian.PutUint16(segment, p.from.Port())
	binary.BigEndian.PutUint16(segment[2:], p.to.Port())
	segment = append(segment, p.payload...)
	if p.plain {
		return segment
	}
	checksum := ^sum(pseudo(p.from.Addr(), p.to.Addr(), p.protocol, len(segment)), segment)
	if checksum == 0 && p.protocol == unix.IPPROTO_UDP {
		checksum = 0xffff // RFC 768
	}
	binary.BigEndian.PutUint16(segment[at:], checksum)
	return segment
}

// fragments returns the packet in fragments of about size bytes, each from its IP header on.
func (p packet) fragments(size int) [][]byte {
	size = max(8, size&^7)
	body := p.segment()
	var list [][]byte
	for offset := 0; offset < len(body); offset += size {
		part := body[offset:min(offset+size, len(body))]
		more := offset+size < len(body)
		list = append(list, p.fragment(part, offset, more))
	}
	return list
}

func (p packet) fragment(part []byte, offset int, more bool) []byte {
	if !p.is4() {
		header := make([]byte, 8)
		header[0] = p.protocol
		word := uint16(offset)
		if more {
			word |= 1
		}
		binary.BigEndian.PutUint16(header[2:], word)
		binary.BigEndian.PutUint32(header[4:], uint32(p.id))
		return p.header(unix.IPPROTO_FRAGMENT, append(header, part...))
	}
	ip := p.header(p.protocol, part)
	word := uint16(offset / 8)
	if more {
		word |= 0x2000
	}
	binary.BigEndian.PutUint16(ip[6:], word)
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:20+len(p.ipOptions)]))
	return ip
}

// icmpError returns an ICMP error about a packet, which it quotes.
func icmpError(from, to netip.Addr, kind icmpKind, quote []byte) []byte {
	p := packet{from: netip.AddrPortFrom(from, 0), to: netip.AddrPortFrom(to, 0)}
	body := make([]byte, 8, 8+len(quote))
	if from.Is4() {
		body[0], body[1] = kind.type4, kind.code4
		binary.BigEndian.PutUint16(body[6:], kind.mtu)
		body = append(body, quote...)
		binary.BigEndian.PutUint16(body[2:], ^sum(body))
		return p.header(unix.IPPROTO_ICMP, body)
	}
	body[0], body[1] = kind.type6, kind.code6
	binary.BigEndian.PutUint32(body[4:], uint32(kind.mtu))
	body = append(body, quote...)
	binary.BigEndian.PutUint16(body[2:], ^sum(pseudo(from, to, unix.IPPROTO_ICMPV6, len(body)), body))
	return p.header(unix.IPPROTO_ICMPV6, body)
}

// icmpKind is a type of ICMP error.
type icmpKind struct {
	name                       string
	type4, code4, type6, code6 byte
	mtu                        uint16
}

var icmpKinds = []icmpKind{
	{"port unreachable", 3, 3, 1, 4, 0},
	{"host unreachable", 3, 1, 1, 3, 0},
	{"time exceeded", 11, 0, 3, 0, 0},
	{"too big", 3, 4, 2, 0, 1300},
}

// tuple is who a packet says that it is from and for.
type tuple struct {
	from, to netip.AddrPort
	protocol byte
}

func (t tuple) String() string { return fmt.Sprintf("%s > %s", t.from, t.to) }

// parsed is an IP packet taken apart.
type parsed struct {
	tuple
	body int // where the TCP, UDP or ICMP header begins
	end  int // where the packet ends
}

// parse takes a packet of TCP, UDP or ICMP apart that is not a later fragment. A quoted one
// may be cut short.
func parse(ip []byte) (p parsed, ok bool) {
	if len(ip) < 20 {
		return p, false
	}
	var from, to netip.Addr
	switch ip[0] >> 4 {
	case 4:
		p.body, p.end, p.protocol = int(ip[0]&0xf)*4, int(binary.BigEndian.Uint16(ip[2:])), ip[9]
		from, to = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:]))
	case 6:
		if len(ip) < 40 {
			return p, false
		}
		p.body, p.end, p.protocol = 40, 40+int(binary.BigEndian.Uint16(ip[4:])), ip[6]
		from, to = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:]))
		for p.body+8 <= len(ip) && (p.protocol == unix.IPPROTO_DSTOPTS || p.protocol == unix.IPPROTO_FRAGMENT) {
			size := 8 * (int(ip[p.body+1]) + 1)
			if p.protocol == unix.IPPROTO_FRAGMENT {
				size = 8
			}
			p.protocol, p.body = ip[p.body], p.body+size
		}
	}
	if p.body < 20 || p.body+8 > len(ip) {
		return p, false
	}
	p.from, p.to = netip.AddrPortFrom(from, 0), netip.AddrPortFrom(to, 0)
	if p.protocol == unix.IPPROTO_TCP || p.protocol == unix.IPPROTO_UDP {
		p.from = netip.AddrPortFrom(from, binary.BigEndian.Uint16(ip[p.body:]))
		p.to = netip.AddrPortFrom(to, binary.BigEndian.Uint16(ip[p.body+2:]))
	}
	return p, true
}

// rightSums returns what is wrong with a packet's checksums; "" is nothing.
func rightSums(ip []byte) string {
	p, ok := parse(ip)
	if !ok || p.end > len(ip) || p.end < p.body {
		return "no packet"
	}
	if ip[0]>>4 == 4 && sum(ip[:int(ip[0]&0xf)*4]) != 0xffff {
		return "IPv4 header"
	}
	body := ip[p.body:p.end]
	switch p.protocol {
	case unix.IPPROTO_ICMP:
		if sum(body) != 0xffff {
			return "ICMP"
		}
		return ""
	case unix.IPPROTO_UDP:
		if ip[0]>>4 == 4 && body[6] == 0 && body[7] == 0 {
			return ""
		}
	}
	if sum(pseudo(p.from.Addr(), p.to.Addr(), p.protocol, len(body)), body) != 0xffff {
		return fmt.Sprintf("protocol %d", p.protocol)
	}
	return ""
}

// pseudo returns the pseudo-header that a checksum is over as well.
func pseudo(from, to netip.Addr, protocol byte, size int) []byte {
	b := slices.Concat(from.AsSlice(), to.AsSlice())
	b = binary.BigEndian.AppendUint32(b, uint32(size))
	return binary.BigEndian.AppendUint32(b, uint32(protocol))
}

// sum is the sum of the Internet checksum over parts of which all but the last are of even
// length: 0xffff over what holds a right one.
func sum(parts ...[]byte) uint16 {
	total := uint32(0)
	for _, b := range parts {
		for ; len(b) > 1; b = b[2:] {
			total += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) > 0 {
			total += uint32(b[0]) << 8
		}
		for total > 0xffff {
			total = total&0xffff + total>>16
		}
	}
	return uint16(total)
}
