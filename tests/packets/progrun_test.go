package packets_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/tests/lab"
)

// The verdicts of programs at devices.
const (
	passes   = 0xffffffff // to the next program
	dropped  = 2
	redirect = 7
)

// The verdicts of the XDP program.
const (
	xdpDrops     = 1
	xdpPasses    = 2
	xdpSends     = 3 // by the device it came in by
	xdpRedirects = 4
)

var (
	crafted = map[byte]netip.AddrPort{
		4: netip.MustParseAddrPort("192.0.2.2:4242"),
		6: netip.MustParseAddrPort("[2001:db8::2]:4242"),
	}
	virtual = map[byte]netip.AddrPort{
		4: netip.MustParseAddrPort("10.96.0.1:80"),
		6: netip.MustParseAddrPort("[fd96::1]:80"),
	}
	backend = map[byte]netip.AddrPort{
		4: netip.AddrPortFrom(lab.Backend4(1), lab.BackendPort),
		6: netip.AddrPortFrom(lab.Backend6(1), lab.BackendPort),
	}
	// foreign is no Service's address.
	foreign = map[byte]netip.AddrPort{
		4: netip.MustParseAddrPort("192.0.2.9:80"),
		6: netip.MustParseAddrPort("[2001:db8::9]:80"),
	}
)

var protocols = map[string]byte{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP}

// loopback is the index of the loopback device.
const loopback = 1

// bench runs the programs on packets over the maps of a host that serves one
// Service of both families and protocols with one backend, at its loopback device.
type bench struct {
	host     *lab.Host
	agent    *lab.Agent
	maps     *bpfmap.Maps
	programs *loader
}

// loader loads programs over the maps when they are asked for: the kernel takes long to check them, and
// most tests run one. They are closed when the test ends.
type loader struct {
	maps      *bpfmap.Maps
	constants datapath.Constants
	loaded    map[string]*ebpf.Program
}

func newLoader(t testing.TB, m *bpfmap.Maps, constants datapath.Constants) *loader {
	l := &loader{m, constants, make(map[string]*ebpf.Program)}
	t.Cleanup(func() {
		for _, p := range l.loaded {
			p.Close()
		}
	})
	return l
}

func (l *loader) program(t testing.TB, name string) *ebpf.Program {
	t.Helper()
	if l.loaded[name] != nil {
		return l.loaded[name]
	}
	var p *ebpf.Program
	var err error
	switch name {
	case bpf.XdpProgBlXdp:
		p, err = datapath.LoadXDP(l.maps, l.constants)
	case bpf.XdpProgBlXdpBelow:
		p, err = datapath.LoadXDPBelow(l.maps, l.constants)
	default:
		var programs map[string]*ebpf.Program
		programs, err = datapath.LoadDevices(l.maps, l.constants, name)
		p = programs[name]
	}
	if err != nil {
		t.Fatal(err)
	}
	l.loaded[name] = p
	return p
}

func newBench(t testing.TB) *bench {
	t.Helper()
	return newBenchWith(t, datapath.Constants{})
}

// newBenchWith makes a bench whose programs are loaded with constants.
func newBenchWith(t testing.TB, constants datapath.Constants) *bench {
	t.Helper()
	return newBenchSized(t, lab.Sizes, constants)
}

// newBenchSized makes a bench whose tables have other sizes.
func newBenchSized(t testing.TB, sizes bpfmap.Sizes, constants datapath.Constants) *bench {
	t.Helper()
	h := lab.NewHost(t)
	a := h.Serve(lab.AgentOptions{ServiceRanges: []string{"10.96.0.0/16", "fd96::/112"}, Sizes: sizes})
	ports := fmt.Sprintf("t:%d/TCP,u:%d/UDP", lab.BackendPort, lab.BackendPort)
	a.Apply(lab.Service("web", `{clusterIPs: [10.96.0.1, "fd96::1"], ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}`),
		lab.Slice("web", ports, lab.Backend4(1)), lab.Slice("web", ports, lab.Backend6(1)))
	if err := devicemap.New(a.Maps()).SetMACs(map[int]devicemap.MAC{loopback: {}}); err != nil {
		t.Fatal(err)
	}
	return &bench{h, a, a.Maps(), newLoader(t, a.Maps(), constants)}
}

// run returns the verdict on a packet and the packet as it is then.
func (b *bench) run(t testing.TB, program string, packet []byte) (uint32, []byte) {
	t.Helper()
	options := &ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+256)}
	p := b.programs.program(t, program)
	var verdict uint32
	err := b.host.Run(func() (err error) {
		verdict, err = p.Run(options)
		return err
	})
	if err != nil {
		t.Fatalf("run %s on % x: %v", program, packet, err)
	}
	return verdict, options.DataOut
}

