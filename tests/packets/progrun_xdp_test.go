package packets_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/tests/lab"
)

// xdpBench is a host whose uplink can send what XDP makes, and a Service with one
// backend behind it.
type xdpBench struct {
	*lab.Host
	agent    *lab.Agent
	programs *loader
	program  string // that is run
	maps     *bpfmap.Maps
	device   devicemap.Device
	macs     map[int]devicemap.MAC // as XDP knows them; frames have none unless given
}

// xdpBackend is beyond the gateway.
var xdpBackend = map[byte]netip.AddrPort{
	4: netip.MustParseAddrPort("203.0.113.7:8080"),
	6: netip.MustParseAddrPort("[2001:db8:7::7]:8080"),
}

// The MAC addresses of the gateway and of the uplink.
var gatewayMAC, uplinkMAC = net.HardwareAddr{2, 0, 0, 0, 1, 1}, net.HardwareAddr{2, 0, 0, 0, 1, 2}

func newXDPBench(t *testing.T) *xdpBench {
	t.Helper()
	return newXDPBenchWith(t, lab.AgentOptions{})
}

// newXDPBenchWith makes a bench whose agent has options.
func newXDPBenchWith(t *testing.T, options lab.AgentOptions) *xdpBench {
	t.Helper()
	h := lab.NewHost(t)
	forward(h.Namespace)
	b := &xdpBench{Host: h, program: bpf.XdpProgBlXdp}
	a := h.Serve(options)
	a.Apply(lab.Service("web", `{clusterIPs: [10.96.0.1, "fd96::1"], ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}`),
		lab.Slice("web", "t:8080/TCP,u:8080/UDP", xdpBackend[4].Addr()), lab.Slice("web", "t:8080/TCP,u:8080/UDP", xdpBackend[6].Addr()))
	b.agent, b.maps = a, a.Maps()
	b.programs = newLoader(t, b.maps, datapath.Constants{})
	b.device = devicemap.Device{ID: 1, Name: lab.Uplink, MTU: 1500, Addr4: lab.Node4, Addr6: lab.Node6, XDPSend: true}
	if err := h.Run(func() error { return b.setUplink(t) }); err != nil {
		t.Fatal(err)
	}
	return b
}

// setUplink makes known what the program needs to send by the uplink.
func (b *xdpBench) setUplink(t *testing.T) error {
	t.Helper()
	l, err := netlink.LinkByName(lab.Uplink)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetHardwareAddr(l, uplinkMAC); err != nil {
		return err
	}
	for _, gateway := range []netip.Addr{lab.Outside4, lab.Outside6} {
		if err := netlink.NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: gateway.AsSlice(), HardwareAddr: gatewayMAC,
		}); err != nil {
			return err
		}
	}
	b.device.Ifindex, b.device.Root = l.Attrs().Index, l.Attrs().Index
	b.macs = map[int]devicemap.MAC{b.device.Ifindex: {}}
	return errors.Join(devicemap.New(b.maps).Put(b.device), devicemap.New(b.maps).SetMACs(b.macs))
}

// xdpContext is struct xdp_md of linux/bpf.h.
type xdpContext struct {
	Data, DataEnd, DataMeta, Ingress, Queue, Egress uint32
}

// run returns the verdict on a packet that the uplink gets and the packet as it is
// then.
func (b *xdpBench) run(t *testing.T, packet []byte) (uint32, []byte) {
	t.Helper()
	return b.runAt(t, b.device.Ifindex, packet)
}

// runAt is run for the device of that index.
func (b *xdpBench) runAt(t *testing.T, ifindex int, packet []byte) (uint32, []byte) {
	t.Helper()
	options := &ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+256),
		Context: xdpContext{DataEnd: uint32(len(packet)), Ingress: uint32(ifindex)}}
	p := b.programs.program(t, b.program)
	var verdict uint32
	err := b.Run(func() (err error) {
		verdict, err = p.Run(options)
		return err
	})
	if err != nil {
		t.Fatalf("run on % x: %v", packet, err)
	}
	return verdict, options.DataOut
}

