package lab

import (
	"encoding/binary"
	"net/netip"
)

// Hash is the hash by which the programs pick a slot, see bpf/include/beeline/hash.h.
type Hash uint64

func (h Hash) mix(word uint64) Hash {
	mixed := (uint64(h) ^ word) * 0x9e3779b97f4a7c15
	return Hash(mixed ^ mixed>>32)
}

// Addr mixes in an address.
func (h Hash) Addr(a netip.Addr) Hash {
	b := a.As16()
	return h.mix(binary.BigEndian.Uint64(b[:8])).mix(binary.BigEndian.Uint64(b[8:]))
}

// Ports mixes in a protocol and the ports of source and destination.
func (h Hash) Ports(protocol uint8, source, destination uint16) Hash {
	return h.mix(uint64(protocol)<<32 | uint64(source)<<16 | uint64(destination))
}

// Slot returns which of so many slots is picked.
func (h Hash) Slot(slots int) int {
	word := uint64(h) * 0xff51afd7ed558ccd
	word ^= word >> 33
	word *= 0xc4ceb9fe1a85ec53
	return int(word >> 32 * uint64(slots) >> 32)
}
