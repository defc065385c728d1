package bpfmap

import (
	"encoding/binary"
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// The sources of packets that the host sends to a backend on this node. They are
// routed as what has no other route and stand for no host: IPv4's dummy address (RFC
// 7600) and one of IPv6's dummy prefix (RFC 9780).
var (
	hairpinAddr4 = netip.MustParseAddr("192.0.0.8")
	hairpinAddr6 = netip.MustParseAddr("100:0:0:1::8")
)

// writeHairpin writes the device that stands for packets which hairpin.
func (m *Maps) writeHairpin() error {
	e := hairpinEntry()
	return Put(m.BlDevice, uint32(bpf.SockBlDeviceLimitBL_DEVICE_HAIRPIN), &e)
}

func hairpinEntry() bpf.SockBlDeviceEntry {
	addr4 := hairpinAddr4.As4()
	return bpf.SockBlDeviceEntry{
		Addr4: binary.NativeEndian.Uint32(addr4[:]),
		Addr6: bpf.AddrOf(hairpinAddr6),
	}
}