// sent returns the frame that XDP is to make of f.
func sent(f frame) []byte {
	packet := hopLess(f)
	copy(packet, gatewayMAC)
	copy(packet[6:], uplinkMAC)
	return packet
}

// hopLess returns the packet with one hop less to live.
func hopLess(f frame) []byte {
	packet := f.bytes()
	if f.to.Addr().Is6() {
		packet[ethernetSize+7]--
		return packet
	}
	header := packet[ethernetSize : ethernetSize+20]
	header[8]--
	header[10], header[11] = 0, 0
	checksum := ^sum(0, header)
	header[10], header[11] = byte(checksum>>8), byte(checksum)
	return packet
}

// TestXDPLeavesFramesOfOthers: only what is sent to the device's own address is served,
// also of a VLAN, and nothing else makes a flow.
func TestXDPLeavesFramesOfOthers(t *testing.T) {
	t.Parallel()
	b := newVLANBench(t)
	own := make([]net.HardwareAddr, len(b.networks))
	for i, n := range b.networks {
		own[i] = n.mac
		b.macs[n.device.Ifindex] = devicemap.MAC(n.mac)
	}
	if err := devicemap.New(b.maps).SetMACs(b.macs); err != nil {
		t.Fatal(err)
	}
	b.eachFlow(func(name string, steps []vlanStep) {
		step := steps[0]
		packet := withTags(step.in.bytes(), step.from.device.Tags)
		others := []net.HardwareAddr{
			{0, 0, 0, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, {1, 0, 0x5e, 0, 0, 1}, {0x33, 0x33, 0, 0, 0, 1},
		}
		for bit := range 48 {
			other := slices.Clone(step.from.mac)
			other[bit/8] ^= 1 << (bit % 8)
			if !slices.ContainsFunc(own, func(mac net.HardwareAddr) bool { return bytes.Equal(mac, other) }) {
				others = append(others, other)
			}
		}
		for _, other := range others {
			b.wantPassed(t, fmt.Sprintf("%s to %s", name, other), toMAC(packet, other))
		}
		if verdict, _ := b.run(t, toMAC(packet, step.from.mac)); verdict != xdpSends {
			t.Errorf("%s: verdict %d on a frame for the device", name, verdict)
		}
	})
	for batch, err := range flowmap.New(b.maps).Batches(bpf.Clock) {
		if err != nil {
			t.Fatal(err)
		}
		if want := int(b.port) - 20000; len(batch.Flows) != want {
			t.Errorf("there are %d flows, want %d", len(batch.Flows), want)
		}
	}
}

// xdpRequests are clients' packets that XDP forwards, and some that only tc does.
func xdpRequests() map[string]frame {
	all := map[string]frame{}
	for name, protocol := range protocols {
		for _, family := range []byte{4, 6} {
			all[fmt.Sprintf("%s %d", name, family)] = frame{
				from: crafted[family], to: virtual[family], protocol: protocol, flags: flagSYN,
				payload: "a payload that is longer than a TCP header",
			}
		}
	}
	return all
}

func familyOf(f frame) byte {
	if f.to.Addr().Is4() {
		return 4
	}
	return 6
}

func nodeAddrOf(f frame) netip.Addr {
	if f.to.Addr().Is4() {
		return lab.Node4
	}
	return lab.Node6
}

// TestXDPTranslates: the first packet of a flow, its reply, and the next.
func TestXDPTranslates(t *testing.T) {
	t.Parallel()
	b := newXDPBench(t)
	for name, f := range xdpRequests() {
		family := familyOf(f)
		forward := f
		forward.from, forward.to = netip.AddrPortFrom(nodeAddrOf(f), f.from.Port()), xdpBackend[family]
		reply := f
		reply.from, reply.to, reply.flags = forward.to, forward.from, flagSYN|flagACK
		back := reply
		back.from, back.to = f.to, f.from
		for i, step := range []struct{ in, out frame }{{f, forward}, {reply, back}, {f, forward}} {
			verdict, out := b.run(t, step.in.bytes())
			if verdict != xdpSends || !bytes.Equal(out, sent(step.out)) {
				t.Errorf("%s, packet %d: verdict %d, frame\n% x, want\n% x", name, i, verdict, out, sent(step.out))
			}
		}
	}
}

// TestXDPFirstPacketAgain: a SYN that is retransmitted within a second finds its flow, whichever
// backend a new one would get, and leaves no other entries.
func TestXDPFirstPacketAgain(t *testing.T) {
	t.Parallel()
	b := newXDPBench(t)
	for _, family := range families {
		var addrs []netip.Addr
		for addr := xdpBackend[family].Addr(); len(addrs) < 16; addr = addr.Next() {
			addrs = append(addrs, addr)
		}
		b.agent.Apply(lab.Slice("web", "t:8080/TCP,u:8080/UDP", addrs...))
	}
	port := uint16(7000)
	for name, f := range xdpRequests() {
		if f.protocol != unix.IPPROTO_TCP {
			continue
		}
		// On a busy machine the second may end before: then another flow is tried.
		for within := false; !within; {
			port++
			f.from = netip.AddrPortFrom(f.from.Addr(), port)
			want := b.count(t)
			want.halfOpen, want.connections, want.entries = want.halfOpen+1, want.connections+1, want.entries+2
			awaitSecond(t)
			second := coarseSecond(t)
			err := b.repeat(t, f)
			if within = coarseSecond(t) == second; !within {
				continue
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if got := b.count(t); got != want {
				t.Errorf("%s: there are %+v, want %+v", name, got, want)
			}
		}
	}
}

// repeat sends a SYN 40 times. All have to go the way of the first.
func (b *xdpBench) repeat(t *testing.T, f frame) error {
	t.Helper()
	verdict, first := b.run(t, f.bytes())
	if verdict != xdpSends {
		return fmt.Errorf("verdict %d on the first SYN", verdict)
	}
	for i := range 39 {
		if verdict, again := b.run(t, f.bytes()); verdict != xdpSends || !bytes.Equal(again, first) {
			return fmt.Errorf("verdict %d on SYN %d, frame\n% x, want\n% x", verdict, i+2, again, first)
		}
	}
	return nil
}

// flowCounts are what new flows add to.
type flowCounts struct {
	halfOpen    int64
	connections uint64
	entries     uint32 // of bl_flow
}

func (b *xdpBench) count(t *testing.T) flowCounts {
	t.Helper()
	n := flowCounts{halfOpen: flowmap.New(b.maps).HalfOpen().Count, connections: connections(t, b.maps)}
	have, err := servicemap.New(b.maps).Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	all, err := statusmap.New(b.maps).Fill(have)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.Map == "bl_flow" {
			n.entries = m.Entries
		}
	}
	return n
}

// coarseSecond returns the second of the programs' clock.
func coarseSecond(t *testing.T) int64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		t.Fatal(err)
	}
	return now.Sec
}

