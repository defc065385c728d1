package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

const (
	packetRounds = 300
	packetBatch  = 2000
	// The kernel takes long to get ready for runs of an XDP program. A batch of flows
	// that begin stays below the share of the flow table that half-open ones have.
	xdpRounds = 40
	xdpBatch  = 8000
	// fill is how many new flows it takes until each one evicts another.
	fill = 1 << 16
)

// The Services that clients outside of the node use, by NodePort.
const (
	packetService       = 4321
	stickyPacketService = 4320
	packetNodePort      = 29000
	stickyNodePort      = 30000 + stickyPacketService/10
	// tunnelPacketService answers clients directly.
	tunnelPacketService = 4322
	tunnelNodePort      = 29001
	// datagramPacketService is one of UDP.
	datagramPacketService = 4323
	datagramNodePort      = 29002
	// localPacketService is one of UDP, too, whose endpoints here get clients from outside: none.
	localPacketService = 4325
	localNodePort      = 29003
)

// farNode is the node that the tunnel leads to: the one of all endpoints.
var farNode = model.Node{Name: elsewhere, Tunnel: nth(endpoints4, 1<<22)}

// tunnelPort is the UDP port of the tunnel.
const tunnelPort = 6081

// measurePackets measures the CPU time of the packet programs, as they are shipped,
// for one packet: a client's to a NodePort whose endpoints are on other nodes, the
// reply to it, and what is for no Service.
func measurePackets(ctx context.Context, box *sandbox) ([]samples, error) {
	return measureHook(ctx, box, newPacketBench, (*packetBench).flowMemory)
}

// measureXDP is measurePackets for the XDP program.
func measureXDP(ctx context.Context, box *sandbox) ([]samples, error) {
	return measureHook(ctx, box, func(maps *bpfmap.Maps) (*packetBench, error) {
		b, err := newXDPBench(maps)
		if err != nil {
			return nil, err
		}
		b.tunnels = true
		node, err := nodemap.New(maps).NodeOf(farNode.Tunnel)
		if err != nil || node == 0 {
			return nil, fmt.Errorf("%s is no node: %w", farNode.Tunnel, err)
		}
		nodemap.New(maps).SetAnswer(node, farNode.Tunnel, nodemap.Accepts)
		return b, nil
	})
}

// measureHook measures the programs of a hook, then what else is to be known of them.
func measureHook(ctx context.Context, box *sandbox, newBench func(*bpfmap.Maps) (*packetBench, error),
	also ...func(*packetBench, *bpfmap.Maps, samples) error) ([]samples, error) {
	b, _, err := servePackets(ctx, box, newBench)
	if err != nil {
		return nil, err
	}
	runs, err := measureFamilies(func(s samples, family model.Family) error { return b.measure(ctx, s, family) })
	if err != nil {
		return nil, err
	}
	for _, measure := range also {
		if err := measure(b, b.maps, runs[0]); err != nil {
			return nil, err
		}
	}
	return runs, nil
}

// servePackets has the Services of packets served in a cgroup, and makes the programs of a hook.
func servePackets(ctx context.Context, box *sandbox, newBench func(*bpfmap.Maps) (*packetBench, error)) (b *packetBench, cgroup string, err error) {
	if cgroup, err = box.subgroup(beeline); err != nil {
		return nil, "", err
	}
	sizes := bpfmap.DefaultSizes
	sizes.CountTraffic = true
	d, err := serveWith(ctx, datapath.Options{BPFFS: box.bpffs, Cgroup: cgroup, Sizes: sizes, LocalityIdle: time.Hour}, packetServices())
	if err != nil {
		return nil, "", err
	}
	b, err = newBench(d.Maps())
	return b, cgroup, err
}

func packetServices() source.Update {
	u := load{services: 10000, endpoints: destinations, protocol: model.TCP}.update()
	u.PutServices[packetService].Ports[0].NodePort = packetNodePort
	u.PutServices[tunnelPacketService].Ports[0].NodePort = tunnelNodePort
	u.PutServices[tunnelPacketService].Forwarding = model.DSR
	u.PutServices[localPacketService].ExternalLocal = true
	for service, nodePort := range map[int]uint16{datagramPacketService: datagramNodePort, localPacketService: localNodePort} {
		u.PutServices[service].Ports[0] = model.ServicePort{Protocol: model.UDP, Port: servicePort, NodePort: nodePort}
		for family := range model.Families {
			u.PutSlices[service*len(model.Families)+family].Ports[0].Protocol = model.UDP
		}
	}
	u.PutNodes, u.NodesListed = []*model.Node{&farNode}, true
	return u
}