// letsPass are the verdicts by which programs let a packet pass.
var letsPass = map[string]uint32{"bl_ingress": passes, "bl_egress": passes, "bl_xdp": xdpPasses}

// wantUntouched fails the test unless all programs let the packet pass as it is.
func (b *bench) wantUntouched(t *testing.T, what string, packet []byte) {
	t.Helper()
	for program, passes := range letsPass {
		if verdict, out := b.run(t, program, packet); verdict != passes || !bytes.Equal(out, packet) {
			t.Errorf("%s: verdict %d of %s, packet\n% x, was\n% x", what, int32(verdict), program, out, packet)
		}
	}
}

// headerSize is that of the IP header without options.
func headerSize(addr netip.Addr) int {
	if addr.Is4() {
		return 20
	}
	return 40
}

// requests are new connections to the Service, which are translated.
func requests() map[string]frame {
	all := map[string]frame{}
	for name, protocol := range protocols {
		for _, family := range []byte{4, 6} {
			f := frame{from: crafted[family], to: virtual[family], protocol: protocol, flags: flagSYN, payload: "hello"}
			all[fmt.Sprintf("%s %d", name, family)] = f
			if family == 4 {
				f.options = []byte{1, 1, 1, 0}
				all[name+" 4 with options"] = f
				f.options = slices.Repeat([]byte{1}, 40)
				all[name+" 4 with all options"] = f
				continue
			}
			for _, types := range [][]byte{
				{unix.IPPROTO_HOPOPTS},
				{unix.IPPROTO_DSTOPTS},
				{unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS},
			} {
				f.extension = types[0]
				for _, size := range []int{8, 24} {
					f.options = extensions(protocol, size, types...)
					all[fmt.Sprintf("%s 6 with extensions % d of %d bytes", name, types, size)] = f
				}
			}
		}
	}
	return all
}

// TestProgramTranslates: unmodified packets of the connections that other tests damage are
// translated, and so are their replies.
func TestProgramTranslates(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, f := range requests() {
		family := byte(4)
		if f.to.Addr().Is6() {
			family = 6
		}
		want := f
		want.to = backend[family]
		verdict, out := b.run(t, "bl_ingress", f.bytes())
		if verdict != passes || !bytes.Equal(out, want.bytes()) {
			t.Errorf("%s: verdict %d, packet\n% x, want\n% x", name, int32(verdict), out, want.bytes())
		}
		reply := f
		reply.from, reply.to, reply.flags = backend[family], f.from, flagSYN|flagACK
		want = reply
		want.from = virtual[family]
		verdict, out = b.run(t, "bl_egress", reply.bytes())
		if verdict != passes || !bytes.Equal(out, want.bytes()) {
			t.Errorf("reply of %s: verdict %d, packet\n% x, want\n% x", name, int32(verdict), out, want.bytes())
		}
	}
}

// TestProgramTruncated: a packet truncated at any byte passes unchanged. The kernel runs programs on
// no less than an IP header.
func TestProgramTruncated(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, f := range requests() {
		packet := f.bytes()
		for size := ethernetSize + headerSize(f.to.Addr()); size < len(packet); size++ {
			b.wantUntouched(t, fmt.Sprintf("%s cut at %d of %d", name, size, len(packet)), packet[:size])
		}
	}
}

// TestProgramUntouched: packets of protocols that Services do not have pass unchanged.
func TestProgramUntouched(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, packet := range untouched() {
		b.wantUntouched(t, name, packet)
	}
}

// untouched are packets that are to pass as they are.
func untouched() map[string][]byte {
	all := map[string][]byte{
		"ARP": append(ethernet(unix.ETH_P_ARP), make([]byte, 28)...),
	}
	for name, protocol := range protocols {
		for _, family := range []byte{4, 6} {
			f := frame{from: crafted[family], to: virtual[family], protocol: protocol, flags: flagSYN, payload: "hello"}
			name := fmt.Sprintf("%s %d ", name, family)
			all[name+"with a VLAN tag"] = tagged(f.bytes(), 5)
			elsewhere := f
			elsewhere.to = foreign[family]
			all[name+"to no Service"] = elsewhere.bytes()
			middle := f
			middle.flags = flagACK
			middle.from = netip.AddrPortFrom(f.from.Addr(), 4243)
			if protocol == unix.IPPROTO_TCP {
				all[name+"without a flow"] = middle.bytes()
				all[name+"with a short header"] = with(f.bytes(), headerSize(f.to.Addr())+12, 4<<4)
				all[name+"with a long header"] = with(f.bytes(), headerSize(f.to.Addr())+12, 15<<4)
			}
			if family == 4 {
				untouched4(all, name, f)
			} else {
				untouched6(all, name, f)
			}
		}
	}
	return all
}