// awaitSecond returns when a second of the programs' clock begins.
func awaitSecond(t *testing.T) {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	// The coarse clock is late by a tick.
	time.Sleep(time.Second - time.Duration(now.Nsec) + 20*time.Millisecond)
}

// TestXDPLeavesToTC: packets that XDP cannot send pass unchanged to tc, of known flows and of others.
func TestXDPLeavesToTC(t *testing.T) {
	t.Parallel()
	b := newXDPBench(t)
	port := uint16(6000)
	for name, f := range xdpRequests() {
		for _, known := range []bool{false, true} {
			port++
			f.from = netip.AddrPortFrom(f.from.Addr(), port)
			if known {
				if verdict, _ := b.run(t, f.bytes()); verdict != xdpSends {
					t.Fatalf("%s: verdict %d on the first packet", name, verdict)
				}
			}
			check := func(what string, packet []byte) {
				t.Helper()
				if verdict, out := b.run(t, packet); verdict != xdpPasses || !bytes.Equal(out, packet) {
					t.Errorf("%s %s, flow known %v: verdict %d, packet\n% x, was\n% x", name, what, known, verdict, out, packet)
				}
			}
			packet := f.bytes()
			for size := ethernetSize; size < len(packet); size++ {
				check(fmt.Sprintf("cut at %d of %d", size, len(packet)), packet[:size])
			}
			check("with a VLAN tag", tagged(packet, 5))
			check("at its last hop", lastHop(f))
			withOptions := f
			withOptions.options, withOptions.extension = []byte{1, 1, 1, 0}, unix.IPPROTO_DSTOPTS
			if familyOf(f) == 6 {
				withOptions.options = extensions(f.protocol, 8, unix.IPPROTO_DSTOPTS)
			}
			check("with options", withOptions.bytes())
			b.leaves(t, f, check)
		}
	}
}

