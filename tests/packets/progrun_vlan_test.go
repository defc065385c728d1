package packets_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/tests/lab"
)

// vlanBench is a host whose uplink carries several networks. Other devices are in
// the place of those of VLANs, for XDP programs do not mind; each network has a client and a
// backend, which has a Service.
type vlanBench struct {
	*xdpBench
	networks []vlanNetwork
	frames   map[devicemap.Frames]uint32
	port     uint16 // of the client, of the next flow
}

// vlanNetwork is one with a number of tags, which is its index.
type vlanNetwork struct {
	device  devicemap.Device
	mac     net.HardwareAddr
	client  map[byte]netip.Addr
	backend map[byte]netip.AddrPort
	virtual map[byte]netip.AddrPort
}

// neighbour is the MAC address of all clients and backends.
var neighbour = net.HardwareAddr{2, 0, 0, 0, 9, 9}

var vlanTags = []devicemap.Tags{
	{},
	{{Protocol: unix.ETH_P_8021Q, ID: 5}},
	{{Protocol: unix.ETH_P_8021AD, ID: 0xabc}, {Protocol: unix.ETH_P_8021Q, ID: 7}},
}

func newVLANBench(t *testing.T) *vlanBench {
	t.Helper()
	b := &vlanBench{xdpBench: newXDPBench(t), frames: make(map[devicemap.Frames]uint32), port: 20000}
	for i, tags := range vlanTags {
		n := vlanNetwork{
			device:  b.device,
			mac:     uplinkMAC,
			client:  map[byte]netip.Addr{},
			backend: map[byte]netip.AddrPort{},
			virtual: map[byte]netip.AddrPort{},
		}
		for family, pattern := range map[byte]string{4: "198.51.100.%d", 6: "2001:db8:c::%d"} {
			n.client[family] = netip.MustParseAddr(fmt.Sprintf(pattern, 10+i))
			n.backend[family] = netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf(pattern, 20+i)), 8080)
		}
		n.virtual[4] = netip.MustParseAddrPort(fmt.Sprintf("10.96.1.%d:80", i))
		n.virtual[6] = netip.MustParseAddrPort(fmt.Sprintf("[fd96::1:%d]:80", i))
		if i > 0 {
			n.mac = net.HardwareAddr{2, 0, 0, 0, 2, byte(i)}
			b.addVLAN(t, i, tags, &n)
		}
		b.addNeighbours(t, &n)
		b.networks = append(b.networks, n)
		name := fmt.Sprintf("web%d", i)
		b.agent.Apply(lab.Service(name, fmt.Sprintf(`{clusterIPs: [%q, %q], ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}`,
			n.virtual[4].Addr(), n.virtual[6].Addr())),
			lab.Slice(name, "t:8080/TCP,u:8080/UDP", n.backend[4].Addr()), lab.Slice(name, "t:8080/TCP,u:8080/UDP", n.backend[6].Addr()))
	}
	b.setFrames(t)
	return b
}

// addVLAN makes the device in the place of that of a VLAN.
func (b *vlanBench) addVLAN(t *testing.T, i int, tags devicemap.Tags, n *vlanNetwork) {
	t.Helper()
	name := fmt.Sprintf("vlan%d", i)
	n.device.ID, n.device.Name, n.device.Ifindex, n.device.Tags = uint32(1+i), name, b.addStandIn(t, name, n.mac), tags
	b.macs[n.device.Ifindex] = devicemap.MAC{}
	if err := errors.Join(devicemap.New(b.maps).Put(n.device), devicemap.New(b.maps).SetMACs(b.macs)); err != nil {
		t.Fatal(err)
	}
	b.frames[devicemap.Frames{Ifindex: b.device.Ifindex, Tags: tags}] = n.device.ID
}

// addStandIn makes a device to the outside and returns its ifindex.
func (b *vlanBench) addStandIn(t *testing.T, name string, mac net.HardwareAddr) (ifindex int) {
	t.Helper()
	b.AddDevice(name, b.Outside, name)
	err := b.Run(func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		ifindex = l.Attrs().Index
		return netlink.LinkSetHardwareAddr(l, mac)
	})
	if err != nil {
		t.Fatal(err)
	}
	return ifindex
}