func untouched4(all map[string][]byte, name string, f frame) {
	packet := f.bytes()
	for _, version := range []byte{0, 5, 6, 15} {
		all[fmt.Sprintf("%sof version %d", name, version)] = with(packet, 0, version<<4|5)
	}
	for length := range byte(5) {
		all[fmt.Sprintf("%swith %d words of header", name, length)] = with(packet, 0, 4<<4|length)
	}
	all[name+"with more header than packet"] = with(packet, 0, 4<<4|15)
	elsewhere := f
	elsewhere.to = foreign[4]
	all[name+"first fragment to no Service"] = with(elsewhere.bytes(), 6, 0x20, 0)
	all[name+"later fragment to no Service"] = with(elsewhere.bytes(), 6, 0x20, 1)
	all[name+"last fragment to no Service"] = with(elsewhere.bytes(), 6, 0x1f, 0xff)
	all[name+"later fragment of another protocol"] = with(with(packet, 6, 0x20, 1), 9, unix.IPPROTO_ICMP)
	all[name+"longer than it is"] = with(packet, 2, 0, byte(len(packet)-ethernetSize+1))
	all[name+"shorter than its headers"] = with(packet, 2, 0, 27)
	for protocol := range 256 {
		if protocol != unix.IPPROTO_TCP && protocol != unix.IPPROTO_UDP {
			all[fmt.Sprintf("%sas protocol %d", name, protocol)] = with(packet, 9, byte(protocol))
		}
	}
}

func untouched6(all map[string][]byte, name string, f frame) {
	packet := f.bytes()
	for _, version := range []byte{0, 4, 15} {
		all[fmt.Sprintf("%sof version %d", name, version)] = with(packet, 0, version<<4)
	}
	all[name+"longer than it is"] = with(packet, 4, 0, byte(len(packet)-ethernetSize-40+1))
	all[name+"shorter than its headers"] = with(packet, 4, 0, 7)
	for protocol := range 256 {
		switch protocol {
		case unix.IPPROTO_TCP, unix.IPPROTO_UDP:
		default:
			all[fmt.Sprintf("%sas protocol %d", name, protocol)] = with(packet, 6, byte(protocol))
		}
	}
	later := f
	later.to = foreign[6]
	later.extension = unix.IPPROTO_FRAGMENT
	later.options = []byte{f.protocol, 0, 0, 9, 0, 0, 0, 1}
	all[name+"in a later fragment to no Service"] = later.bytes()
	later.to = f.to
	later.options = []byte{unix.IPPROTO_ICMPV6, 0, 0, 9, 0, 0, 0, 1}
	all[name+"as ICMP in a later fragment"] = later.bytes()
	f.extension = unix.IPPROTO_DSTOPTS
	f.options = extensions(f.protocol, 8, slices.Repeat([]byte{f.extension}, 9)...)
	all[name+"behind nine extensions"] = f.bytes()
}

// FuzzPrograms: whatever comes in, a packet to no address of a Service passes as it
// is, and one with right checksums goes on with right ones.
func FuzzPrograms(f *testing.F) {
	for _, packet := range untouched() {
		f.Add(packet)
	}
	for _, request := range requests() {
		f.Add(request.bytes())
	}
	b := newBench(f)
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) < ethernetSize+headerSize(netip.IPv6Unspecified()) || len(packet) > 1500 {
			return
		}
		before := checkPacket(packet[ethernetSize:])
		for program := range letsPass {
			verdict, out := b.run(t, program, packet)
			if !slices.Contains(verdicts(program), verdict) {
				t.Errorf("verdict %d of %s", int32(verdict), program)
			}
			if bytes.Equal(out, packet) {
				continue
			}
			if !forService(packet) {
				t.Errorf("%s has made\n% x of\n% x", program, out, packet)
			}
			if after := checkPacket(out[ethernetSize:]); before == nil && after != nil {
				t.Errorf("%s has spoiled a checksum: %v", program, after)
			}
		}
	})
}

// verdicts are those that a program may return.
func verdicts(program string) []uint32 {
	if program == "bl_xdp" {
		return []uint32{xdpDrops, xdpPasses, xdpSends, xdpRedirects}
	}
	return []uint32{passes, dropped, redirect}
}

// forService reports whether one of the Service's addresses is in the packet.
func forService(packet []byte) bool {
	for _, family := range []byte{4, 6} {
		for _, addr := range []netip.AddrPort{virtual[family], backend[family]} {
			if bytes.Contains(packet, addr.Addr().AsSlice()) {
				return true
			}
		}
	}
	return false
}