// leaves checks what passes because of the device or of the route.
func (b *xdpBench) leaves(t *testing.T, f frame, check func(string, []byte)) {
	t.Helper()
	for what, change := range map[string]func(*devicemap.Device){
		"longer than the MTU":           func(d *devicemap.Device) { d.MTU = len(f.bytes()) - ethernetSize - 1 },
		"by a device that cannot send":  func(d *devicemap.Device) { d.XDPSend = false },
		"to a device that is no longer": func(d *devicemap.Device) { d.Ifindex = 4242 },
	} {
		device := b.device
		change(&device)
		if err := devicemap.New(b.maps).Put(device); err != nil {
			t.Fatal(err)
		}
		check(what, f.bytes())
		if err := devicemap.New(b.maps).Put(b.device); err != nil {
			t.Fatal(err)
		}
	}
}

// lastHop returns the packet as one that may not be forwarded any more.
func lastHop(f frame) []byte {
	packet := f.bytes()
	if f.to.Addr().Is6() {
		packet[ethernetSize+7] = 1
		return packet
	}
	header := packet[ethernetSize : ethernetSize+20]
	header[8], header[10], header[11] = 1, 0, 0
	checksum := ^sum(0, header)
	header[10], header[11] = byte(checksum>>8), byte(checksum)
	return packet
}

// TestXDPKeepsNoChecksum: a UDP datagram over IPv4 without a checksum is forwarded without one.
func TestXDPKeepsNoChecksum(t *testing.T) {
	t.Parallel()
	b := newXDPBench(t)
	f := xdpRequests()["UDP 4"]
	without := func(packet []byte) []byte {
		packet = slices.Clone(packet)
		packet[ethernetSize+20+6], packet[ethernetSize+20+7] = 0, 0
		return packet
	}
	forward := f
	forward.from, forward.to = netip.AddrPortFrom(lab.Node4, f.from.Port()), xdpBackend[4]
	verdict, out := b.run(t, without(f.bytes()))
	if want := without(sent(forward)); verdict != xdpSends || !bytes.Equal(out, want) {
		t.Errorf("verdict %d, frame\n% x, want\n% x", verdict, out, want)
	}
}

// tunnelNode is beyond the gateway, too.
var tunnelNode = map[byte]netip.Addr{4: netip.MustParseAddr("203.0.113.2"), 6: netip.MustParseAddr("2001:db8:7::2")}

// serveByTunnel makes the backend one of another node, whose tunnel ends at an address of a
// family, and has programs that know the tunnel.
func (b *xdpBench) serveByTunnel(t *testing.T, outer byte) {
	t.Helper()
	web := lab.Service("web", `{clusterIPs: [10.96.0.1, "fd96::1"], ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}`)
	manifests := []string{
		strings.Replace(web, "namespace: default", "namespace: default, annotations: {service.beeline.io/forwarding-mode: dsr}", 1),
		nodeManifest(2, tunnelNode[outer]),
	}
	for _, family := range families {
		manifests = append(manifests, lab.SliceOf("web", "t:8080/TCP,u:8080/UDP",
			fmt.Sprintf("{addresses: [%q], nodeName: node2}", xdpBackend[family].Addr())))
	}
	b.agent.Apply(manifests...)
	id, err := nodemap.New(b.maps).NodeOf(tunnelNode[outer])
	if err != nil || id == 0 {
		t.Fatalf("the node has the id %d, %v", id, err)
	}
	nodemap.New(b.maps).SetAnswer(id, tunnelNode[outer], nodemap.Accepts)
	b.programs = newLoader(t, b.maps, datapath.Constants{TunnelPort: dsrPort})
}

