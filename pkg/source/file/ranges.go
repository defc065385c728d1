package file

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/setting"
	"github.com/beeline-lb/beeline/pkg/source/convert"
)

// rules are the configuration's ranges of addresses and ports, and what manifests may ask for.
type rules struct {
	ranges    []addrRange // at most one of a family
	cidrs     []netip.Prefix
	nodePorts portRange
	allowed   convert.Allowed
	// shared are strings that many objects have.
	shared convert.Interner
}

// rangeOf returns the range of family f or nil.
func (r *rules) rangeOf(f model.Family) *addrRange {
	for i := range r.ranges {
		if r.ranges[i].family() == f {
			return &r.ranges[i]
		}
	}
	return nil
}

// band is a run of numbers, [first, first+size), whose lower part is left to
// choices by hand: numbers assigned come from the upper part while it has free
// ones (KEP-3070 for addresses, KEP-3668 for node ports).
type band struct {
	first, size, lower uint64
}

// pick returns the number that key gets among the free ones. It depends on key
// and on what is taken, not on an order of calls: the search starts at a place
// that key's hash names.
func (b band) pick(key string, free func(n uint64) bool) (uint64, bool) {
	h := fnv.New64a()
	h.Write([]byte(key))
	start := h.Sum64()
	for _, part := range [...]band{
		{first: b.first + b.lower, size: b.size - b.lower},
		{first: b.first, size: b.lower},
	} {
		for i := uint64(0); i < part.size; i++ {
			if n := part.first + (start+i)%part.size; free(n) {
				return n, true
			}
		}
	}
	return 0, false
}

// lowerBand returns how much of a range of size numbers is left to choices by
// hand: min(max(16, size/step), most), and nothing of a range that 16 fill.
func lowerBand(size, step, most uint64) uint64 {
	const least = 16
	if size <= least {
		return 0
	}
	return min(max(least, size/step), most)
}

// addrRange is a range of cluster IPs. The band counts from the network address.
type addrRange struct {
	prefix netip.Prefix
	band
}

// maxHostBits bounds the part of an IPv6 range that is used.
const maxHostBits = 62

// newAddrRange fails when prefix holds no address besides the network's own
// and, for IPv4, the broadcast address.
func newAddrRange(prefix netip.Prefix) (addrRange, error) {
	if !prefix.IsValid() || prefix.Addr().Is4In6() {
		return addrRange{}, setting.Errorf(rangeField, "%s is no range of IPv4 or IPv6 addresses", prefix)
	}
	prefix = prefix.Masked()
	total := uint64(1) << min(prefix.Addr().BitLen()-prefix.Bits(), maxHostBits)
	unusable := uint64(1)
	if prefix.Addr().Is4() {
		unusable = 2
	}
	if total <= unusable {
		return addrRange{}, setting.Errorf(rangeField, "%s holds no usable address: give a larger range", prefix)
	}
	return addrRange{prefix, band{first: 1, size: total - unusable, lower: min(lowerBand(total, 16, 256), total-unusable)}}, nil
}

func (a *addrRange) family() model.Family { return model.FamilyOf(a.prefix.Addr()) }

// at returns the n-th address after the network address.
func (a *addrRange) at(n uint64) netip.Addr {
	b := a.prefix.Addr().As16()
	binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])+n)
	addr := netip.AddrFrom16(b)
	if a.prefix.Addr().Is4() {
		addr = addr.Unmap()
	}
	return addr
}

// portRange is the range of node ports, both ends included.
type portRange struct {
	min, max uint16
}

func (p portRange) String() string { return fmt.Sprintf("%d-%d", p.min, p.max) }

func (p portRange) band() band {
	size := uint64(p.max) - uint64(p.min) + 1
	return band{first: uint64(p.min), size: size, lower: lowerBand(size, 32, 128)}
}
