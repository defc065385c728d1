package devicemap

import (
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
)

// LocalCIDRs returns the prefixes of pods, sorted.
func (t Table) LocalCIDRs() ([]netip.Prefix, error) {
	var list []netip.Prefix
	err := bpfmap.Each(t.maps.BlLocalCidr, func(key *bpf.SockBlCidrKey, _ *uint32) {
		list = append(list, bpf.PrefixOf(key.Addr, key.PrefixLen))
	})
	slices.SortFunc(list, netip.Prefix.Compare)
	return list, err
}

// SetLocalCIDRs replaces the prefixes of pods: a client in one of them is not served by
// the tunnel, for it may be on the backend's node. Of more than there is room for, shorter ones are
// made that cover them, see [Covering]. It returns what LocalCIDRs returns from then on.
func (t Table) SetLocalCIDRs(prefixes []netip.Prefix) (written []netip.Prefix, err error) {
	want := Covering(t.maps, prefixes)
	for _, p := range want {
		key := bpf.CIDRKey(p)
		if err := bpfmap.Put(t.maps.BlLocalCidr, &key, uint32(1)); err != nil {
			return nil, err
		}
	}
	have, err := t.LocalCIDRs()
	if err != nil {
		return nil, err
	}
	for _, p := range have {
		if slices.Contains(want, p) {
			continue
		}
		key := bpf.CIDRKey(p)
		if err := bpfmap.Remove(t.maps.BlLocalCidr, &key); err != nil {
			return nil, err
		}
	}
	return want, nil
}

// Covering returns as many prefixes as there is room for at most, sorted, that cover the given ones: of the family
// that has more, the longest ones lose a bit until there is room.
func Covering(maps *bpfmap.Maps, prefixes []netip.Prefix) []netip.Prefix {
	// Half of the room: they are put before the former ones are removed.
	room := int(maps.BlLocalCidr.MaxEntries() / 2)
	list := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		list = append(list, p.Masked())
	}
	for {
		slices.SortFunc(list, netip.Prefix.Compare)
		list = slices.Compact(list)
		if len(list) <= room {
			return list
		}
		var count, bits [2]int
		family := func(p netip.Prefix) int { return p.Addr().BitLen() / 128 }
		for _, p := range list {
			count[family(p)]++
			bits[family(p)] = max(bits[family(p)], p.Bits())
		}
		more := 0
		if count[1] > count[0] {
			more = 1
		}
		for i, p := range list {
			if family(p) == more && p.Bits() == bits[more] {
				list[i] = netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked()
			}
		}
	}
}
