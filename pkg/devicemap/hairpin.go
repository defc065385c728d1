package devicemap

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
)

// The sources of packets that the host sends to a backend on this node. They are
// routed as what has no other route and stand for no host: IPv4's dummy address (RFC
// 7600) and one of IPv6's dummy prefix (RFC 9780).
var (
	hairpinAddr4 = netip.MustParseAddr("192.0.0.8")
	hairpinAddr6 = netip.MustParseAddr("100:0:0:1::8")
)

// WriteHairpin writes the device that stands for packets which hairpin.
func (t Table) WriteHairpin() error {
	e := hairpinEntry()
	return bpfmap.Put(t.maps.BlDevice, hairpinDevice, &e)
}

// HoldsHairpin reports whether that device is as [Table.WriteHairpin] writes it.
func (t Table) HoldsHairpin() (bool, error) {
	var have bpf.SockBlDeviceEntry
	if err := t.maps.BlDevice.Lookup(hairpinDevice, &have); err != nil {
		return false, fmt.Errorf("map %s: %w", bpf.SockMapBlDevice, err)
	}
	return have == hairpinEntry(), nil
}

func hairpinEntry() bpf.SockBlDeviceEntry {
	addr4 := hairpinAddr4.As4()
	return bpf.SockBlDeviceEntry{
		Addr4: binary.NativeEndian.Uint32(addr4[:]),
		Addr6: bpf.AddrOf(hairpinAddr6),
	}
}
