package packets_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// dsrPort is the port of the tunnel in the tests that run programs.
const dsrPort = 6091

// The flags of a node in bl_node.
const (
	nodeSelf   = 1 << 0
	nodeTunnel = 1 << 1
)

// putNode makes a node known that has the addresses; its tunnel ends at the first.
func putNode(t testing.TB, bpffs string, id, flags uint32, list ...netip.Addr) {
	t.Helper()
	entry := struct {
		Addr       [16]byte
		Flags, Pad uint32
	}{Addr: list[0].As16(), Flags: flags}
	if err := pinned(t, bpffs, "bl_node").Put(id, entry); err != nil {
		t.Fatal(err)
	}
	for _, addr := range list {
		if err := pinned(t, bpffs, "bl_node_id").Put(addr.As16(), id); err != nil {
			t.Fatal(err)
		}
	}
}

// reasonCount returns how often something has happened, by its name.
func reasonCount(t testing.TB, maps *bpfmap.Maps, name string) uint64 {
	t.Helper()
	reasons, err := statusmap.New(maps).Reasons()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(reasons, func(r statusmap.Reason) bool { return r.Name == name })
	if i < 0 {
		t.Fatalf("no counter %s", name)
	}
	return reasons[i].Count
}

// The places of fields in a packet of the tunnel, counted from its UDP header on.
const (
	geneveAt = 8
	optionAt = geneveAt + 8
	secretAt = optionAt + 24
	innerAt  = secretAt + 8
)

// tunnelled returns a packet that has an Ethernet header as the tunnel carries it.
func tunnelled(from, to netip.Addr, source uint16, backend netip.AddrPort, packet []byte) []byte {
	inner := packet[ethernetSize:]
	shim := make([]byte, innerAt)
	binary.BigEndian.PutUint16(shim[0:], source)
	binary.BigEndian.PutUint16(shim[2:], dsrPort)
	binary.BigEndian.PutUint16(shim[4:], uint16(innerAt+len(inner)))
	geneve := shim[geneveAt:]
	geneve[0], geneve[1] = 8, 0x40 // 8 words of options, critical ones
	copy(geneve[2:4], packet[12:14])
	option := shim[optionAt:]
	copy(option, []byte{0xff, 0xfb, 0x81, 7})
	addr := backend.Addr().As16()
	copy(option[4:], addr[:])
	binary.BigEndian.PutUint16(option[20:], backend.Port())
	return slices.Concat(outerHeaders(from, to, innerAt+len(inner)), shim, inner)
}

// outerHeaders returns the headers before the UDP header of a packet with size bytes of UDP.
func outerHeaders(from, to netip.Addr, size int) []byte {
	if to.Is4() {
		header := make([]byte, 20)
		header[0], header[6], header[8], header[9] = 4<<4|5, 0x40, 64, unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(header[2:], uint16(20+size))
		copy(header[12:], from.AsSlice())
		copy(header[16:], to.AsSlice())
		binary.BigEndian.PutUint16(header[10:], ^sum(0, header))
		return slices.Concat(ethernet(unix.ETH_P_IP), header)
	}
	header := make([]byte, 40)
	header[0], header[6], header[7] = 6<<4, unix.IPPROTO_UDP, 64
	binary.BigEndian.PutUint16(header[4:], uint16(size))
	copy(header[8:], from.AsSlice())
	copy(header[24:], to.AsSlice())
	return slices.Concat(ethernet(unix.ETH_P_IPV6), header)
}
