package flowmap

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/maptest"
	"github.com/beeline-lb/beeline/tests/servicetest"
	"github.com/beeline-lb/beeline/tests/tier"
)

// Types of SCTP chunks.
const (
	sctpData             = 0
	sctpInit             = 1
	sctpInitAck          = 2
	sctpAbort            = 6
	sctpShutdown         = 7
	sctpShutdownAck      = 8
	sctpCookieEcho       = 10
	sctpCookieAck        = 11
	sctpShutdownComplete = 14
)

// sctpFamily is a client, a Service and its backend in one family.
type sctpFamily struct{ client, service, backend netip.AddrPort }

var sctpFamilies = map[model.Family]sctpFamily{
	model.IPv4: {flowClient, flowService, flowBackend},
	model.IPv6: {
		netip.MustParseAddrPort("[2001:db8::7]:20000"), netip.MustParseAddrPort("[fd96::1]:80"),
		netip.MustParseAddrPort("[fd00:1::1]:8080"),
	},
}

// serveSCTP brings a Service of both families into the maps and returns the
// programs.
func serveSCTP(t *testing.T, m *bpfmap.Maps) map[string]*ebpf.Program {
	t.Helper()
	services := servicetest.Open(t, m)
	for family, f := range sctpFamilies {
		id := uint32(family)
		must(t,
			services.PutBackend(id, tables.Backend{AddrPort: f.backend, Service: id, State: tables.InCluster, Generation: 1}),
			services.PutSlots(id, []uint32{id}),
			services.PutServiceName(id, maptest.ServiceName("a", family)),
			services.PutService(id, tables.Service{Cluster: tables.Set{Kind: policy.Backends, First: id, Count: 1}}),
			services.PutFrontend(tables.FrontendKey{Addr: f.service.Addr(), Port: f.service.Port(), Protocol: model.SCTP},
				tables.Frontend{Service: id, Kind: tables.FrontendClusterIP}))
	}
	programs, err := datapath.LoadDevices(m, datapath.Constants{}, bpf.TcProgBlIngress, bpf.TcProgBlEgress)
	must(t, err)
	t.Cleanup(func() {
		for _, p := range programs {
			p.Close()
		}
	})
	return programs
}

// sctpPacket returns an Ethernet frame with an SCTP packet that holds the bytes
// after its header. options are IPv4 options or IPv6 extension headers, the last of
// which names SCTP as the next.
func sctpPacket(src, dst netip.AddrPort, options, chunks []byte) []byte {
	sctp := make([]byte, 12, 12+len(chunks))
	binary.BigEndian.PutUint16(sctp[0:], src.Port())
	binary.BigEndian.PutUint16(sctp[2:], dst.Port())
	binary.BigEndian.PutUint32(sctp[4:], 0x01020304)
	sctp = append(sctp, chunks...)
	binary.LittleEndian.PutUint32(sctp[8:], crc32.Checksum(sctp, crc32.MakeTable(crc32.Castagnoli)))

	rest := append(bytes.Clone(options), sctp...)
	if src.Addr().Is4() {
		return append(ipv4Header(src.Addr(), dst.Addr(), len(options), len(rest)), rest...)
	}
	return append(ipv6Header(src.Addr(), dst.Addr(), len(options) > 0, len(rest)), rest...)
}

// ipv4Header returns an Ethernet header and one of IPv4, whose checksum is that of
// the header with options of zeros.
func ipv4Header(src, dst netip.Addr, options, length int) []byte {
	p := make([]byte, 14+20)
	p[12] = 0x08
	ip := p[14:]
	ip[0], ip[8], ip[9] = 0x45+byte(options/4), 64, byte(model.SCTP)
	binary.BigEndian.PutUint16(ip[2:], uint16(20+length))
	copy(ip[12:], src.AsSlice())
	copy(ip[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], ^internetSum(ip))
	return p
}

func ipv6Header(src, dst netip.Addr, extended bool, length int) []byte {
	p := make([]byte, 14+40)
	p[12], p[13] = 0x86, 0xdd
	ip := p[14:]
	ip[0], ip[6], ip[7] = 0x60, byte(model.SCTP), 64
	if extended {
		ip[6] = 0 // hop-by-hop options
	}
	binary.BigEndian.PutUint16(ip[4:], uint16(length))
	copy(ip[8:], src.AsSlice())
	copy(ip[24:], dst.AsSlice())
	return p
}

// internetSum is the sum of 16-bit words, folded.
func internetSum(p []byte) uint16 {
	sum := uint32(0)
	for ; len(p) > 1; p = p[2:] {
		sum += uint32(binary.BigEndian.Uint16(p))
	}
	sum = sum&0xffff + sum>>16
	return uint16(sum&0xffff + sum>>16)
}

