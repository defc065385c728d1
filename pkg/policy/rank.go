package policy

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// rank is the sort key of an endpoint, and its place among those that are listed.
// Numbers compare several times faster than netip's types.
type rank struct {
	high, low uint64 // of the address
	port      uint16
	place     int32
}

// before orders by address, then port.
func (r *rank) before(o *rank) bool {
	switch {
	case r.high != o.high:
		return r.high < o.high
	case r.low != o.low:
		return r.low < o.low
	}
	return r.port < o.port
}

// ranks are those of all endpoints that are listed.
type ranks []rank

func (s *ranks) add(addr netip.Addr, port uint16, place int) {
	a := addr.As16()
	*s = append(*s, rank{
		high:  binary.BigEndian.Uint64(a[:8]),
		low:   binary.BigEndian.Uint64(a[8:]),
		port:  port,
		place: int32(place),
	})
}

// sort orders the ranks; equal ones by their places.
func (s ranks) sort() {
	slices.SortFunc(s, func(a, b rank) int {
		switch {
		case a.before(&b):
			return -1
		case b.before(&a):
			return 1
		}
		return cmp.Compare(a.place, b.place)
	})
}