// addNeighbours makes known how the network's client and backend are reached.
func (b *vlanBench) addNeighbours(t *testing.T, n *vlanNetwork) {
	t.Helper()
	for _, family := range families {
		for _, addr := range []netip.Addr{n.client[family], n.backend[family].Addr()} {
			b.AddRoute(netip.PrefixFrom(addr, addr.BitLen()), netip.Addr{}, n.device.Name)
			err := b.Run(func() error {
				return netlink.NeighSet(&netlink.Neigh{
					LinkIndex: n.device.Ifindex, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: neighbour,
				})
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (b *vlanBench) setFrames(t *testing.T) {
	t.Helper()
	if err := devicemap.New(b.maps).SetFrames(b.frames); err != nil {
		t.Fatal(err)
	}
}

// below makes the bench run the program of devices that own no frames.
func (b *vlanBench) below() { b.program = bpf.XdpProgBlXdpBelow }

// withTags returns the frame with tags, which have the priorities.
func withTags(packet []byte, tags devicemap.Tags, priorities ...uint16) []byte {
	header := slices.Clone(packet[:12])
	for i, tag := range tags {
		if tag.Protocol == 0 {
			break
		}
		if i < len(priorities) {
			tag.ID |= priorities[i]
		}
		header = binary.BigEndian.AppendUint16(header, tag.Protocol)
		header = binary.BigEndian.AppendUint16(header, tag.ID)
	}
	return append(header, packet[12:]...)
}

// sentTo returns the frame that XDP is to make of f in the network.
func (n *vlanNetwork) sentTo(f frame, priorities ...uint16) []byte {
	packet := hopLess(f)
	copy(packet, neighbour)
	copy(packet[6:], n.mac)
	return withTags(packet, n.device.Tags, priorities...)
}

// vlanSteps are the packets of a flow between two networks, and what becomes of them.
type vlanStep struct {
	from, to *vlanNetwork
	in, out  frame
}

// flow returns the steps of a new flow from a client in one network to the backend in
// another.
func (b *vlanBench) flow(from, to *vlanNetwork, family, protocol byte, payload string) []vlanStep {
	b.port++
	request := frame{
		from: netip.AddrPortFrom(from.client[family], b.port), to: to.virtual[family],
		protocol: protocol, flags: flagSYN, payload: payload,
	}
	forward := request
	forward.from, forward.to = netip.AddrPortFrom(nodeAddrOf(request), b.port), to.backend[family]
	reply := forward
	reply.from, reply.to, reply.flags = forward.to, forward.from, flagSYN|flagACK
	back := reply
	back.from, back.to = request.to, request.from
	return []vlanStep{{from, to, request, forward}, {to, from, reply, back}, {from, to, request, forward}}
}

// The priorities of tags, with the bit that says a frame may be dropped.
const outerPriority, innerPriority = 5<<13 | 1<<12, 3 << 13

// eachFlow calls fn with flows between all networks, of both families and protocols.
func (b *vlanBench) eachFlow(fn func(name string, steps []vlanStep)) {
	for from := range b.networks {
		for to := range b.networks {
			for _, family := range families {
				for name, protocol := range protocols {
					fn(fmt.Sprintf("%s %d from %d tags to %d", name, family, from, to),
						b.flow(&b.networks[from], &b.networks[to], family, protocol, "a payload that is longer than a TCP header"))
				}
			}
		}
	}
}

// wantSent fails the test unless the step's packet, which comes in at the device, is sent.
func (b *vlanBench) wantSent(t *testing.T, what string, ifindex int, step vlanStep, verdict uint32) {
	t.Helper()
	in := withTags(step.in.bytes(), step.from.device.Tags, outerPriority, innerPriority)
	priorities := []uint16{outerPriority, innerPriority}
	for i, tag := range step.from.device.Tags {
		if tag.Protocol == 0 {
			priorities[i] = 0
		}
	}
	want := step.to.sentTo(step.out, priorities...)
	if got, out := b.runAt(t, ifindex, in); got != verdict || !bytes.Equal(out, want) {
		t.Errorf("%s: verdict %d, want %d; frame\n% x, want\n% x", what, got, verdict, out, want)
	}
}

// TestXDPServesVLANs: packets go from each network to each other, with the tags of that,
// and their replies come back.
func TestXDPServesVLANs(t *testing.T) {
	t.Parallel()
	b := newVLANBench(t)
	b.eachFlow(func(name string, steps []vlanStep) {
		for i, step := range steps {
			b.wantSent(t, fmt.Sprintf("%s, packet %d", name, i), b.device.Ifindex, step, xdpSends)
		}
	})
}

// TestXDPServesBonds: what the ports of a bond get belongs to the bond, with tags or
// without, and is sent by the bond.
func TestXDPServesBonds(t *testing.T) {
	t.Parallel()
	b := newVLANBench(t)
	b.below()
	port := b.addStandIn(t, "port", uplinkMAC)
	b.frames = make(map[devicemap.Frames]uint32)
	for _, n := range b.networks {
		b.frames[devicemap.Frames{Ifindex: port, Tags: n.device.Tags}] = n.device.ID
	}
	b.setFrames(t)
	b.eachFlow(func(name string, steps []vlanStep) {
		for i, step := range steps {
			b.wantSent(t, fmt.Sprintf("%s, packet %d", name, i), port, step, xdpRedirects)
		}
	})
}

// TestXDPBelowAVLAN: untagged packets of a device of which only a VLAN is served pass unchanged.
func TestXDPBelowAVLAN(t *testing.T) {
	t.Parallel()
	b := newVLANBench(t)
	b.below()
	steps := b.flow(&b.networks[1], &b.networks[2], 4, unix.IPPROTO_TCP, "x")
	b.wantSent(t, "a frame of the VLAN", b.device.Ifindex, steps[0], xdpSends)
	own := b.flow(&b.networks[0], &b.networks[1], 4, unix.IPPROTO_TCP, "x")[0].in.bytes()
	b.wantPassed(t, "one without tags", own)
	b.wantPassed(t, "one with a priority alone", withTags(own, devicemap.Tags{{Protocol: unix.ETH_P_8021Q}}, outerPriority))
}

// wantPassed fails the test unless the frame passes as it is.
func (b *vlanBench) wantPassed(t *testing.T, what string, packet []byte) {
	t.Helper()
	if verdict, out := b.run(t, packet); verdict != xdpPasses || !bytes.Equal(out, packet) {
		t.Errorf("%s: verdict %d, frame\n% x, was\n% x", what, verdict, out, packet)
	}
}

// TestXDPPriorityAlone: a priority tag (VLAN 0) is no VLAN; the priority is kept.
func TestXDPPriorityAlone(t *testing.T) {
	t.Parallel()
	b := newVLANBench(t)
	for _, protocol := range []uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD} {
		for to := range b.networks {
			step := b.flow(&b.networks[0], &b.networks[to], 4, unix.IPPROTO_TCP, "x")[0]
			verdict, out := b.run(t, withTags(step.in.bytes(), devicemap.Tags{{Protocol: protocol}}, outerPriority))
			if want := step.to.sentTo(step.out, outerPriority); verdict != xdpSends || !bytes.Equal(out, want) {
				t.Errorf("tag %#x, to %d tags: verdict %d, frame\n% x, want\n% x", protocol, to, verdict, out, want)
			}
		}
	}
}

// TestXDPLeavesOtherTags: frames of VLANs without a served device, and malformed ones, pass
// unchanged, of known flows and of others.
func TestXDPLeavesOtherTags(t *testing.T) {
	t.Parallel()
	b := newVLANBench(t)
	tag := func(protocol uint16) func(uint16) devicemap.Tag {
		return func(id uint16) devicemap.Tag { return devicemap.Tag{Protocol: protocol, ID: id} }
	}
	q, ad, old := tag(unix.ETH_P_8021Q), tag(unix.ETH_P_8021AD), tag(0x9100)
	b.eachFlow(func(name string, steps []vlanStep) {
		packet := steps[0].in.bytes()
		check := func(known bool) {
			t.Helper()
			for _, tags := range []devicemap.Tags{
				{q(6)}, {q(0xfff)}, {ad(5)}, {old(5)}, {q(0xabc)},
				{q(7), ad(0xabc)}, {q(0xabc), q(7)}, {ad(0xabc), ad(7)}, {ad(0xabc), q(8)}, {ad(0xabd), q(7)},
				{ad(0xabc), q(0)}, {q(0), q(5)}, {q(5), q(5)}, {q(5), q(0)}, {ad(0xabc), old(7)},
			} {
				b.wantPassed(t, fmt.Sprintf("%s, tags %v, flow known %v", name, tags, known), withTags(packet, tags))
			}
			three := withTags(withTags(packet, vlanTags[2]), vlanTags[1])
			b.wantPassed(t, name+", three tags", three)
			for _, tags := range vlanTags[1:] {
				for _, kind := range []uint16{0, 46, 1500, 0x0600, unix.ETH_P_ARP, unix.ETH_P_MPLS_UC, unix.ETH_P_PPP_SES, 0xffff} {
					odd := slices.Clone(packet)
					binary.BigEndian.PutUint16(odd[12:], kind)
					b.wantPassed(t, fmt.Sprintf("%s, type %#x", name, kind), withTags(odd, tags))
				}
			}
		}
		check(false)
		b.wantSent(t, name, b.device.Ifindex, steps[0], xdpSends)
		check(true)
		whole := withTags(packet, steps[0].from.device.Tags)
		for size := ethernetSize; size < len(whole); size++ {
			b.wantPassed(t, fmt.Sprintf("%s, cut at %d of %d", name, size, len(whole)), whole[:size])
		}
	})
}

// forgetFlows deletes all flows.
func (b *vlanBench) forgetFlows(t *testing.T) {
	t.Helper()
	for batch, err := range flowmap.New(b.maps).Batches(bpf.Clock) {
		if err != nil {
			t.Fatal(err)
		}
		for i := range batch.Flows {
			if err := flowmap.New(b.maps).Delete(&batch.Flows[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestXDPVLANMTU: a VLAN device's own MTU counts, without the tags.
func TestXDPVLANMTU(t *testing.T) {
	t.Parallel()
	b := newVLANBench(t)
	b.eachFlow(func(name string, steps []vlanStep) {
		to := steps[0].to
		packet := withTags(steps[0].in.bytes(), steps[0].from.device.Tags)
		device := to.device
		device.MTU = len(steps[0].in.bytes()) - ethernetSize - 1
		put := func() {
			t.Helper()
			if err := devicemap.New(b.maps).Put(device); err != nil {
				t.Fatal(err)
			}
		}
		put()
		b.wantPassed(t, name+", a byte too long", packet)
		b.forgetFlows(t) // a SYN that comes again in another second moves to another port
		device.MTU++
		put()
		b.wantSent(t, name+", as long as the MTU", b.device.Ifindex, steps[0], xdpSends)
		device = to.device
		device.Root = 0
		put()
		b.wantPassed(t, name+", to a device that XDP cannot send by", packet)
		device = to.device
		put()
	})
}

// TestXDPVLANBuffers: a frame in several buffers gets other tags.
func TestXDPVLANBuffers(t *testing.T) {
	t.Parallel()
	b := newVLANBench(t)
	for i := range b.networks {
		n := &b.networks[i]
		n.device.MTU, n.device.XDPSendBuffers = 9000, true
		if err := devicemap.New(b.maps).Put(n.device); err != nil {
			t.Fatal(err)
		}
	}
	payload := string(bytes.Repeat([]byte("jumbo"), 1700))
	for from := range b.networks {
		for to := range b.networks {
			for i, step := range b.flow(&b.networks[from], &b.networks[to], 6, unix.IPPROTO_UDP, payload) {
				b.wantSent(t, fmt.Sprintf("from %d tags to %d, packet %d", from, to, i), b.device.Ifindex, step, xdpSends)
			}
		}
	}
}

// TestXDPVLANFuzz: a frame with random tags and EtherTypes passes unchanged, or is sent with the tags
// of the device that it leaves by.
func TestXDPVLANFuzz(t *testing.T) {
	t.Parallel()
	b := newVLANBench(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	words := []uint16{unix.ETH_P_IP, unix.ETH_P_IPV6, unix.ETH_P_8021Q, unix.ETH_P_8021AD, 0, 5, 7, 0xabc, 0x5005, 0xf007, 0x4500, 0x6000}
	sent := 0
	for range 10000 {
		step := b.flow(&b.networks[1], &b.networks[2], families[random.IntN(2)], unix.IPPROTO_UDP, "a payload that is longer than a TCP header")[0]
		count := random.IntN(len(vlanTags))
		packet := withTags(step.in.bytes(), vlanTags[count])
		for range random.IntN(3) {
			at := 12 + 2*random.IntN(2*count+1)
			binary.BigEndian.PutUint16(packet[at:], words[random.IntN(len(words))])
		}
		verdict, out := b.run(t, packet)
		switch {
		case verdict == xdpPasses && bytes.Equal(out, packet):
		case verdict == xdpSends && bytes.Equal(withoutPriority(out), step.to.sentTo(step.out)):
			sent++
		default:
			t.Fatalf("seed %d: verdict %d on\n% x, frame\n% x", seed, verdict, packet, out)
		}
	}
	if sent < 1000 {
		t.Errorf("seed %d: %d frames were sent", seed, sent)
	}
}

// withoutPriority returns a frame with two tags with no priority in them.
func withoutPriority(packet []byte) []byte {
	packet = slices.Clone(packet)
	if len(packet) > 18 {
		packet[14] &= 0x0f
		packet[18] &= 0x0f
	}
	return packet
}
