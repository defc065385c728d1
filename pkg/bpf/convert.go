package bpf

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// AddrOf stores an address v4-mapped, in network byte order.
func AddrOf(a netip.Addr) SockBlAddr { return SockBlAddr{Byte: a.As16()} }

// Netip is the opposite of [AddrOf].
func (a SockBlAddr) Netip() netip.Addr { return netip.AddrFrom16(a.Byte).Unmap() }

// Hton16 converts a port between host and network byte order, either way.
func Hton16(port uint16) uint16 {
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		return port
	}
	return bits.ReverseBytes16(port)
}

// PrefixBits returns the length of a prefix over the v4-mapped form.
func PrefixBits(p netip.Prefix) uint32 {
	if p.Addr().Is4() {
		return uint32(p.Bits()) + 96
	}
	return uint32(p.Bits())
}

// PrefixOf returns the prefix of an address and a length over the v4-mapped form.
func PrefixOf(addr SockBlAddr, length uint32) netip.Prefix {
	a := addr.Netip()
	if a.Is4() {
		length -= 96
	}
	return netip.PrefixFrom(a, int(length))
}

// CIDRKey returns the key of a prefix in the tries of prefixes alone.
func CIDRKey(p netip.Prefix) SockBlCidrKey {
	return SockBlCidrKey{PrefixLen: PrefixBits(p), Addr: AddrOf(p.Masked().Addr())}
}

// PutString stores s, cut to what fits, with a zero byte after it.
func PutString(to []int8, s string) {
	clear(to)
	for i := range min(len(s), len(to)-1) {
		to[i] = int8(s[i])
	}
}

// StringOf is the opposite of [PutString].
func StringOf(from []int8) string {
	b := make([]byte, 0, len(from))
	for _, c := range from {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}