// packetBench is a node with one device, and the programs.
type packetBench struct {
	*runner
	prefix  string // of the figures
	rounds  int
	batch   uint32 // runs of a packet
	tunnels bool   // there is a Service that answers clients directly
	maps    *bpfmap.Maps
	ingress *ebpf.Program // what is measured
	egress  *ebpf.Program // which tc runs on what ingress has sent or passed on; nil for XDP
	counts  *ebpf.Program // which counts the packets of all flows
	samples *ebpf.Program // which counts those of other flows
	node    map[model.Family]netip.Addr
}

func newPacketBench(maps *bpfmap.Maps) (*packetBench, error) {
	b, ifindex, err := newPacketNode(maps)
	if err != nil {
		return nil, err
	}
	err = b.load(func(sampling uint32) (*ebpf.Program, error) {
		programs, err := datapath.LoadDevices(maps, datapath.Constants{Seed: 1, Sent: sent, TrafficSampling: sampling}, "bl_ingress", "bl_egress")
		keep = append(keep, programs)
		if sampling == 0 {
			b.egress = programs["bl_egress"]
		}
		return programs["bl_ingress"], err
	})
	if err != nil {
		return nil, err
	}
	b.prefix = "packets"
	b.rounds, b.batch = packetRounds, packetBatch
	b.runner, err = newRunner(ifindex)
	return b, err
}

// load loads the program that counts the traffic of no flow, of all, and of a few.
func (b *packetBench) load(load func(sampling uint32) (*ebpf.Program, error)) (err error) {
	const few = 1 << 30
	for sampling, program := range map[uint32]**ebpf.Program{0: &b.ingress, 1: &b.counts, few: &b.samples} {
		if *program, err = load(sampling); err != nil {
			return err
		}
	}
	return nil
}

func newXDPBench(maps *bpfmap.Maps) (*packetBench, error) {
	b, ifindex, err := newPacketNode(maps)
	if err != nil {
		return nil, err
	}
	if err := viaGateway(); err != nil {
		return nil, err
	}
	b.prefix, b.rounds, b.batch = "xdp", xdpRounds, xdpBatch
	err = b.load(func(sampling uint32) (*ebpf.Program, error) {
		return datapath.LoadXDP(maps, datapath.Constants{
			Seed: 1, TunnelPort: tunnelPort, SNATPortMin: snatPort, SNATPortMax: 1<<16 - 1, TrafficSampling: sampling,
		})
	})
	if err != nil {
		return nil, err
	}
	b.runner, err = newXDPRunner(ifindex)
	return b, err
}

// newPacketNode makes the node's device and address known to the programs.
func newPacketNode(maps *bpfmap.Maps) (b *packetBench, ifindex int, err error) {
	uplink, err := packetUplink()
	if err != nil {
		return nil, 0, err
	}
	b = &packetBench{maps: maps, node: map[model.Family]netip.Addr{model.IPv4: uplinkAddr4, model.IPv6: uplinkAddr6}}
	services, err := servicemap.Open(maps)
	if err != nil {
		return nil, 0, err
	}
	for _, addr := range b.node {
		if err := services.PutNodeAddr(addr, tables.NodeAddr{}); err != nil {
			return nil, 0, err
		}
	}
	device := devicemap.Device{
		ID: 1, Name: "uplink", Ifindex: uplink.Attrs().Index, Addr4: uplinkAddr4, Addr6: uplinkAddr6,
		MTU: uplink.Attrs().MTU, Root: uplink.Attrs().Index, XDPSend: true,
	}
	// Frames here have no addresses.
	return b, device.Ifindex, errors.Join(devicemap.New(maps).Put(device), devicemap.New(maps).SetMACs(map[int]devicemap.MAC{device.Ifindex: {}}))
}

// packetUplink returns the node's device, made by the first call.
func packetUplink() (netlink.Link, error) {
	if uplink, err := netlink.LinkByName("uplink"); err == nil {
		return uplink, nil
	}
	if err := errors.Join(addUplink(), forward()); err != nil {
		return nil, err
	}
	return netlink.LinkByName("uplink")
}

// flowMemory measures the kernel memory that both entries of a flow take.
func (b *packetBench) flowMemory(maps *bpfmap.Maps, s samples) error {
	have, err := servicemap.New(maps).Snapshot()
	if err != nil {
		return err
	}
	all, err := statusmap.New(maps).Fill(have)
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.Map == "bl_flow" {
			s.add("packets/memory", 2*float64(m.Memory)/float64(m.Size))
			return nil
		}
	}
	return fmt.Errorf("there is no map bl_flow")
}

