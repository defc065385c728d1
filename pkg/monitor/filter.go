package monitor

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// Filter says which connections are listened to, before the rate counts. The programs may tell some more: ids are
// in two ranges at most, and of addresses they have a hash. They also tell of a socket's connection whose client they
// do not know, of ports that no Service declares, and of what is about an endpoint or the flow table.
type Filter struct {
	Reasons         []bpf.SockBlReason // none: all, and what has no reason
	Services        []uint32           // ids of Service ports; none: all
	Client, Backend netip.Prefix       // not valid: all
}

// Choose changes the filter.
func (l *Listener) Choose(f Filter) {
	at := l.at()
	if uint32(atomic.LoadUint64(&at.Until)) != l.token {
		return // it is another's place, as Read says
	}
	atomic.StoreUint64(&l.maps.Entries.Monitor.Full, 0) // who was at the limit is found out again
	atomic.StoreUint32(&at.Filtered, ^l.token)          // the programs tell all meanwhile, and test nothing
	if len(f.Reasons) == 0 && len(f.Services) == 0 && !f.Client.IsValid() && !f.Backend.IsValid() {
		return
	}
	at.Reasons = 0
	for _, r := range f.Reasons {
		at.Reasons |= 1 << r
	}
	at.Client, at.Backend = addrRange(f.Client), addrRange(f.Backend)
	at.Services = idRanges(f.Services)
	atomic.StoreUint32(&at.Filtered, l.token)
}

// idRanges returns ranges that have all ids: between them is the widest gap.
func idRanges(ids []uint32) (ranges [2]bpf.SockBlMonitorServices) {
	if len(ids) == 0 {
		return ranges
	}
	ids = slices.Sorted(slices.Values(ids))
	second := len(ids) // where it begins
	for i, widest := 1, uint32(1); i < len(ids); i++ {
		if gap := ids[i] - ids[i-1]; gap > widest {
			second, widest = i, gap
		}
	}
	for i, some := range [][]uint32{ids[:second], ids[second:]} {
		if len(some) > 0 {
			ranges[i] = bpf.SockBlMonitorServices{First: some[0], End: some[len(some)-1] + 1}
		}
	}
	return ranges
}

// addrRange is bl_monitor_range of the programs; 0 of all addresses.
func addrRange(p netip.Prefix) uint32 {
	if p.Bits() <= 0 {
		return 0
	}
	addr := p.Masked().Addr().As16()
	hash := uint64(0)
	for i := range 2 {
		hash = (hash ^ binary.BigEndian.Uint64(addr[8*i:])) * 0x9e3779b97f4a7c15
		hash ^= hash >> 32
	}
	hash *= 0xff51afd7ed558ccd
	hash ^= hash >> 33
	hash *= 0xc4ceb9fe1a85ec53
	return bpf.PrefixBits(p)<<24 | uint32(hash>>40)
}
