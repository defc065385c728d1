package main

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Sizes of headers, and of the packets that programs are measured with.
const (
	ethernetSize = 14
	ipv4Size     = 20
	ipv6Size     = 40
	frameSize    = 128
)

// Flags of a TCP segment.
const (
	tcpSYN = 0x02
	tcpACK = 0x10
)

// frame is a packet with an Ethernet header. Its checksums are not right: programs
// change them by what changes, whatever they are.
type frame []byte

// newTCP returns a segment without options.
func newTCP(from, to netip.AddrPort, flags byte) frame {
	f, l4 := newFrame(from, to, unix.IPPROTO_TCP)
	l4[12], l4[13] = 5<<4, flags
	binary.BigEndian.PutUint16(l4[16:], 0x1234)
	return f
}

func newUDP(from, to netip.AddrPort) frame {
	f, l4 := newFrame(from, to, unix.IPPROTO_UDP)
	binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
	binary.BigEndian.PutUint16(l4[6:], 0x1234)
	return f
}

// newFrame returns a packet and the part of it that follows the IP header.
func newFrame(from, to netip.AddrPort, protocol byte) (f frame, l4 []byte) {
	f = make(frame, frameSize)
	ip := f[ethernetSize:]
	if from.Addr().Is4() {
		binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IP)
		ip[0], ip[8], ip[9] = 4<<4|ipv4Size/4, 64, protocol
		binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
		binary.BigEndian.PutUint16(ip[10:], 0x1234)
	} else {
		binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IPV6)
		ip[0], ip[6], ip[7] = 6<<4, protocol, 64
		binary.BigEndian.PutUint16(ip[4:], uint16(len(ip)-ipv6Size))
	}
	copy(f.addrs(), append(from.Addr().AsSlice(), to.Addr().AsSlice()...))
	l4 = f[f.transport():]
	binary.BigEndian.PutUint16(l4, from.Port())
	binary.BigEndian.PutUint16(l4[2:], to.Port())
	return f, l4
}

func (f frame) ipv4() bool { return binary.BigEndian.Uint16(f[12:]) == unix.ETH_P_IP }

// transport returns where the header behind that of IP is.
func (f frame) transport() int {
	if f.ipv4() {
		return ethernetSize + ipv4Size
	}
	return ethernetSize + ipv6Size
}

// sourceEnd returns where the source address ends.
func (f frame) sourceEnd() int {
	if f.ipv4() {
		return ethernetSize + 16
	}
	return ethernetSize + 24
}

// addrs returns both addresses.
func (f frame) addrs() []byte {
	if f.ipv4() {
		return f[ethernetSize+12 : ethernetSize+20]
	}
	return f[ethernetSize+8 : ethernetSize+40]
}

func (f frame) source() netip.AddrPort {
	addrs := f.addrs()
	addr, _ := netip.AddrFromSlice(addrs[:len(addrs)/2])
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(f[f.transport():]))
}

func (f frame) destination() netip.AddrPort {
	addrs := f.addrs()
	addr, _ := netip.AddrFromSlice(addrs[len(addrs)/2:])
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(f[f.transport()+2:]))
}
