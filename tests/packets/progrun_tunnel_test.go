package packets_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/servicemap"
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

// newTunnelBench makes a bench of a node that accepts tunnel traffic from another. The
// Service's backend is on the node.
func newTunnelBench(t testing.TB) *bench {
	t.Helper()
	b := newBenchWith(t, datapath.Constants{TunnelPort: dsrPort, TunnelClamp: true})
	b.serveHere(t)
	forward(b.host.Namespace)
	putNode(t, b.host.BPFFS, 1, nodeSelf, selfNode[4], selfNode[6])
	putNode(t, b.host.BPFFS, 2, 0, otherNode[4], otherNode[6])
	err := b.host.Run(func() error {
		l, err := netlink.LinkByName(lab.Uplink)
		if err != nil {
			return err
		}
		return devicemap.New(b.maps).Put(devicemap.Device{ID: 1, Name: lab.Uplink, Ifindex: l.Attrs().Index, MTU: 1500, Addr4: lab.Node4, Addr6: lab.Node6})
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// serveHere says that the Service's backend is on this node.
func (b *bench) serveHere(t testing.TB) {
	t.Helper()
	ports := fmt.Sprintf("t:%d/TCP,u:%d/UDP", lab.BackendPort, lab.BackendPort)
	var slices []string
	for _, at := range backend {
		slices = append(slices, lab.SliceOf("web", ports, fmt.Sprintf("{addresses: [%q], nodeName: %s}", at.Addr(), lab.NodeName)))
	}
	b.agent.Apply(slices...)
}

// letIn makes more endpoints on this node known to the programs, which get nothing from the
// node's own choices.
func (b *bench) letIn(t testing.TB, list ...netip.AddrPort) {
	t.Helper()
	have, err := servicemap.New(b.maps).Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	pin := pinned(t, b.host.BPFFS, "bl_endpoint")
	for id := range have.Names {
		for _, at := range list {
			key := struct {
				Bits    uint32
				Addr    [16]byte
				Port    [2]byte
				Pad     uint16
				Service uint32
			}{Bits: 192, Addr: at.Addr().As16(), Service: id}
			binary.BigEndian.PutUint16(key.Port[:], at.Port())
			if err := pin.Put(key, uint32(1)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// toThisNode returns the packet as the tunnel brings it over the family.
func toThisNode(outer byte, to netip.AddrPort, packet []byte) []byte {
	return tunnelled(otherNode[outer], selfNode[outer], 0xc123, to, packet)
}

// TestProgramTakesOut: tunnel traffic is decapsulated and then served as a client's packet, by the
// backend that the other node has selected.
func TestProgramTakesOut(t *testing.T) {
	t.Parallel()
	b := newTunnelBench(t)
	for _, at := range backend {
		b.letIn(t, another(at))
	}
	b.agent.Apply(lab.Service("web", `{type: NodePort, clusterIPs: [10.96.0.1, "fd96::1"], ports: [{name: t, port: 80, nodePort: 30080}, {name: u, port: 80, nodePort: 30080, protocol: UDP}]}`))
	port := uint16(5000)
	for name, f := range requests() {
		for _, outer := range families {
			to := f.to
			for _, to := range []netip.AddrPort{to, netip.AddrPortFrom(otherNode[familyOf(f)], 30080)} {
				port++
				f.from, f.to = netip.AddrPortFrom(f.from.Addr(), port), to
				at := another(backend[familyOf(f)])
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

// TestProgramTunnelSpoofed: packets from this node to the tunnel port of another node are dropped
// unless they carry the secret. Other hosts may use that port for something else.
func TestProgramTunnelSpoofed(t *testing.T) {
	t.Parallel()
	b := newTunnelBench(t)
	secret := [8]byte{1, 2, 3}
	nodemap.New(b.maps).SetMarks(secret, secret)
	for _, family := range families {
		self, other, stranger := selfNode[family], otherNode[family], crafted[family].Addr()
		datagram := func(from, to netip.Addr, port uint16) []byte {
			return frame{from: netip.AddrPortFrom(from, 40000), to: netip.AddrPortFrom(to, port), protocol: unix.IPPROTO_UDP, payload: "hello"}.bytes()
		}
		inner := frame{from: crafted[family], to: virtual[family], protocol: unix.IPPROTO_UDP, payload: "hello"}.bytes()
		tunneled := tunnelled(self, other, 0xc123, backend[family], inner)
		for what, tt := range map[string]struct {
			packet []byte
			drops  bool
		}{
			"a datagram to another node":              {datagram(self, other, dsrPort), true},
			"one to another port":                     {datagram(self, other, dsrPort+1), false},
			"one to a host that is no node":           {datagram(self, stranger, dsrPort), false},
			"one of a host that is no node":           {datagram(stranger, other, dsrPort), false},
			"a packet of the tunnel without a secret": {tunneled, true},
			"a packet of the tunnel with another":     {with(tunneled, headerSize(self)+secretAt, 3, 2, 1), true},
			"a packet of the tunnel with the secret":  {with(tunneled, headerSize(self)+secretAt, secret[:]...), false},
			"a first fragment to another node":        {firstOf(datagram(self, other, dsrPort)), true},
			"a first fragment with the secret":        {firstOf(with(tunneled, headerSize(self)+secretAt, secret[:]...)), true},
			"a first fragment to another port":        {firstOf(datagram(self, other, dsrPort+1)), false},
		} {
			before := reasonCount(t, b.maps, "tunnel_spoofed")
			verdict, _ := b.run(t, "bl_egress", tt.packet)
			counted := reasonCount(t, b.maps, "tunnel_spoofed") - before
			if want := map[bool]uint32{true: dropped, false: passes}[tt.drops]; verdict != want || (counted == 1) != tt.drops {
				t.Errorf("IPv%d, %s: verdict %d, counted %d times", family, what, int32(verdict), counted)
			}
		}
	}
}

// TestProgramClampsMSS: the backend's SYN to a client of the tunnel announces no more than the
// tunnel has room for, wherever in the header it says so, and its checksum stays right.
func TestProgramClampsMSS(t *testing.T) {
	t.Parallel()
	b := newTunnelBench(t)
	const mtu = 65536 // of the loopback device, at which the program runs
	announced := func(before int, mss uint16) string {
		options := strings.Repeat("\x01", before) + "\x02\x04" + string(binary.BigEndian.AppendUint16(nil, mss))
		return options + strings.Repeat("\x00", 8-len(options))
	}
	port := uint16(7000)
	for _, family := range families {
		room := mtu - 88 - uint16(headerSize(crafted[family].Addr())) - 20
		for before := range 5 {
			for _, mss := range []uint16{65500, room + 1, room, 1460} {
				port++
				syn := tcpFlow(family, port)
				b.run(t, "bl_ingress", toThisNode(4, backend[family], syn.bytes()))
				b.run(t, "bl_ingress", syn.bytes())
				reply := syn
				reply.from, reply.to, reply.flags, reply.more = backend[family], syn.from, flagSYN|flagACK, announced(before, mss)
				want := reply
				want.from, want.more = syn.to, announced(before, min(mss, room))
				if verdict, out := b.run(t, "bl_egress", reply.bytes()); verdict != passes || !bytes.Equal(out, want.bytes()) {
					t.Errorf("IPv%d, MSS %d after %d bytes: verdict %d, packet\n% x, want\n% x", family, mss, before, int32(verdict), out, want.bytes())
				}
			}
		}
	}
}

// another returns an address and port beside those of a backend.
func another(at netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(at.Addr().Next(), 8888) }

// unpadded returns the packet without zeros after its first size bytes, which the kernel
// wants when an IPv6 header comes off a packet that is shorter than that.
func unpadded(packet []byte, size int) []byte {
	if len(packet) > ethernetSize+40 || len(packet) < size || len(bytes.Trim(packet[size:], "\x00")) > 0 {
		return packet
	}
	return packet[:size]
}

// TestProgramTunnelDrops: tunnel traffic that no node of the cluster has sent to this one is dropped,
// with a counter for each reason.
func TestProgramTunnelDrops(t *testing.T) {
	t.Parallel()
	b := newTunnelBench(t)
	for _, outer := range families {
		for name, f := range requests() {
			good := toThisNode(outer, backend[familyOf(f)], f.bytes())
			stranger := netip.AddrPortFrom(foreign[outer].Addr(), 1).Addr()
			b.wantDropped(t, name+" of a stranger", "tunnel_unknown_sender",
				tunnelled(stranger, selfNode[outer], 0xc123, backend[familyOf(f)], f.bytes()))
			b.wantDropped(t, name+" of this node", "tunnel_unknown_sender",
				tunnelled(selfNode[outer], selfNode[outer], 0xc123, backend[familyOf(f)], f.bytes()))
			b.wantDropped(t, name+" to a backend elsewhere", "tunnel_no_backend", toThisNode(outer, elsewhere[familyOf(f)], f.bytes()))
			for what, at := range privateTo(familyOf(f)) {
				b.wantDropped(t, fmt.Sprintf("%s to %s", name, what), "tunnel_no_backend", toThisNode(outer, at, f.bytes()))
			}
			for what, to := range servedByNobody(familyOf(f)) {
				stray := f
				stray.to = to
				b.wantDropped(t, fmt.Sprintf("%s for %s", name, what), "tunnel_no_service", toThisNode(outer, backend[familyOf(f)], stray.bytes()))
			}
			for what, from := range scoped(familyOf(f)) {
				stray := f
				stray.from = netip.AddrPortFrom(from, f.from.Port())
				b.wantDropped(t, fmt.Sprintf("%s of %s", name, what), "tunnel_malformed", toThisNode(outer, backend[familyOf(f)], stray.bytes()))
			}
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

// TestProgramTunnelICMP: of encapsulated ICMP, only errors about packets of flows to backends on this
// node are accepted; above all no link-local messages such as redirects.
func TestProgramTunnelICMP(t *testing.T) {
	t.Parallel()
	b := newTunnelBench(t)
	for what, packet := range icmpOfAttackers() {
		for _, outer := range families {
			b.wantDropped(t, fmt.Sprintf("%s over IPv%d", what, outer), "tunnel_no_flow", toThisNode(outer, backend[6], packet))
		}
	}
	for _, family := range []byte{6, 4} {
		f := requests()[fmt.Sprintf("TCP %d", family)]
		reply := f
		reply.from, reply.to = f.to, f.from
		about := toThisNode(4, backend[family], icmpError(foreign[family].Addr(), f.to.Addr(), reply))
		what := fmt.Sprintf("an IPv%d error about ", family)
		b.wantDropped(t, what+"no flow", "tunnel_no_flow", about)
		for begins, want := range map[string]uint32{"here": passes, "by the tunnel": redirect} {
			f.from = netip.AddrPortFrom(f.from.Addr(), f.from.Port()+1)
			reply.to = f.from
			first := f.bytes()
			if want == redirect {
				first = toThisNode(4, backend[family], first)
			}
			if verdict, _ := b.run(t, "bl_ingress", first); verdict != want {
				t.Fatalf("%s: verdict %d", what, int32(verdict))
			}
			packet := icmpError(foreign[family].Addr(), f.to.Addr(), reply)
			verdict, out := b.run(t, "bl_ingress", toThisNode(4, backend[family], packet))
			if verdict != redirect || !bytes.Equal(out, packet) {
				t.Errorf("%sa flow that began %s: verdict %d, packet\n% x, want\n% x", what, begins, int32(verdict), out, packet)
			}
		}
		f.from = netip.AddrPortFrom(f.from.Addr(), 999)
		reply.to = f.from
		if family == 4 {
			b.serveElsewhere(t)
			if verdict, _ := b.run(t, "bl_ingress", f.bytes()); verdict != redirect {
				t.Fatalf("%s: verdict %d", what, int32(verdict))
			}
		}
		b.wantDropped(t, what+"no flow to this node", "tunnel_no_flow",
			toThisNode(4, backend[family], icmpError(foreign[family].Addr(), f.to.Addr(), reply)))
	}
}

// icmpOfAttackers are messages that have nothing to do with any flow.
func icmpOfAttackers() map[string][]byte {
	router := netip.MustParseAddr("fe80::1")
	nodes := netip.MustParseAddr("ff02::1")
	target := selfNode[6].AsSlice()
	solicitation := slices.Concat([]byte{135, 0, 0, 0, 0, 0, 0, 0}, target, []byte{1, 1, 2, 0, 0, 0, 0, 1})
	advertisement := slices.Concat([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, target, []byte{2, 1, 2, 0, 0, 0, 0, 1})
	all := map[string][]byte{
		"a Neighbor Solicitation":            icmpPacket(router, nodes, solicitation),
		"a Neighbor Solicitation to us":      icmpPacket(router, selfNode[6], solicitation),
		"a Neighbor Advertisement":           icmpPacket(router, nodes, advertisement),
		"a Router Advertisement":             icmpPacket(router, nodes, []byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}),
		"a Multicast Listener Query":         icmpPacket(router, nodes, append([]byte{130, 0, 0, 0, 0, 1, 0, 0}, make([]byte, 16)...)),
		"a redirect of IPv4":                 icmpPacket(otherNode[4], selfNode[4], append([]byte{5, 1, 0, 0, 192, 0, 2, 9}, make([]byte, 28)...)),
		"an error that quotes nothing":       icmpPacket(foreign[4].Addr(), virtual[4].Addr(), []byte{3, 1, 0, 0, 0, 0, 0, 0}),
		"an error about a connection of us":  icmpError(foreign[4].Addr(), selfNode[4], frame{from: netip.AddrPortFrom(selfNode[4], 40000), to: crafted[4], protocol: unix.IPPROTO_TCP}),
		"an error about an error, or a ping": icmpPacket(foreign[4].Addr(), virtual[4].Addr(), append([]byte{3, 1, 0, 0, 0, 0, 0, 0}, echoRequest(virtual[4].Addr(), crafted[4].Addr())[ethernetSize:]...)),
	}
	for name, packet := range all {
		if packet[12] == 0x86 {
			all[name] = with(packet, 7, 255) // as from the link
		}
	}
	for _, family := range families {
		all[fmt.Sprintf("an echo request to an IPv%d Service", family)] = echoRequest(crafted[family].Addr(), virtual[family].Addr())
		all[fmt.Sprintf("an echo request to this IPv%d node", family)] = echoRequest(crafted[family].Addr(), selfNode[family])
	}
	return all
}

// TestProgramTunnelFragments: a later fragment that the tunnel brings is for an address of a
// Service or of a node, of a protocol that Services have.
func TestProgramTunnelFragments(t *testing.T) {
	t.Parallel()
	b := newTunnelBench(t)
	f := requests()["UDP 4"]
	f.payload = "a fragment that is long enough"
	later := func(to netip.Addr, protocol byte) []byte {
		g := f
		g.to = netip.AddrPortFrom(to, f.to.Port())
		return toThisNode(4, backend[4], with(with(g.bytes(), 9, protocol), 6, 0, 100))
	}
	for what, to := range map[string]netip.Addr{"a Service": virtual[4].Addr(), "a node": otherNode[4]} {
		if verdict, _ := b.run(t, "bl_ingress", later(to, unix.IPPROTO_UDP)); verdict != redirect {
			t.Errorf("to %s: verdict %d", what, int32(verdict))
		}
	}
	for what, to := range map[string]netip.Addr{"nobody": foreign[4].Addr(), "all": netip.MustParseAddr("224.0.0.1"), "loopback": netip.MustParseAddr("127.0.0.1")} {
		b.wantDropped(t, "to "+what, "tunnel_no_service", later(to, unix.IPPROTO_UDP))
	}
	// Not every address at which NodePorts answer is known to be a node's.
	b.agent.Apply(lab.Service("web", `{type: NodePort, clusterIPs: [10.96.0.1, "fd96::1"], ports: [{name: t, port: 80, nodePort: 30080}, {name: u, port: 80, nodePort: 30080, protocol: UDP}]}`))
	first := f
	first.to = netip.AddrPortFrom(foreign[4].Addr(), 30080)
	if verdict, _ := b.run(t, "bl_ingress", toThisNode(4, backend[4], with(first.bytes(), 6, 0x20, 0))); verdict != redirect {
		t.Errorf("a first fragment: verdict %d", int32(verdict))
	}
	if verdict, _ := b.run(t, "bl_ingress", later(foreign[4].Addr(), unix.IPPROTO_UDP)); verdict != redirect {
		t.Errorf("after the first one: verdict %d", int32(verdict))
	}
	for what, protocol := range map[string]byte{"ICMP": unix.IPPROTO_ICMP, "GRE": unix.IPPROTO_GRE} {
		b.wantDropped(t, "of "+what, "tunnel_malformed", later(virtual[4].Addr(), protocol))
	}
}

// privateTo are destinations that a node does not open to others, by what they are.
func privateTo(family byte) map[string]netip.AddrPort {
	loopback := map[byte]netip.Addr{4: netip.MustParseAddr("127.0.0.1"), 6: netip.IPv6Loopback()}[family]
	return map[string]netip.AddrPort{
		"a port of the loopback address": netip.AddrPortFrom(loopback, 2379),
		"a port of the node":             netip.AddrPortFrom(selfNode[family], 10250),
		"another port of the backend":    netip.AddrPortFrom(backend[family].Addr(), backend[family].Port()+1),
		"another pod":                    netip.AddrPortFrom(backend[family].Addr().Next(), backend[family].Port()),
	}
}

// servedByNobody are destinations that no Service has.
func servedByNobody(family byte) map[string]netip.AddrPort {
	none := map[byte]netip.Addr{4: netip.IPv4Unspecified(), 6: netip.IPv6Unspecified()}[family]
	return map[string]netip.AddrPort{
		"an address of nobody":           foreign[family],
		"another port of the Service":    netip.AddrPortFrom(virtual[family].Addr(), 81),
		"a port of the node":             netip.AddrPortFrom(selfNode[family], 10250),
		"the backend itself":             backend[family],
		"a node port without an address": netip.AddrPortFrom(none, 30080),
	}
}

// scoped are sources that no node can answer.
func scoped(family byte) map[string]netip.Addr {
	if family == 4 {
		return map[string]netip.Addr{
			"loopback":   netip.MustParseAddr("127.0.0.1"),
			"link-local": netip.MustParseAddr("169.254.1.1"),
			"multicast":  netip.MustParseAddr("224.0.0.1"),
			"nobody":     netip.IPv4Unspecified(),
		}
	}
	return map[string]netip.Addr{
		"loopback":   netip.IPv6Loopback(),
		"link-local": netip.MustParseAddr("fe80::1"),
		"multicast":  netip.MustParseAddr("ff02::1"),
		"nobody":     netip.IPv6Unspecified(),
	}
}

// TestProgramTunnelSecret: tunnel traffic with either accepted secret is served, and sent with the
// first. All other is dropped.
func TestProgramTunnelSecret(t *testing.T) {
	t.Parallel()
	b := newTunnelBench(t)
	current, next := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}, [8]byte{8, 7, 6, 5, 4, 3, 2, 1}
	nodemap.New(b.maps).SetMarks(current, current, next)
	none := [8]byte{}
	for _, outer := range families {
		for name, f := range requests() {
			what := fmt.Sprintf("%s over IPv%d", name, outer)
			good := toThisNode(outer, backend[familyOf(f)], f.bytes())
			at := headerSize(selfNode[outer]) + secretAt
			for _, secret := range [][8]byte{none, {1}, {1, 2, 3, 4, 5, 6, 7}, {0, 2, 3, 4, 5, 6, 7, 8}, {8, 7, 6, 5, 4, 3, 2, 8}} {
				b.wantDropped(t, fmt.Sprintf("%s with % x", what, secret), "tunnel_wrong_secret", with(good, at, secret[:]...))
			}
			for _, secret := range [][8]byte{current, next} {
				if verdict, _ := b.run(t, "bl_ingress", with(good, at, secret[:]...)); verdict != redirect {
					t.Errorf("%s with % x: verdict %d", what, secret, int32(verdict))
				}
			}
		}
	}
	forged := toThisNode(4, backend[6], icmpOfAttackers()["a Neighbor Solicitation"])
	b.wantDropped(t, "ICMP without a secret", "tunnel_wrong_secret", forged)
	nodemap.New(b.maps).SetMarks(next, next)
	f := requests()["TCP 4"]
	b.wantDropped(t, "a secret that was", "tunnel_wrong_secret",
		with(toThisNode(4, backend[4], f.bytes()), headerSize(selfNode[4])+secretAt, current[:]...))
}

// flows counts the entries of the flow table.
func (b *bench) flows(t *testing.T) (flows, replies int) {
	t.Helper()
	all, replies := allFlows(t, b.maps)
	return len(all), replies
}

// allFlows returns all flows and how many reply entries there are.
func allFlows(t *testing.T, maps *bpfmap.Maps) (flows []flowmap.Flow, replies int) {
	t.Helper()
	for batch, err := range flowmap.New(maps).Batches(bpf.Clock) {
		if err != nil {
			t.Fatal(err)
		}
		flows, replies = append(flows, batch.Flows...), replies+len(batch.Replies)
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
		"another version":             with(good, udp+geneveAt, 1<<6|8),
		"no options":                  with(good, udp+geneveAt, 0),
		"a word of options less":      with(good, udp+geneveAt, 7),
		"a word of options more":      with(good, udp+geneveAt, 9),
		"all options":                 with(good, udp+geneveAt, 63),
		"no critical options":         with(good, udp+geneveAt+1, 0),
		"reserved flags":              with(good, udp+geneveAt+1, 0x41),
		"an Ethernet frame":           with(good, udp+geneveAt+2, 0x65, 0x58),
		"another family":              with(good, udp+geneveAt+2, good[ethernetSize+udp+geneveAt+2]^0x8e),
		"a network":                   with(good, udp+geneveAt+4, 0, 0, 1),
		"another class":               with(good, udp+optionAt, 0xff, 0xfa),
		"another type":                with(good, udp+optionAt+2, 0x80),
		"another length":              with(good, udp+optionAt+3, 6),
		"another length and reserved": with(good, udp+optionAt+3, 7|1<<5),
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

// TestProgramTunnelCut: an encapsulated packet that is shorter than its header says is dropped.
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

// TestProgramTunnelPasses: packets that are no tunnel traffic, not for this node, or for the agent
// pass.
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
	}
}

// firstOf returns the packet as the first fragment of a datagram.
func firstOf(packet []byte) []byte {
	size := headerSize(netip.IPv4Unspecified())
	if binary.BigEndian.Uint16(packet[12:]) == unix.ETH_P_IP {
		return fragment4(packet[:ethernetSize+size], 7, 0, true, packet[ethernetSize+size:])
	}
	size = headerSize(netip.IPv6Unspecified())
	return fragment6(packet[:ethernetSize+size], unix.IPPROTO_UDP, 7, 0, true, packet[ethernetSize+size:])
}

// TestProgramTunnelFirstFragments: the first fragment of a datagram of the tunnel, or of the agents,
// is dropped, wherever it comes in: nodes send none, and the kernel would put it together behind
// the checks.
func TestProgramTunnelFirstFragments(t *testing.T) {
	t.Parallel()
	b := newTunnelBench(t)
	for _, outer := range families {
		good := toThisNode(outer, backend[outer], requests()[fmt.Sprintf("UDP %d", outer)].bytes())
		for what, packet := range map[string][]byte{"of the tunnel": good, "of the agents": control(outer), "of 8 bytes": good[:ethernetSize+headerSize(selfNode[outer])+8]} {
			b.wantDropped(t, fmt.Sprintf("a first fragment over IPv%d %s", outer, what), "tunnel_malformed", firstOf(packet))
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
func crowd(maps *bpfmap.Maps) {
	flowmap.New(maps).CountHalfOpen(flowmap.New(maps).HalfOpen(), maps.MaxFlows())
}

// onlyFlow returns the one flow that is there.
func onlyFlow(t *testing.T, maps *bpfmap.Maps) (only flowmap.Flow, replies int) {
	t.Helper()
	flows, replies := allFlows(t, maps)
	if len(flows) != 1 {
		t.Fatalf("%d flows are there", len(flows))
	}
	return flows[0], replies
}

// TestTunnelInAFlood: flows that begin when half-open ones have used up their share move
// to the others when they are established, also those that are sent or received in the tunnel.
func TestTunnelInAFlood(t *testing.T) {
	t.Parallel()
	syn := xdpRequests()["TCP 4"]
	ack := syn
	ack.flags = flagACK
	t.Run("leaves", func(t *testing.T) {
		t.Parallel()
		b := newXDPBench(t)
		b.serveByTunnel(t, 4)
		tc := b.tc()
		crowd(b.maps)
		for i, step := range []struct {
			run      func() uint32
			want     uint32
			overflow bool
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
			if flow.Overflow != step.overflow || flow.State.HalfOpen() != step.overflow || flow.Tunnel != flowmap.LeavesByTunnel || replies != 0 {
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
			program  string
			packet   []byte
			overflow bool
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
			if flow.Overflow != step.overflow || flow.State.HalfOpen() != step.overflow || flow.Tunnel != flowmap.ComesByTunnel || replies != 1 {
				t.Errorf("after packet %d, with %d reply entries: %+v", i, replies, flow)
			}
		}
	})
}

// TestTunnelChoice: tunnel traffic names the flow's backend, except for a connection that is
// established with another one. A packet without the tunnel begins a new flow.
func TestTunnelChoice(t *testing.T) {
	t.Parallel()
	b := newTunnelBench(t)
	first := netip.AddrPortFrom(lab.Backend4(2), 8888)
	second := netip.AddrPortFrom(lab.Backend4(3), 9999)
	b.letIn(t, first, second)
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

	// One that this node forwards would loop.
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
