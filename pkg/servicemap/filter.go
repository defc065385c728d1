package servicemap

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
)

// filter keeps a bit for each frontend in memory that the programs read. Several
// keys may share a bit, so their number is kept here.
type filter struct {
	entry *bpf.SockBlFilterEntry
	want  bpf.SockBlFilterEntry // what entry should be
	keys  map[bpf.SockBlFrontendKey]struct{}
	count map[uint32]uint32 // keys of a bit
	rings uint32            // Service ports of BL_ALGORITHM_MAGLEV
}

func newFilter(entry *bpf.SockBlFilterEntry) *filter {
	return &filter{
		entry: entry,
		keys:  make(map[bpf.SockBlFrontendKey]struct{}),
		count: make(map[uint32]uint32),
	}
}

// openFilter returns the filter of the frontends that exist, with exactly their
// bits set.
func openFilter(m *bpfmap.Maps) (*filter, error) {
	f := newFilter(m.Entries.Filter)
	err := bpfmap.Each(m.BlFrontend, func(key *bpf.SockBlFrontendKey, _ *bpf.SockBlFrontendEntry) { f.add(key) })
	if err != nil {
		return nil, err
	}
	f.addRings(m)
	for i := range f.entry.Word {
		for word := f.entry.Word[i]; word != 0; word &= word - 1 {
			bit := uint32(i)*64 + uint32(bits.TrailingZeros64(word))
			if f.count[bit] == 0 {
				f.clear(bit)
			}
		}
	}
	return f, nil
}

// add sets the bit of a key, which may be known.
func (f *filter) add(key *bpf.SockBlFrontendKey) {
	bit := filterBit(key)
	if _, ok := f.keys[*key]; !ok {
		f.keys[*key] = struct{}{}
		f.count[bit]++
	}
	f.want.Word[bit/64] |= 1 << (bit % 64)
	atomic.OrUint64(&f.entry.Word[bit/64], 1<<(bit%64))
}

// has reports whether the bit of a key is set.
func (f *filter) has(key *bpf.SockBlFrontendKey) bool {
	bit := filterBit(key)
	return atomic.LoadUint64(&f.entry.Word[bit/64])&(1<<(bit%64)) != 0
}

// remove clears the bit of a key when no other key has it.
func (f *filter) remove(key *bpf.SockBlFrontendKey) {
	if _, ok := f.keys[*key]; !ok {
		return
	}
	delete(f.keys, *key)
	bit := filterBit(key)
	if f.count[bit]--; f.count[bit] == 0 {
		delete(f.count, bit)
		f.clear(bit)
	}
}

func (f *filter) clear(bit uint32) {
	f.want.Word[bit/64] &^= 1 << (bit % 64)
	atomic.AndUint64(&f.entry.Word[bit/64], ^(uint64(1) << (bit % 64)))
}

// ringsKey stands for all Services of BL_ALGORITHM_MAGLEV.
var ringsKey = bpf.SockBlFrontendKey{Proto: uint8(bpf.SockBlFilterSizeBL_FILTER_RINGS)}

// addRings counts the Services of BL_ALGORITHM_MAGLEV that the maps hold.
func (f *filter) addRings(m *bpfmap.Maps) {
	for id := range m.Service.Len() {
		if m.Service.At(id).Algorithm == uint16(bpf.SockBlAlgorithmBL_ALGORITHM_MAGLEV) {
			f.addRing()
		}
	}
}

// addRing counts a Service of BL_ALGORITHM_MAGLEV.
func (f *filter) addRing() {
	f.rings++
	f.add(&ringsKey)
}

// removeRing is the opposite of addRing.
func (f *filter) removeRing() {
	if f.rings--; f.rings == 0 {
		f.remove(&ringsKey)
	}
}

// frontendHash is the hash of the key that the programs compute too; see
// bl_frontend_hash.
func frontendHash(k *bpf.SockBlFrontendKey) uint64 {
	high := binary.NativeEndian.Uint64(k.Addr.Byte[:8])
	low := binary.NativeEndian.Uint64(k.Addr.Byte[8:])
	tail := uint64(*(*uint32)(unsafe.Pointer(&k.Port)))
	mixed := (low + tail*0x94d049bb133111eb) ^ high*0xbf58476d1ce4e5b9
	return mixed * 0x9e3779b97f4a7c15
}

// filterBit is the place of a key in the filter; see bl_filter_test.
func filterBit(k *bpf.SockBlFrontendKey) uint32 {
	return uint32(frontendHash(k) >> (64 - bpf.SockBlFilterSizeBL_FILTER_SHIFT))
}

// frontendCheck is the digest that tells a value from one of another key in reused
// memory; see bl_frontend_check.
func frontendCheck(k *bpf.SockBlFrontendKey) uint16 {
	return uint16(frontendHash(k)>>48 ^ frontendHash(k)>>25)
}

// writeAggregate writes the prefix around all Service CIDRs.
func writeAggregate(m *bpfmap.Maps) error {
	e, err := aggregateOf(m)
	if err != nil {
		return err
	}
	*m.Entries.Aggregate = e
	return nil
}

// aggregateOf computes the prefix around all Service CIDRs.
func aggregateOf(m *bpfmap.Maps) (bpf.SockBlAggregateEntry, error) {
	var aggregate4, aggregate6 netip.Prefix
	err := bpfmap.Each(m.BlServiceCidr, func(key *bpf.SockBlCidrKey, _ *uint32) {
		if p := bpf.PrefixOf(key.Addr, key.PrefixLen); p.Addr().Is4() {
			aggregate4 = join(aggregate4, p)
		} else {
			aggregate6 = join(aggregate6, p)
		}
	})
	if err != nil {
		return bpf.SockBlAggregateEntry{}, fmt.Errorf("map %s: %w", bpf.SockMapBlAggregate, err)
	}
	return aggregateEntry(aggregate4, aggregate6), nil
}

// aggregateEntry returns the prefixes as the programs compare them; an invalid one
// covers nothing.
func aggregateEntry(aggregate4, aggregate6 netip.Prefix) bpf.SockBlAggregateEntry {
	never := bpf.SockBlAddr{Byte: [16]byte{15: 1}}
	e := bpf.SockBlAggregateEntry{Addr4: word(never), Addr6: never}
	if aggregate4.IsValid() {
		e.Addr4, e.Mask4 = word(bpf.AddrOf(aggregate4.Addr())), word(mask(aggregate4))
	}
	if aggregate6.IsValid() {
		e.Addr6, e.Mask6 = bpf.AddrOf(aggregate6.Addr()), mask(aggregate6)
	}
	return e
}

// join returns the longest prefix that holds both. An invalid a is nothing.
func join(a, b netip.Prefix) netip.Prefix {
	if !a.IsValid() {
		return b
	}
	for bits := min(a.Bits(), b.Bits()); ; bits-- {
		p := netip.PrefixFrom(a.Addr(), bits).Masked()
		if p.Contains(b.Addr()) {
			return p
		}
	}
}
