package packets_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
)

// TestGenericXDPLeavesPackets: generic XDP passes packets unchanged: those of protocols that Services
// do not have, tunnel traffic, and requests to a Service with an offloaded checksum.
func TestGenericXDPLeavesPackets(t *testing.T) {
	t.Parallel()
	b := newXDPBench(t)
	b.serveByTunnel(t, 4)
	b.programs = newLoader(t, b.maps, datapath.Constants{TunnelPort: dsrPort, XDPGeneric: true})
	passed := untouched()
	for name, f := range xdpRequests() {
		passed[name+", unfinished"] = unfinished(f)
		passed[name+" at its last hop"] = lastHop(f)
		passed[name+" in the tunnel"] = tunnelled(tunnelNode[4], selfNode[4], 0xc123, backend[familyOf(f)], f.bytes())
	}
	udp := xdpRequests()["UDP 4"]
	passed["UDP without a checksum"] = with(udp.bytes(), headerSize(udp.to.Addr())+6, 0, 0)
	for name, packet := range passed {
		if verdict, out := b.run(t, packet); verdict != xdpPasses || !bytes.Equal(out, packet) {
			t.Errorf("%s: verdict %d, packet\n% x, was\n% x", name, verdict, out, packet)
		}
	}
	for name, f := range xdpRequests() {
		if verdict, _ := b.run(t, f.bytes()); verdict != xdpSends {
			t.Errorf("%s: verdict %d", name, verdict)
		}
	}
}

// unfinished returns the packet with the sum of its pseudo-header in place of the checksum
// (CHECKSUM_PARTIAL).
func unfinished(f frame) []byte {
	packet := f.bytes()
	header := headerSize(f.to.Addr())
	size := len(packet) - ethernetSize - header
	at := header + map[byte]int{unix.IPPROTO_TCP: 16, unix.IPPROTO_UDP: 6}[f.protocol]
	addrs := append(f.from.Addr().AsSlice(), f.to.Addr().AsSlice()...)
	return with(packet, at, binary.BigEndian.AppendUint16(nil, sum(uint32(f.protocol)+uint32(size), addrs))...)
}
