package devicemap

import (
	"slices"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
)

// MaxNATDevices is how many devices of a network namespace are noted.
const MaxNATDevices = len(bpf.SockBlNatEntry{}.Ifindex)

// MaxNAT is how many network namespaces are noted.
func (t Table) MaxNAT() int { return int(t.maps.BlNat.MaxEntries()) }

// NAT is the network namespaces that translate their own connections (nat OUTPUT), by their
// cookies: the indexes of the devices at which their packets are served. The sockets of one that
// has no such device are served themselves.
func (t Table) NAT() (map[uint64][]int, error) {
	list := make(map[uint64][]int)
	err := bpfmap.Each(t.maps.BlNat, func(cookie *uint64, e *bpf.SockBlNatEntry) {
		list[*cookie] = nil
		for _, ifindex := range e.Ifindex {
			if ifindex != 0 {
				list[*cookie] = append(list[*cookie], int(ifindex))
			}
		}
	})
	return list, err
}

// PutNAT adds or replaces such a network namespace. Its sockets are left alone from then on, if
// there is a device.
func (t Table) PutNAT(cookie uint64, ifindexes []int) error {
	var e bpf.SockBlNatEntry
	for i, ifindex := range slices.Sorted(slices.Values(ifindexes[:min(len(ifindexes), MaxNATDevices)])) {
		e.Ifindex[i] = uint32(ifindex)
	}
	return bpfmap.Put(t.maps.BlNat, cookie, &e)
}

// DeleteNAT takes such a network namespace out.
func (t Table) DeleteNAT(cookie uint64) error { return bpfmap.Remove(t.maps.BlNat, cookie) }
