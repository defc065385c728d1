package devicemap

import (
	"fmt"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
)

// MAC is an Ethernet address.
type MAC [6]byte

// MACPlaces is how many devices can have a MAC address. Two whose indexes are the same
// modulo this number cannot both have one.
const MACPlaces = int(bpf.SockBlMacLimitBL_MAC_PLACES)

// MACs returns the MAC addresses by which XDP knows the frames that are for a device, by
// its index.
func (t Table) MACs() (map[int]MAC, error) {
	macs := make(map[int]MAC)
	err := bpfmap.Each(t.maps.BlMac, func(_ *uint32, e *bpf.SockBlMacEntry) {
		if e.Ifindex != 0 {
			macs[int(e.Ifindex)] = e.Mac
		}
	})
	return macs, err
}

// SetMACs replaces what [Table.MACs] returns. XDP leaves frames alone that come in while the
// address of their device changes.
func (t Table) SetMACs(macs map[int]MAC) error {
	keys, entries := make([]uint32, MACPlaces), make([]bpf.SockBlMacEntry, MACPlaces)
	for i := range keys {
		keys[i] = uint32(i)
	}
	for ifindex, mac := range macs {
		entries[ifindex%MACPlaces] = bpf.SockBlMacEntry{Ifindex: uint32(ifindex), Mac: mac}
	}
	if _, err := t.maps.BlMac.BatchUpdate(keys, entries, nil); err != nil {
		return fmt.Errorf("map %s: %w", bpf.SockMapBlMac, err)
	}
	return nil
}