// measure measures flows that are there, then those that are not.
func (b *packetBench) measure(ctx context.Context, s samples, family model.Family) error {
	known, err := b.known(family)
	if err != nil {
		return err
	}
	names := []string{"none/udp", "none/tcp", "flow", "flow/affinity", "flow/sampled", "flow/counted", "reply"}
	if b.tunnels {
		if known["tunnel"], err = b.tunnel(family); err != nil {
			return err
		}
		names = append(names, "tunnel")
	}
	err = interleave(ctx, b.rounds, b.contestants(known), func(m measured) {
		floor := m["floor"] - m["empty"]
		s.add(of(b.prefix+"/empty", family), m["empty"])
		s.add(of(b.prefix+"/floor", family), floor)
		for _, name := range names {
			net := m[name] - m["empty"]
			s.add(of(b.prefix+"/"+name, family), net)
			s.add(of(b.prefix+"/"+name+"/floors", family), net/floor)
			if egress, ok := m[name+"/egress"]; ok {
				both := net + egress - m["empty"]
				s.add(of(b.prefix+"/"+name+"/both", family), both)
				s.add(of(b.prefix+"/"+name+"/both/floors", family), both/floor)
			}
		}
	})
	if err != nil {
		return err
	}
	fresh := b.fresh(family, known)
	for _, name := range []string{"inserts", "new"} {
		if err := b.fill(fresh[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return interleave(ctx, b.rounds, b.contestants(fresh), func(m measured) {
		inserts, floor := m["inserts"]-m["empty"], m["floor"]-m["again"]
		s.add(of(b.prefix+"/inserts", family), inserts)
		for _, name := range []string{"new", "new/udp", "new/affinity"} {
			net := m[name] - m["empty"]
			s.add(of(b.prefix+"/"+name, family), net)
			s.add(of(b.prefix+"/"+name+"/all/floors", family), net/floor)
			s.add(of(b.prefix+"/"+name+"/floors", family), (net-inserts)/floor)
		}
	})
}

func (b *packetBench) contestants(runs map[string]run) []contestant {
	var list []contestant
	for name, r := range runs {
		list = append(list, contestant{name, func() (float64, error) {
			if err := b.settle(); err != nil {
				return 0, err
			}
			return b.time(r, b.batch)
		}})
	}
	return list
}

// settle tells the programs what an agent would: that no half-open flow is left, for
// beyond their share new flows go to another table, that netfilter tracks nothing, and that no rule of
// routing looks at clients.
func (b *packetBench) settle() error {
	flowmap.New(b.maps).CountHalfOpen(flowmap.New(b.maps).HalfOpen(), 0)
	return errors.Join(flowmap.New(b.maps).SetTracking(false), flowmap.New(b.maps).SetRulesByClient(false))
}

// fill runs so often that each new flow evicts another.
func (b *packetBench) fill(r run) error {
	for range fill/b.batch + 1 {
		if err := b.settle(); err != nil {
			return err
		}
		if _, err := b.time(r, b.batch); err != nil {
			return err
		}
	}
	return nil
}

func outsider(family model.Family) netip.AddrPort {
	if family == model.IPv4 {
		return netip.AddrPortFrom(nth(outside4, 7), 40000)
	}
	return netip.AddrPortFrom(nth(outside6, 7), 40000)
}

// known returns runs whose packets are of flows that are there, or of none.
func (b *packetBench) known(family model.Family) (map[string]run, error) {
	client, elsewhere := outsider(family), netip.AddrPortFrom(outsider(family).Addr().Next(), 53)
	flow, reply, err := b.establish(client, netip.AddrPortFrom(b.node[family], packetNodePort))
	if err != nil {
		return nil, err
	}
	sticky, _, err := b.establish(client, netip.AddrPortFrom(b.node[family], stickyNodePort))
	if err != nil {
		return nil, err
	}
	floor, err := b.floor(flow)
	if err != nil {
		return nil, err
	}
	runs := map[string]run{
		"empty":         {program: b.BlBenchEmpty, packet: flow, verdict: b.empty},
		"floor":         floor,
		"none/udp":      {program: b.ingress, packet: newUDP(client, elsewhere), verdict: b.passes},
		"none/tcp":      {program: b.ingress, packet: newTCP(client, elsewhere, tcpACK), verdict: b.passes},
		"flow":          {program: b.ingress, packet: flow, verdict: b.sends},
		"flow/affinity": {program: b.ingress, packet: sticky, verdict: b.sends},
		"flow/sampled":  {program: b.samples, packet: flow, verdict: b.sends},
		"flow/counted":  {program: b.counts, packet: flow, verdict: b.sends},
		"reply":         {program: b.ingress, packet: reply, verdict: b.sends},
	}
	if b.egress == nil {
		return runs, nil
	}
	for _, name := range []string{"none/udp", "none/tcp", "flow", "reply"} {
		out, err := b.once(runs[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		runs[name+"/egress"] = run{program: b.egress, packet: out, verdict: b.passes, sent: runs[name].verdict == b.sends}
	}
	return runs, nil
}

// establish begins a connection and returns a packet of each direction.
func (b *packetBench) establish(client, to netip.AddrPort) (flow, reply frame, err error) {
	syn, err := b.once(run{program: b.ingress, packet: newTCP(client, to, tcpSYN), verdict: b.sends})
	if err != nil {
		return nil, nil, fmt.Errorf("SYN from %s to %s: %w", client, to, err)
	}
	backend, source := syn.destination(), syn.source()
	synack := newTCP(backend, source, tcpSYN|tcpACK)
	back, err := b.once(run{program: b.ingress, packet: synack, verdict: b.sends})
	if err != nil {
		return nil, nil, fmt.Errorf("reply from %s to %s: %w", backend, source, err)
	}
	if back.source() != to || back.destination() != client {
		return nil, nil, fmt.Errorf("a reply to %s goes from %s to %s, want from %s", client, back.source(), back.destination(), to)
	}
	return newTCP(client, to, tcpACK), newTCP(backend, source, tcpACK), nil
}

// tunnel returns a run whose packets are of a known flow and are sent in the tunnel.
func (b *packetBench) tunnel(family model.Family) (run, error) {
	client, to := outsider(family), netip.AddrPortFrom(b.node[family], tunnelNodePort)
	r := run{program: b.ingress, packet: newTCP(client, to, tcpSYN), verdict: b.sends}
	out, err := b.once(r)
	if err != nil {
		return r, fmt.Errorf("SYN from %s to %s: %w", client, to, err)
	}
	if at := out.destination(); !out.ipv4() || at != netip.AddrPortFrom(farNode.Tunnel, tunnelPort) {
		return r, fmt.Errorf("a packet to %s goes to %s, not by the tunnel", to, at)
	}
	r.packet = newTCP(client, to, tcpACK)
	return r, nil
}

// floor teaches the floor what to do with a packet.
func (b *packetBench) floor(packet frame) (run, error) {
	from, to := packet.source(), packet.destination()
	key, rewrite := floorEntry(packet)
	if err := b.BlBenchFlow.Put(&key, &rewrite); err != nil {
		return run{}, err
	}
	r := run{program: b.BlBenchFloor, packet: packet, verdict: b.verdicts.floor}
	out, err := b.once(r)
	if err == nil && (out.source() != to || out.destination() != from) {
		err = fmt.Errorf("the floor sends from %s to %s, want from %s to %s", out.source(), out.destination(), to, from)
	}
	return r, err
}

// floorEntry returns the entry by which the baseline program sends a packet back.
func floorEntry(packet frame) (key packetsBlFlowKey, rewrite packetsBlBenchRewrite) {
	from, to := packet.source(), packet.destination()
	key.SrcPort, key.DstPort, key.Proto = bigEndian(from.Port()), bigEndian(to.Port()), uint8(model.TCP)
	key.Src.Byte, key.Dst.Byte = from.Addr().As16(), to.Addr().As16()
	rewrite.SrcPort, rewrite.DstPort = key.DstPort, key.SrcPort
	rewrite.Src.Byte, rewrite.Dst.Byte = key.Dst.Byte, key.Src.Byte
	return key, rewrite
}

// fresh returns runs whose packets begin a flow each time, and what they are
// compared with.
func (b *packetBench) fresh(family model.Family, known map[string]run) map[string]run {
	first := func(nodePort uint16, packet func(from, to netip.AddrPort) frame) run {
		to := netip.AddrPortFrom(b.node[family], nodePort)
		return run{program: b.ingress, packet: packet(outsider(family), to), verdict: b.sends, fresh: new(uint32)}
	}
	syn := func(from, to netip.AddrPort) frame { return newTCP(from, to, tcpSYN) }
	return map[string]run{
		"again":        known["empty"],
		"floor":        known["floor"],
		"empty":        {program: b.BlBenchEmpty, packet: known["flow"].packet, verdict: b.empty, fresh: new(uint32)},
		"inserts":      {program: b.BlBenchInsert, packet: known["flow"].packet, verdict: b.empty, fresh: new(uint32)},
		"new":          first(packetNodePort, syn),
		"new/udp":      first(datagramNodePort, newUDP),
		"new/affinity": first(stickyNodePort, syn),
	}
}

func bigEndian(port uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
}