// TestSCTPChecksum sends random packets in both directions: each comes out as if its sender
// had made it with the other addresses and ports.
func TestSCTPChecksum(t *testing.T) {
	tier.SameInEveryKernel(t)
	m := maptest.New(t, maptest.Small)
	programs := serveSCTP(t, m)
	random := rand.New(rand.NewPCG(1, 2))
	for family, f := range sctpFamilies {
		options := [][]byte{nil, make([]byte, 8)}
		if family == model.IPv6 {
			options[1] = []byte{byte(model.SCTP), 0, 1, 4, 0, 0, 0, 0}
		}
		sctpRun(t, programs[bpf.TcProgBlIngress], sctpPacket(f.client, f.service, nil, []byte{sctpInit, 0, 0, 4}))
		for range 500 {
			// Ports from 32768 on are remapped.
			client := netip.AddrPortFrom(f.client.Addr(), uint16(1+random.IntN(32767)))
			chunks := make([]byte, random.IntN(1500-12))
			for i := range chunks {
				chunks[i] = byte(random.Uint32())
			}
			o := options[random.IntN(2)]
			sctpRun(t, programs[bpf.TcProgBlIngress], sctpPacket(client, f.service, nil, []byte{sctpInit, 0, 0, 4}))
			for _, direction := range []struct {
				program  string
				src, dst netip.AddrPort
				newSrc   netip.AddrPort
				newDst   netip.AddrPort
			}{
				{bpf.TcProgBlIngress, client, f.service, client, f.backend},
				{bpf.TcProgBlEgress, f.backend, client, f.service, client},
			} {
				// Short frames are padded; the padding is not SCTP's.
				padding := make([]byte, random.IntN(20))
				padding = append(padding, 0xff)
				in := append(sctpPacket(direction.src, direction.dst, o, chunks), padding...)
				want := append(sctpPacket(direction.newSrc, direction.newDst, o, chunks), padding...)
				if got := sctpRun(t, programs[direction.program], in); !bytes.Equal(got, want) {
					t.Fatalf("%s, %d bytes of chunks: got\n% x, want\n% x", direction.program, len(chunks), got, want)
				}
			}
		}
	}
}

// TestSCTPDamaged: a wrong checksum does not become a right one, and what is cut
// short passes as it is.
func TestSCTPDamaged(t *testing.T) {
	tier.SameInEveryKernel(t)
	m := maptest.New(t, maptest.Small)
	programs := serveSCTP(t, m)
	for family, f := range sctpFamilies {
		in := sctpPacket(f.client, f.service, nil, []byte{sctpInit, 0, 0, 4})
		want := sctpPacket(f.client, f.backend, nil, []byte{sctpInit, 0, 0, 4})
		in[len(in)-5]++ // the last byte of the checksum
		want[len(want)-5]++
		if got := sctpRun(t, programs[bpf.TcProgBlIngress], in); !bytes.Equal(got, want) {
			t.Errorf("%s: a wrong checksum: got\n% x, want\n% x", family, got, want)
		}
		whole := sctpPacket(f.client, f.service, nil, []byte{sctpData, 0, 0, 4})
		for size := len(whole) - 16; size < len(whole); size++ {
			if got := sctpRun(t, programs[bpf.TcProgBlIngress], whole[:size]); !bytes.Equal(got, whole[:size]) {
				t.Errorf("%s: cut to %d bytes: got\n% x, want\n% x", family, size, got, whole[:size])
			}
		}
	}
}

func sctpRun(t *testing.T, program *ebpf.Program, packet []byte) []byte {
	t.Helper()
	_, out, err := program.Test(packet)
	must(t, err)
	return out
}

// TestSCTPFlow follows associations that the programs serve, to their end.
func TestSCTPFlow(t *testing.T) {
	tier.SameInEveryKernel(t)
	m := maptest.New(t, maptest.Small)
	programs := serveSCTP(t, m)
	f := sctpFamilies[model.IPv4]
	toService := func(chunk byte) {
		send(t, programs[bpf.TcProgBlIngress], sctpPacket(f.client, f.service, nil, []byte{chunk, 0, 0, 4}))
	}
	reply := func(chunk byte) {
		send(t, programs[bpf.TcProgBlEgress], sctpPacket(f.backend, f.client, nil, []byte{chunk, 0, 0, 4}))
	}
	toService(sctpData)
	if flows, _ := flowTable(t, m); len(flows) != 0 {
		t.Fatalf("a packet of somebody else's association made the flow %+v", flows[0])
	}
	for _, step := range []struct {
		act  func(byte)
		with byte
		want State
	}{
		{toService, sctpInit, StateNew},
		{reply, sctpInitAck, StateSynReceived},
		{toService, sctpCookieEcho, StateEstablished},
		{reply, sctpCookieAck, StateEstablished},
		{toService, sctpData, StateEstablished},
		{toService, sctpShutdown, StateClientClosing},
		{reply, sctpShutdownAck, StateClosed},
		{toService, sctpShutdownComplete, StateClosed},
		{toService, sctpInit, StateNew},
		{reply, sctpInitAck, StateSynReceived},
		{reply, sctpAbort, StateAborted},
	} {
		step.act(step.with)
		flows, replies := flowTable(t, m)
		if len(flows) != 1 || len(replies) != 1 {
			t.Fatalf("%d flows and %d reply entries after a chunk of type %d", len(flows), len(replies), step.with)
		}
		if got := flows[0]; got.State != step.want || got.Protocol != model.SCTP || got.Client != f.client ||
			got.ServiceAddr != f.service || got.Backend != f.backend {
			t.Fatalf("after a chunk of type %d the flow is %+v, want %s", step.with, got, step.want)
		}
	}
}
