package policy

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// rank is what an endpoint is ordered by, and its place among those that are listed.
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

// ranks are sorted by merging the runs that are in order already: sources keep slices in
// the order of addresses, so there are few.
type ranks struct {
	list, other []rank
	ends        []int // of the runs
}

func (s *ranks) add(addr netip.Addr, port uint16, place int) {
	a := addr.As16()
	s.list = append(s.list, rank{
		high:  binary.BigEndian.Uint64(a[:8]),
		low:   binary.BigEndian.Uint64(a[8:]),
		port:  port,
		place: int32(place),
	})
}

// sort returns the ranks in order. Equal ones stay in the order in which they were added.
func (s *ranks) sort() []rank {
	s.ends = s.ends[:0]
	for i := 1; i <= len(s.list); i++ {
		if i == len(s.list) || s.list[i].before(&s.list[i-1]) {
			s.ends = append(s.ends, i)
		}
	}
	s.other = slices.Grow(s.other[:0], len(s.list))[:len(s.list)]
	for len(s.ends) > 1 {
		s.mergeRuns()
	}
	return s.list
}

// mergeRuns merges each two neighbouring runs into one.
func (s *ranks) mergeRuns() {
	start, ends := 0, s.ends[:0]
	for i := 0; i < len(s.ends); i += 2 {
		middle, end := s.ends[i], s.ends[min(i+1, len(s.ends)-1)]
		merge(s.other[start:end], s.list[start:middle], s.list[middle:end])
		start, ends = end, append(ends, end)
	}
	s.list, s.other, s.ends = s.other, s.list, ends
}

// merge fills to with what is in a and b, each in order, that of a first where they are
// equal.
func merge(to, a, b []rank) {
	for len(a) > 0 && len(b) > 0 {
		if b[0].before(&a[0]) {
			to[0], b = b[0], b[1:]
		} else {
			to[0], a = a[0], a[1:]
		}
		to = to[1:]
	}
	copy(to, a)
	copy(to, b)
}
