package packets_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/tests/lab"
)

var (
	// selfNode and otherNode are addresses of this node and another of the cluster.
	selfNode  = map[byte]netip.Addr{4: lab.Node4, 6: lab.Node6}
	otherNode = map[byte]netip.Addr{4: netip.MustParseAddr("192.0.2.3"), 6: netip.MustParseAddr("2001:db8::3")}
	// elsewhere is a backend that the uplink leads to.
	elsewhere = map[byte]netip.AddrPort{
		4: netip.MustParseAddrPort("203.0.113.7:8080"),
		6: netip.MustParseAddrPort("[2001:db8:7::7]:8080"),
	}
)

var families = []byte{4, 6}

// newTunnelBench makes a bench of a node that takes packets of the tunnel from another.
func newTunnelBench(t testing.TB) *bench {
	t.Helper()
	b := newBenchWith(t, bpfmap.Constants{TunnelPort: dsrPort, TunnelClamp: true})
	forward(b.host.Namespace)
	putNode(t, b.host.BPFFS, 1, nodeSelf, selfNode[4], selfNode[6])
	putNode(t, b.host.BPFFS, 2, 0, otherNode[4], otherNode[6])
	err := b.host.Run(func() error {
		l, err := netlink.LinkByName(lab.Uplink)
		if err != nil {
			return err
		}
		return b.maps.PutDevice(bpfmap.Device{ID: 1, Name: lab.Uplink, Ifindex: l.Attrs().Index, MTU: 1500, Addr4: lab.Node4, Addr6: lab.Node6})
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// toThisNode returns the packet as the tunnel brings it over the family.
func toThisNode(outer byte, to netip.AddrPort, packet []byte) []byte {
	return tunnelled(otherNode[outer], selfNode[outer], 0xc123, to, packet)
}

// TestProgramTakesOut: what the tunnel brings becomes the packet that it was, and is
// then served as one of a client, whether this node knows the Service or not.
func TestProgramTakesOut(t *testing.T) {
	t.Parallel()
	b := newTunnelBench(t)
	port := uint16(5000)
	for name, f := range requests() {
		for _, outer := range families {
			for _, to := range []netip.AddrPort{virtual[familyOf(f)], foreign[familyOf(f)]} {
				port++
				f.from, f.to = netip.AddrPortFrom(f.from.Addr(), port), to
				at := netip.AddrPortFrom(backend[familyOf(f)].Addr().Next(), 8888)
				what := fmt.Sprintf("%s to %s over IPv%d", name, to, outer)
				verdict, out := b.run(t, "bl_ingress", toThisNode(outer, at, f.bytes()))
				out = unpadded(out, len(f.bytes()))
				if verdict != redirect || !bytes.Equal(out, f.bytes()) {
					t.Errorf("%s: verdict %d, packet\n% x, want\n% x", what, int32(verdict), out, f.bytes())
					continue
				}
				want := f
				want.to = at
				if verdict, out := b.run(t, "bl_ingress", out); verdict != passes || !bytes.Equal(out, want.bytes()) {
					t.Errorf("%s, then: verdict %d, packet\n% x, want\n% x", what, int32(verdict), out, want.bytes())
				}
				reply := f
				reply.from, reply.to, reply.flags = at, f.from, flagSYN|flagACK
				want = reply
				want.from = to
				if verdict, out := b.run(t, "bl_egress", reply.bytes()); verdict != passes || !bytes.Equal(out, want.bytes()) {
					t.Errorf("the reply to %s: verdict %d, packet\n% x, want\n% x", what, int32(verdict), out, want.bytes())
				}
			}
		}
	}
}

// unpadded returns the packet without zeros after its first size bytes, which the kernel
// wants when an IPv6 header comes off a packet that is shorter than that.
func unpadded(packet []byte, size int) []byte {
	if len(packet) > ethernetSize+40 || len(packet) < size || len(bytes.Trim(packet[size:], "\x00")) > 0 {
		return packet
	}
	return packet[:size]
}

// TestProgramTunnelDrops: what no node of the cluster has sent to this one in the tunnel
// is dropped, and counted as what it is.
func TestProgramTunnelDrops(t *testing.T) {
	t.Parallel()
	b := newTunnelBench(t)
	for _, outer := range families {
		for name, f := range requests() {
			good := toThisNode(outer, backend[familyOf(f)], f.bytes())
			stranger := netip.AddrPortFrom(foreign[outer].Addr(), 1).Addr()
			b.wantDropped(t, name+" of a stranger", "tunnel_stranger",
				tunnelled(stranger, selfNode[outer], 0xc123, backend[familyOf(f)], f.bytes()))
			b.wantDropped(t, name+" of this node", "tunnel_stranger",
				tunnelled(selfNode[outer], selfNode[outer], 0xc123, backend[familyOf(f)], f.bytes()))
			b.wantDropped(t, name+" to a backend elsewhere", "tunnel_no_backend", toThisNode(outer, elsewhere[familyOf(f)], f.bytes()))
			for what, packet := range spoiled(outer, f, good) {
				b.wantDropped(t, fmt.Sprintf("%s over IPv%d, %s", name, outer, what), "tunnel_malformed", packet)
			}
		}
	}
	flows, replies := b.flows(t)
	if flows+replies > 0 {
		t.Errorf("%d flows and %d reply entries have come of it", flows, replies)
	}
}

// flows counts the entries of the flow table.
func (b *bench) flows(t *testing.T) (flows, replies int) {
	t.Helper()
	for batch, err := range b.maps.FlowBatches(bpfmap.Clock) {
		if err != nil {
			t.Fatal(err)
		}
		flows, replies = flows+len(batch.Flows), replies+len(batch.Replies)
	}
	return flows, replies
}

// wantDropped fails the test unless both programs at ingress drop the packet and count it
// under a name. XDP may leave it to tc.
func (b *bench) wantDropped(t *testing.T, what, reason string, packet []byte) {
	t.Helper()
	before := reasonCount(t, b.maps, reason)
	if verdict, _ := b.run(t, "bl_ingress", packet); verdict != dropped {
		t.Errorf("%s: verdict %d of tc", what, int32(verdict))
	}
	if n := reasonCount(t, b.maps, reason) - before; n != 1 {
		t.Errorf("%s: %s counted %d times by tc", what, reason, n)
	}
	verdict, out := b.run(t, "bl_xdp", packet)
	if verdict != xdpDrops && (verdict != xdpPasses || !bytes.Equal(out, packet)) {
		t.Errorf("%s: verdict %d of XDP, packet\n% x, was\n% x", what, verdict, out, packet)
	}
	if n := reasonCount(t, b.maps, reason) - before; (n == 2) != (verdict == xdpDrops) {
		t.Errorf("%s: verdict %d of XDP, %s counted %d times", what, verdict, reason, n-1)
	}
}

// spoiled are packets of the tunnel that no node would send.
func spoiled(outer byte, f frame, good []byte) map[string][]byte {
	udp := headerSize(selfNode[outer])
	inner := udp + innerAt
	all := map[string][]byte{
		"another version":             with(good, udp+geneveAt, 1<<6|6),
		"no options":                  with(good, udp+geneveAt, 0),
		"a word of options less":      with(good, udp+geneveAt, 5),
		"a word of options more":      with(good, udp+geneveAt, 7),
		"all options":                 with(good, udp+geneveAt, 63),
		"no critical options":         with(good, udp+geneveAt+1, 0),
		"reserved flags":              with(good, udp+geneveAt+1, 0x41),
		"an Ethernet frame":           with(good, udp+geneveAt+2, 0x65, 0x58),
		"another family":              with(good, udp+geneveAt+2, good[ethernetSize+udp+geneveAt+2]^0x8e),
		"a network":                   with(good, udp+geneveAt+4, 0, 0, 1),
		"another class":               with(good, udp+optionAt, 0xff, 0xfa),
		"another type":                with(good, udp+optionAt+2, 0x80),
		"another length":              with(good, udp+optionAt+3, 4),
		"another length and reserved": with(good, udp+optionAt+3, 5|1<<5),
		"another IP version":          with(good, inner, 5<<4|5),
	}
	protocol := []byte{unix.IPPROTO_GRE}
	if familyOf(f) == 4 {
		all["another protocol"] = with(good, inner+9, protocol...)
		all["a short header"] = with(good, inner, 4<<4|4)
		all["longer than it is"] = with(good, inner+2, 0x5, 0xc0)
		all["shorter than its headers"] = with(good, inner+2, 0, 21)
	} else if len(f.options) == 0 {
		all["another protocol"] = with(good, inner+6, protocol...)
		all["longer than it is"] = with(good, inner+4, 0x5, 0xc0)
		all["shorter than its headers"] = with(good, inner+4, 0, 7)
	}
	packet := f.bytes()
	for size := ethernetSize + 1; size < len(packet); size++ {
		all[fmt.Sprintf("cut short to %d of %d", size, len(packet))] = toThisNode(outer, backend[familyOf(f)], packet[:size])
	}
	nested := f
	nested.protocol, nested.to = unix.IPPROTO_UDP, netip.AddrPortFrom(f.to.Addr(), dsrPort)
	nested.options = nil
	all["the tunnel again"] = toThisNode(outer, backend[familyOf(f)], nested.bytes())
	return all
}

// TestProgramTunnelCut: a packet of the tunnel that is shorter than it says is nobody's.
func TestProgramTunnelCut(t *testing.T) {
	t.Parallel()
	b := newTunnelBench(t)
	for _, outer := range families {
		for name, f := range requests() {
			packet := toThisNode(outer, backend[familyOf(f)], f.bytes())
			for size := ethernetSize + headerSize(selfNode[outer]); size < len(packet); size++ {
				b.wantUntouched(t, fmt.Sprintf("%s over IPv%d, cut at %d of %d", name, outer, size, len(packet)), packet[:size])
			}
		}
	}
}

// TestProgramTunnelPasses: what is not of the tunnel, or not for this node, passes; so
// does what is for the agent.
func TestProgramTunnelPasses(t *testing.T) {
	t.Parallel()
	b := newTunnelBench(t)
	for _, outer := range families {
		f := requests()[fmt.Sprintf("TCP %d", outer)]
		good := toThisNode(outer, backend[outer], f.bytes())
		udp := headerSize(selfNode[outer])
		for what, packet := range map[string][]byte{
			"to another node":  tunnelled(otherNode[outer], foreign[outer].Addr(), 0xc123, backend[outer], f.bytes()),
			"to another port":  with(good, udp+2, 0x17, 0xc1),
			"to be TCP":        with(good, map[byte]int{4: 9, 6: 6}[outer], unix.IPPROTO_TCP),
			"of the agents":    with(good, udp+geneveAt+1, 0x80),
			"of agents, short": slices.Clip(control(outer)),
		} {
			b.wantUntouched(t, fmt.Sprintf("IPv%d %s", outer, what), packet)
		}
		if outer == 4 {
			b.wantUntouched(t, "a first fragment", with(good, 6, 0x20, 0))
		}
	}
}

// control returns a packet of an agent that has nothing but a Geneve header.
func control(family byte) []byte {
	packet := tunnelled(otherNode[family], selfNode[family], dsrPort, backend[family], make([]byte, ethernetSize))
	packet = packet[:ethernetSize+headerSize(selfNode[family])+optionAt]
	udp := headerSize(selfNode[family])
	if family == 4 {
		packet = with(packet, 2, 0, byte(udp+optionAt))
	} else {
		packet = with(packet, 4, 0, optionAt)
	}
	packet = with(packet, udp+4, 0, optionAt)
	return with(packet, udp+geneveAt, 0, 0x80)
}

// crowd lets the programs know of so many half-open flows that the next ones go to the
// table beside.
func crowd(maps *bpfmap.Maps) { maps.CountHalfOpen(maps.HalfOpen(), maps.MaxFlows()) }

// onlyFlow returns the one flow that is there.
func onlyFlow(t *testing.T, maps *bpfmap.Maps) (only bpfmap.Flow, replies int) {
	t.Helper()
	flows := 0
	for batch, err := range maps.FlowBatches(bpfmap.Clock) {
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range batch.Flows {
			only = f
			flows++
		}
		replies += len(batch.Replies)
	}
	if flows != 1 {
		t.Fatalf("%d flows are there", flows)
	}
	return only, replies
}

// TestTunnelInAFlood: flows that begin when half-open ones have used up their share move
// to the others when they are established, also such as leave by the tunnel or come by it.
func TestTunnelInAFlood(t *testing.T) {
	t.Parallel()
	syn := xdpRequests()["TCP 4"]
	ack := syn
	ack.flags = flagACK
	t.Run("leaves", func(t *testing.T) {
		t.Parallel()
		b := newXDPBench(t)
		tc := &bench{host: b.Host, maps: b.maps, programs: map[string]*ebpf.Program{"bl_ingress": b.serveByTunnel(t, 4)}}
		crowd(b.maps)
		for i, step := range []struct {
			run   func() uint32
			want  uint32
			aside bool
		}{
			{func() uint32 { verdict, _ := b.run(t, syn.bytes()); return verdict }, xdpSends, true},
			{func() uint32 { verdict, _ := tc.run(t, "bl_ingress", syn.bytes()); return verdict }, redirect, true},
			{func() uint32 { verdict, _ := tc.run(t, "bl_ingress", ack.bytes()); return verdict }, redirect, false},
			{func() uint32 { verdict, _ := b.run(t, ack.bytes()); return verdict }, xdpSends, false},
		} {
			if got := step.run(); got != step.want {
				t.Errorf("packet %d: verdict %d", i, int32(got))
			}
			flow, replies := onlyFlow(t, b.maps)
			if flow.Overflow != step.aside || flow.State.HalfOpen() != step.aside || flow.Tunnel != bpfmap.LeavesByTunnel || replies != 0 {
				t.Errorf("after packet %d, with %d reply entries: %+v", i, replies, flow)
			}
		}
	})
	t.Run("comes", func(t *testing.T) {
		t.Parallel()
		b := newTunnelBench(t)
		crowd(b.maps)
		synAck := frame{from: backend[4], to: syn.from, protocol: syn.protocol, flags: flagSYN | flagACK}
		for i, step := range []struct {
			program string
			packet  []byte
			aside   bool
		}{
			{"bl_ingress", toThisNode(4, backend[4], syn.bytes()), true},
			{"bl_ingress", syn.bytes(), true},
			{"bl_egress", synAck.bytes(), true},
			{"bl_ingress", toThisNode(4, backend[4], ack.bytes()), true},
			{"bl_ingress", ack.bytes(), false},
		} {
			if verdict, _ := b.run(t, step.program, step.packet); verdict == dropped {
				t.Errorf("packet %d is dropped", i)
			}
			flow, replies := onlyFlow(t, b.maps)
			if flow.Overflow != step.aside || flow.State.HalfOpen() != step.aside || flow.Tunnel != bpfmap.ComesByTunnel || replies != 1 {
				t.Errorf("after packet %d, with %d reply entries: %+v", i, replies, flow)
			}
		}
	})
}

// TestTunnelChoice: the backend that the tunnel brings is the flow's, but for a connection
// that is established with another one. What comes without the tunnel begins anew.
func TestTunnelChoice(t *testing.T) {
	t.Parallel()
	b := newTunnelBench(t)
	first := netip.AddrPortFrom(lab.Backend4(2), 8888)
	second := netip.AddrPortFrom(lab.Backend4(3), 9999)
	own := backend[4] // of the Service on this node
	// step sends a packet, by the tunnel unless via is not valid, and tells who gets it.
	step := func(what string, f frame, via, want netip.AddrPort) {
		t.Helper()
		if via.IsValid() {
			if verdict, _ := b.run(t, "bl_ingress", toThisNode(4, via, f.bytes())); verdict != redirect {
				t.Errorf("%s: verdict %d on the packet of the tunnel", what, int32(verdict))
			}
		}
		to := f
		to.to = want
		if verdict, out := b.run(t, "bl_ingress", f.bytes()); verdict != passes || !bytes.Equal(out, to.bytes()) {
			t.Errorf("%s: verdict %d, packet\n% x, want\n% x", what, int32(verdict), out, to.bytes())
		}
	}
	reply := func(f frame, from netip.AddrPort, flags byte) {
		t.Helper()
		f.from, f.to, f.flags = from, f.from, flags
		if verdict, _ := b.run(t, "bl_egress", f.bytes()); verdict != passes {
			t.Errorf("verdict %d on a reply", int32(verdict))
		}
	}
	none := netip.AddrPort{}

	udp := frame{from: crafted[4], to: virtual[4], protocol: unix.IPPROTO_UDP, payload: "a datagram of some length"}
	step("UDP", udp, first, first)
	step("UDP to another backend", udp, second, second)
	step("UDP to the former", udp, first, first)
	time.Sleep(3100 * time.Millisecond)
	step("UDP without the tunnel", udp, none, own)
	step("UDP by the tunnel again", udp, first, first)

	tcp := frame{from: crafted[4], to: virtual[4], protocol: unix.IPPROTO_TCP, flags: flagSYN}
	step("SYN", tcp, first, first)
	step("SYN to another backend", tcp, second, second)
	reply(tcp, second, flagSYN|flagACK)
	tcp.flags = flagACK
	step("ACK", tcp, second, second)
	step("ACK to another backend", tcp, first, second)
	tcp.flags = flagSYN
	step("SYN within the connection", tcp, first, second)
	tcp.flags = flagRST
	step("RST", tcp, second, second)
	tcp.flags = flagSYN
	step("SYN after the connection", tcp, first, first)
	reply(tcp, first, flagSYN|flagACK)
	tcp.flags = flagACK
	step("ACK of the next connection", tcp, first, first)
	tcp.flags = flagRST
	step("RST without the tunnel", tcp, none, first)
	tcp.flags = flagSYN
	step("SYN without the tunnel", tcp, none, own)

	// One that this node sends on would go round.
	far := tcp
	far.from = netip.AddrPortFrom(tcp.from.Addr(), 4343)
	b.serveElsewhere(t)
	if verdict, _ := b.run(t, "bl_ingress", far.bytes()); verdict != redirect {
		t.Errorf("verdict %d on a packet for another node", int32(verdict))
	}
	step("SYN of a flow that leads to another node", far, first, first)
}

// serveElsewhere moves the Service's backend to where the uplink leads.
func (b *bench) serveElsewhere(t *testing.T) {
	t.Helper()
	b.agent.Apply(lab.Slice("web", fmt.Sprintf("t:%d/TCP,u:%d/UDP", elsewhere[4].Port(), elsewhere[4].Port()), elsewhere[4].Addr()))
}
