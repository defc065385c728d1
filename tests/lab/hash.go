package lab

import (
	"encoding/binary"
	"net/netip"
)

// Spread is what the programs make of words by which they pick a slot: see
// bpf/include/beeline/hash.h. Slot is the slot of so many that the words lead to.
type Spread uint64

func (s Spread) mix(word uint64) Spread {
	h := (uint64(s) ^ word) * 0x9e3779b97f4a7c15
	return Spread(h ^ h>>32)
}

// Addr mixes in an address.
func (s Spread) Addr(a netip.Addr) Spread {
	b := a.As16()
	return s.mix(binary.BigEndian.Uint64(b[:8])).mix(binary.BigEndian.Uint64(b[8:]))
}

// Ports mixes in a protocol and the ports of source and destination.
func (s Spread) Ports(protocol uint8, source, destination uint16) Spread {
	return s.mix(uint64(protocol)<<32 | uint64(source)<<16 | uint64(destination))
}

// Slot returns which of so many slots is picked.
func (s Spread) Slot(slots int) int {
	h := uint64(s) * 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return int(h >> 32 * uint64(slots) >> 32)
}