// tc is a bench of the same host and programs.
func (b *xdpBench) tc() *bench {
	return &bench{b.Host, b.agent, b.maps, b.programs}
}

// TestTunnelOnTheWire: XDP and tc encapsulate alike: all packets of a flow from one source port, with
// the client's DSCP, and the inner packet unchanged but for its TTL.
func TestTunnelOnTheWire(t *testing.T) {
	t.Parallel()
	for _, outer := range families {
		b := newXDPBench(t)
		b.serveByTunnel(t, outer)
		tc := b.tc()
		secret := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
		nodemap.New(b.maps).SetMarks(secret, secret, [8]byte{9})
		ports := make(map[uint16]bool)
		for name, f := range xdpRequests() {
			family := familyOf(f)
			inner := hopLess(f)
			verdict, out := b.run(t, f.bytes())
			if len(out) < ethernetSize+headerSize(tunnelNode[outer]) {
				t.Fatalf("%s: verdict %d, packet % x", name, verdict, out)
			}
			port := binary.BigEndian.Uint16(out[ethernetSize+headerSize(tunnelNode[outer]):])
			want := tunnelled(map[byte]netip.Addr{4: lab.Node4, 6: lab.Node6}[outer], tunnelNode[outer], port, xdpBackend[family], inner)
			want = with(want, headerSize(tunnelNode[outer])+secretAt, secret[:]...)
			copy(want, gatewayMAC)
			copy(want[6:], uplinkMAC)
			if verdict != xdpSends || port < 0xc000 || !bytes.Equal(out, want) {
				t.Errorf("%s over IPv%d: verdict %d of XDP, frame\n% x, want\n% x", name, outer, verdict, out, want)
			}
			ports[port] = true
			f.flags = flagACK // the next packet, by tc
			want = tunnelled(map[byte]netip.Addr{4: lab.Node4, 6: lab.Node6}[outer], tunnelNode[outer], port, xdpBackend[family], hopLess(f))
			want = with(want, headerSize(tunnelNode[outer])+secretAt, secret[:]...)
			verdict, out = tc.run(t, "bl_ingress", f.bytes())
			if verdict != redirect || !bytes.Equal(out[ethernetSize:], want[ethernetSize:]) {
				t.Errorf("%s over IPv%d: verdict %d of tc, packet\n% x, want\n% x", name, outer, verdict, out, want)
			}
			for program, out := range map[string][]byte{"XDP": second(b.run(t, expedited(f))), "tc": second(tc.run(t, "bl_ingress", expedited(f)))} {
				if got := serviceClass(out); got != 0xb8 {
					t.Errorf("%s over IPv%d: %s has sent it with the class %#x", name, outer, program, got)
				}
			}
		}
		if len(ports) < 2 {
			t.Errorf("all flows leave by the ports %v", ports)
		}
	}
}

func second(_ uint32, packet []byte) []byte { return packet }

// expedited returns the packet with the class of expedited forwarding (RFC 3246), and a
// mark of congestion.
func expedited(f frame) []byte {
	packet := f.bytes()
	if f.to.Addr().Is6() {
		packet[ethernetSize], packet[ethernetSize+1] = 6<<4|0xbb>>4, 0xbb&0xf<<4
		return packet
	}
	header := packet[ethernetSize : ethernetSize+20]
	header[1], header[10], header[11] = 0xbb, 0, 0
	checksum := ^sum(0, header)
	header[10], header[11] = byte(checksum>>8), byte(checksum)
	return packet
}

// serviceClass returns the byte of an IP header that has it.
func serviceClass(packet []byte) byte {
	ip := packet[ethernetSize:]
	if ip[0]>>4 == 4 {
		return ip[1]
	}
	return ip[0]<<4 | ip[1]>>4
}
