package flowmap

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/maptest"
	"github.com/beeline-lb/beeline/tests/servicetest"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

var (
	flowClient  = netip.MustParseAddrPort("192.0.2.7:20000")
	flowService = netip.MustParseAddrPort("10.96.0.1:80")
	flowBackend = netip.MustParseAddrPort("10.1.0.1:8080")
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// The flags of the TCP header that the tests send.
const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpACK = 0x10
)

// tcpPacket returns an Ethernet frame with a TCP segment without payload. Its
// checksums are zero: the programs correct them by differences.
func tcpPacket(src, dst netip.AddrPort, flags byte) []byte {
	p := make([]byte, 14+20+20)
	p[12], p[13] = 0x08, 0x00
	ip, tcp := p[14:34], p[34:]
	ip[0], ip[8], ip[9] = 0x45, 64, byte(model.TCP)
	binary.BigEndian.PutUint16(ip[2:], 40)
	copy(ip[12:], src.Addr().AsSlice())
	copy(ip[16:], dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(tcp[0:], src.Port())
	binary.BigEndian.PutUint16(tcp[2:], dst.Port())
	tcp[12], tcp[13] = 5<<4, flags
	return p
}

// serveFlows brings a Service into the maps and returns the programs.
func serveFlows(t *testing.T, m *bpfmap.Maps) map[string]*ebpf.Program {
	t.Helper()
	const service, backend = 3, 5
	services := servicetest.Open(t, m)
	must(t,
		services.PutBackend(backend, tables.Backend{AddrPort: flowBackend, Service: service, State: tables.InCluster, Generation: 1}),
		services.PutSlots(0, []uint32{backend}),
		services.PutServiceName(service, maptest.ServiceName("a", model.IPv4)),
		services.PutService(service, tables.Service{Cluster: tables.Set{Kind: policy.Backends, Count: 1}}),
		services.PutFrontend(tables.FrontendKey{Addr: flowService.Addr(), Port: flowService.Port(), Protocol: model.TCP},
			tables.Frontend{Service: service, Kind: tables.FrontendClusterIP}))
	must(t, devicemap.New(m).SetMACs(map[int]devicemap.MAC{1: {}})) // of the loopback device, at which the kernel runs programs
	constants := datapath.Constants{TunnelPort: 6091, TunnelClamp: true}
	programs, err := datapath.LoadDevices(m, constants, bpf.TcProgBlIngress, bpf.TcProgBlEgress)
	if err != nil {
		t.Fatal(err)
	}
	if programs[bpf.XdpProgBlXdp], err = datapath.LoadXDP(m, constants); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, p := range programs {
			p.Close()
		}
	})
	return programs
}

func send(t *testing.T, program *ebpf.Program, packet []byte) {
	t.Helper()
	if _, _, err := program.Test(packet); err != nil {
		t.Fatal(err)
	}
}

// flowTable reads the whole table.
func flowTable(t *testing.T, m *bpfmap.Maps) (flows []Flow, replies []Reply) {
	t.Helper()
	for batch, err := range New(m).Batches(bpf.Clock) {
		must(t, err)
		flows = append(flows, batch.Flows...)
		replies = append(replies, batch.Replies...)
	}
	return flows, replies
}

// TestFlow follows a connection that the programs serve, to its end.
func TestFlow(t *testing.T) {
	tier.SameInEveryKernel(t)
	m := maptest.New(t, maptest.Small)
	programs := serveFlows(t, m)
	toService := func(flags byte) { send(t, programs[bpf.TcProgBlIngress], tcpPacket(flowClient, flowService, flags)) }
	reply := func(flags byte) { send(t, programs[bpf.TcProgBlEgress], tcpPacket(flowBackend, flowClient, flags)) }
	for _, step := range []struct {
		act  func(byte)
		with byte
		want State
	}{
		{toService, tcpSYN, StateNew},
		{reply, tcpSYN | tcpACK, StateSynReceived},
		{toService, tcpACK, StateEstablished},
		{reply, tcpFIN | tcpACK, StateBackendClosing},
		{toService, tcpFIN | tcpACK, StateClosed},
	} {
		step.act(step.with)
		flows, replies := flowTable(t, m)
		if len(flows) != 1 || len(replies) != 1 {
			t.Fatalf("%d flows and %d reply entries after a packet with flags %#x", len(flows), len(replies), step.with)
		}
		got := flows[0]
		got.generation, got.forward = 0, bpf.SockBlFlowForward{}
		want := Flow{
			Protocol: model.TCP, Client: flowClient, ServiceAddr: flowService, Source: flowClient, Backend: flowBackend,
			State: step.want, Idle: got.Idle, Service: 3, BackendID: 5, Known: true,
		}
		if got != want || got.Idle > wait.Limit {
			t.Fatalf("flow is %+v, want %+v", got, want)
		}
	}
	flows, _ := flowTable(t, m)
	must(t, New(m).Delete(&flows[0]), New(m).Delete(&flows[0]))
	if flows, replies := flowTable(t, m); len(flows)+len(replies) != 0 {
		t.Errorf("%v and %v are left", flows, replies)
	}
}

// TestFlowAborted follows connections that end before they are established, and one that
// ends right after that.
func TestFlowAborted(t *testing.T) {
	tier.SameInEveryKernel(t)
	const client, backend = true, false
	type packet struct {
		fromClient bool
		flags      byte
	}
	syn, synACK := packet{client, tcpSYN}, packet{backend, tcpSYN | tcpACK}
	m := maptest.New(t, maptest.Small)
	programs := serveFlows(t, m)
	for i, c := range []struct {
		packets []packet
		want    State
	}{
		{[]packet{syn, {backend, tcpRST | tcpACK}}, StateAborted},
		{[]packet{syn, {client, tcpRST}}, StateAborted},
		{[]packet{syn, {client, tcpFIN | tcpACK}}, StateAborted},
		{[]packet{syn, synACK, {client, tcpRST}}, StateAborted},
		{[]packet{syn, synACK, {client, tcpRST}, {client, tcpACK}, {backend, tcpFIN | tcpACK}}, StateAborted},
		{[]packet{syn, synACK, {client, tcpRST}, syn}, StateNew},
		{[]packet{syn, synACK, synACK, syn}, StateSynReceived},
		{[]packet{syn, synACK, {client, tcpFIN | tcpACK}}, StateClientClosing},
		{[]packet{syn, {backend, tcpFIN | tcpACK}}, StateBackendClosing},
		{[]packet{syn, synACK, {client, tcpACK}, {client, tcpRST}}, StateClosed},
	} {
		client := netip.AddrPortFrom(flowClient.Addr(), flowClient.Port()+uint16(i))
		before := New(m).HalfOpen().Count
		for _, p := range c.packets {
			if p.fromClient {
				send(t, programs[bpf.TcProgBlIngress], tcpPacket(client, flowService, p.flags))
			} else {
				send(t, programs[bpf.TcProgBlEgress], tcpPacket(flowBackend, client, p.flags))
			}
		}
		flows, _ := flowTable(t, m)
		if len(flows) != 1 || flows[0].State != c.want {
			t.Errorf("after %v the flows are %+v, want one that is %s", c.packets, flows, c.want)
			continue
		}
		halfOpen := int64(0)
		if flows[0].State.HalfOpen() {
			halfOpen = 1
		}
		if n := New(m).HalfOpen().Count - before; n != halfOpen {
			t.Errorf("after %v the programs count %d half-open flows, want %d", c.packets, n, halfOpen)
		}
		must(t, New(m).Delete(&flows[0]))
	}
}

// TestExpireFlow does not remove a flow that was used again after it was read.
func TestExpireFlow(t *testing.T) {
	tier.SameInEveryKernel(t)
	m := maptest.New(t, maptest.Small)
	programs := serveFlows(t, m)
	send(t, programs[bpf.TcProgBlIngress], tcpPacket(flowClient, flowService, tcpSYN))
	flows, replies := flowTable(t, m)

	used := flows[0]
	used.forward.Used--
	if removed, err := New(m).Expire(&used); removed || err != nil {
		t.Errorf("a flow that was used since: removed %t, %v", removed, err)
	}
	if removed, err := New(m).ExpireReply(&replies[0]); removed || err != nil {
		t.Errorf("the reply entry of a flow: removed %t, %v", removed, err)
	}
	if removed, err := New(m).Expire(&flows[0]); !removed || err != nil {
		t.Errorf("an idle flow: removed %t, %v", removed, err)
	}
	if removed, err := New(m).Expire(&flows[0]); removed || err != nil {
		t.Errorf("a flow that is gone: removed %t, %v", removed, err)
	}
	if flows, replies := flowTable(t, m); len(flows)+len(replies) != 0 {
		t.Errorf("%v and %v are left", flows, replies)
	}
}

// TestFlowMadeAgain reads a forward entry that a reply made: it is as it was.
func TestFlowMadeAgain(t *testing.T) {
	tier.SameInEveryKernel(t)
	m := maptest.New(t, maptest.Small)
	programs := serveFlows(t, m)
	send(t, programs[bpf.TcProgBlIngress], tcpPacket(flowClient, flowService, tcpSYN))
	flows, _ := flowTable(t, m)
	must(t, bpfmap.Remove(m.BlFlow, flows[0].key()))
	if flows, replies := flowTable(t, m); len(flows) != 0 || len(replies) != 1 {
		t.Fatalf("%v and %v", flows, replies)
	}
	send(t, programs[bpf.TcProgBlEgress], tcpPacket(flowBackend, flowClient, tcpRST))
	flows, _ = flowTable(t, m)
	if len(flows) != 1 || !flows[0].Known || flows[0].BackendID != 5 || flows[0].Client != flowClient || flows[0].ServiceAddr != flowService || flows[0].Backend != flowBackend {
		t.Errorf("flows are %+v", flows)
	}
}

// TestFlowSource tells what a backend on another node sees: the address of the
// device, in both families, as long as it has one.
func TestFlowSource(t *testing.T) {
	m := maptest.New(t, maptest.Small)
	device := devicemap.Device{ID: 9, Name: "uplink0", Ifindex: 7, Addr4: netip.MustParseAddr("198.51.100.1"), Addr6: netip.MustParseAddr("2001:db8::1")}
	must(t, devicemap.New(m).Put(device))
	put := func(client, service, backend string) {
		key := flowKey(netip.MustParseAddrPort(client), netip.MustParseAddrPort(service), model.UDP)
		to := netip.MustParseAddrPort(backend)
		entry := forwardEntry(to, bpf.Hton16(61000), device.ID, uint8(bpf.SockBlFlowBitsBL_FLOW_SNAT))
		must(t, bpfmap.Put(m.BlFlow, key, &entry))
		flow := Flow{Source: netip.AddrPortFrom(device.Addr4, 61000), Backend: to, Protocol: model.UDP}
		if to.Addr().Is6() {
			flow.Source = netip.AddrPortFrom(device.Addr6, 61000)
		}
		must(t, bpfmap.Put(m.BlFlow, flow.replyKey(), replyEntry(key)))
	}
	put("192.0.2.7:40000", "10.96.0.1:53", "10.1.0.1:5353")
	put("[fd00:7::7]:40000", "[fd00:96::1]:53", "[fd00:1::1]:5353")
	flows, _ := flowTable(t, m)
	if len(flows) != 2 {
		t.Fatalf("flows are %+v", flows)
	}
	for _, f := range flows {
		want := device.Addr4
		if f.Client.Addr().Is6() {
			want = device.Addr6
		}
		if f.Source != netip.AddrPortFrom(want, 61000) || f.Device != device.Name || !f.SNAT {
			t.Errorf("flow is %+v", f)
		}
		must(t, New(m).Delete(&f))
	}
	if flows, replies := flowTable(t, m); len(flows)+len(replies) != 0 {
		t.Errorf("%v and %v are left", flows, replies)
	}

	put("192.0.2.7:40000", "10.96.0.1:53", "10.1.0.1:5353")
	must(t, devicemap.New(m).Delete(device))
	flows, _ = flowTable(t, m)
	if flows[0].Source.IsValid() {
		t.Errorf("source is %s without a device", flows[0].Source)
	}
	must(t, New(m).Delete(&flows[0]))
	flows, replies := flowTable(t, m)
	if len(flows) != 0 || len(replies) != 1 {
		t.Fatalf("%v and %v are left", flows, replies)
	}
	used := replies[0]
	used.touched++
	if removed, err := New(m).ExpireReply(&used); removed || err != nil {
		t.Errorf("a reply entry that was used since: removed %t, %v", removed, err)
	}
	if removed, err := New(m).ExpireReply(&replies[0]); !removed || err != nil {
		t.Errorf("a reply entry without a flow: removed %t, %v", removed, err)
	}
}

// forwardEntry returns the forward entry of a flow to a backend.
func forwardEntry(backend netip.AddrPort, source uint16, device uint32, bits uint8) bpf.SockBlFlowEntry {
	var e bpf.SockBlFlowEntry
	e.Forward.Backend, e.Forward.BackendPort = bpf.AddrOf(backend.Addr()), bpf.Hton16(backend.Port())
	e.Forward.BackendId = math.MaxUint32
	e.Forward.Source.Port, e.Forward.Device, e.Forward.Bits = source, uint8(device), bits
	return e
}

// replyEntry returns the reply entry of the flow that has a forward entry with the key.
func replyEntry(forward *bpf.SockBlFlowKey) *bpf.SockBlFlowEntry {
	var e bpf.SockBlFlowEntry
	*e.Reply() = bpf.SockBlFlowReply{
		Client: forward.Src, ClientPort: forward.SrcPort, Service: forward.Dst, ServicePort: forward.DstPort,
		Bits: uint8(bpf.SockBlFlowBitsBL_FLOW_IS_REPLY),
	}
	return &e
}

// TestFlowStolenReply: the reply entry of another flow, which has taken the port since, stays
// when a flow is removed.
func TestFlowStolenReply(t *testing.T) {
	m := maptest.New(t, maptest.Small)
	f := Flow{Protocol: model.UDP, Client: flowClient, ServiceAddr: flowService, Source: flowClient, Backend: flowBackend}
	entry := forwardEntry(f.Backend, bpf.Hton16(f.Source.Port()), 0, 0)
	must(t, bpfmap.Put(m.BlFlow, f.key(), &entry))
	other := flowKey(flowClient, netip.AddrPortFrom(flowService.Addr(), 4242), model.UDP)
	must(t, bpfmap.Put(m.BlFlow, f.replyKey(), replyEntry(other)))
	must(t, New(m).Delete(&f))
	if flows, replies := flowTable(t, m); len(flows) != 0 || len(replies) != 1 || replies[0].forward != *other {
		t.Errorf("%v and %v are left", flows, replies)
	}
}

// TestFormerOfAnother: a flow that is removed from one table leaves the reply entry to one with the same
// addresses in the other, whichever backend other flows of these addresses have.
func TestFormerOfAnother(t *testing.T) {
	m := newFormer(t)
	f := Flow{Protocol: model.TCP, Client: flowClient, ServiceAddr: flowService, Source: flowClient, Backend: flowBackend}
	other := forwardEntry(netip.AddrPortFrom(flowBackend.Addr(), 4242), bpf.Hton16(f.Source.Port()), 0, 0)
	own := forwardEntry(f.Backend, bpf.Hton16(f.Source.Port()), 0, 0)
	must(t, m.FormerFlow().Put(f.key(), &other), m.BlFlow.Put(f.key(), &own), m.BlFlow.Put(f.replyKey(), replyEntry(f.key())))
	_, replies := flowTable(t, m)
	if removed, err := New(m).ExpireReply(&replies[0]); removed || err != nil {
		t.Errorf("the reply entry of a flow: removed %t, %v", removed, err)
	}
	must(t, New(m).Delete(&f))
	if flows, replies := flowTable(t, m); len(flows) != 1 || flows[0].Backend == f.Backend || len(replies) != 0 {
		t.Errorf("%+v and %+v are left, want the flow to another backend", flows, replies)
	}
}

// TestExpireReplaced: programs put another flow in place of one that is about to be removed, between
// any two steps of that. The other flow keeps its entries.
func TestExpireReplaced(t *testing.T) {
	m := maptest.New(t, maptest.Small)
	f := Flow{Protocol: model.TCP, Client: flowClient, ServiceAddr: flowService, Source: flowClient, Backend: flowBackend}
	entry := func(used uint32) *bpf.SockBlFlowEntry {
		e := forwardEntry(f.Backend, bpf.Hton16(f.Source.Port()), 0, 0)
		e.Forward.Used = used
		return &e
	}
	begin := func(used uint32) {
		must(t, bpfmap.Put(m.BlFlow, f.key(), entry(used)), bpfmap.Put(m.BlFlow, f.replyKey(), replyEntry(f.key())))
	}
	whole := func(when string, used uint32) {
		t.Helper()
		flows, replies := flowTable(t, m)
		if len(flows) != 1 || len(replies) != 1 || flows[0].forward.Used != used {
			t.Errorf("replaced %s: left are %+v and %+v", when, flows, replies)
		}
	}
	// unused is called before and after the removal of the forward entry.
	expire := func(replaceAt int) (removed bool) {
		call := 0
		begin(1)
		before := m.Entries.HalfOpen.Removed
		removed, err := New(m).remove(&f, func(e *bpf.SockBlFlowEntry) bool {
			unused := e.Forward.Used == 1
			if call++; call == replaceAt {
				begin(2)
			}
			return unused
		})
		if err != nil {
			t.Fatal(err)
		}
		if counted := m.Entries.HalfOpen.Removed != before; counted != removed {
			t.Errorf("removed %t, counted as removed %t", removed, counted)
		}
		return removed
	}
	if expire(1) {
		t.Error("what was replaced before its removal is called removed")
	}
	whole("before the removal", 2)
	if !expire(2) {
		t.Error("what was replaced after its removal is not called removed")
	}
	whole("after the removal", 2)
}

// TestFlowStamps reads times over the wrap of the reply entry's short stamp.
func TestFlowStamps(t *testing.T) {
	for _, c := range []struct {
		now, stamp uint32
		want       time.Duration
	}{
		{1000, 1000, 0},
		{1000, 900, 100 * time.Second},
		{1000, 1001, 0}, // a packet came since the clock was read
		{65536, 65535, time.Second},
		{65600, 65500, 100 * time.Second},
		{65535, 65536, 0},
		{70000, 70000 - 65000, 65000 * time.Second},
	} {
		r := reader{seconds: c.now, backend: func(uint32) *bpf.SockBlBackendEntry { return nil }}
		entry := &bpf.SockBlFlowEntry{}
		entry.Reply().Touched = uint16(c.stamp)
		reply := r.reply(&bpf.SockBlFlowKey{}, entry)
		if reply.Unused != c.want {
			t.Errorf("at %d, a reply of second %d is unused for %s, want %s", c.now, c.stamp, reply.Unused, c.want)
		}
		forward := &bpf.SockBlFlowEntry{}
		forward.Forward.Used = c.stamp
		if f := r.flow(&bpf.SockBlFlowKey{}, forward); f.Idle != c.want {
			t.Errorf("at %d, a flow of second %d is idle for %s, want %s", c.now, c.stamp, f.Idle, c.want)
		}
	}
}

// nthClient returns one of many clients.
func nthClient(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)}), 20000)
}

// TestOverflow: connections that are half-open take up no more than their share of the
// table, and one that began beyond it moves there when it is established.
func TestOverflow(t *testing.T) {
	tier.SameInEveryKernel(t)
	sizes := maptest.Small
	sizes.Flows = 8000
	m := maptest.New(t, sizes)
	programs := serveFlows(t, m)
	toService := func(n int, flags byte) {
		send(t, programs[bpf.TcProgBlIngress], tcpPacket(nthClient(n), flowService, flags))
	}
	reply := func(n int, flags byte) {
		send(t, programs[bpf.TcProgBlEgress], tcpPacket(flowBackend, nthClient(n), flags))
	}
	want := func(what string, established, halfOpen, overflow int) {
		t.Helper()
		flows, replies := flowTable(t, m)
		got := map[string]int{}
		for i := range flows {
			switch f := &flows[i]; {
			case f.Overflow:
				got["overflow"]++
			case f.State.HalfOpen():
				got["half-open"]++
			default:
				got["established"]++
			}
		}
		if got["established"] != established || got["half-open"] != halfOpen || got["overflow"] != overflow || len(replies) != len(flows) {
			t.Fatalf("%s: %v and %d reply entries, want %d established, %d half-open, %d in the overflow table", what, got, len(replies), established, halfOpen, overflow)
		}
		if n := New(m).HalfOpen().Count; n != int64(halfOpen) {
			t.Errorf("%s: the programs have counted %d half-open flows, want %d", what, n, halfOpen)
		}
	}
	const share = 8000 / 2 / 4
	for n := range share {
		toService(n, tcpSYN)
	}
	want("a share of SYNs", 0, share, 0)
	if New(m).HalfOpen().Overflow != 0 {
		t.Error("the overflow table is in use")
	}
	for n := share; n < share+3; n++ {
		toService(n, tcpSYN)
	}
	want("more SYNs", 0, share, 3)
	if New(m).HalfOpen().Overflow == 0 {
		t.Error("the overflow table is not in use")
	}
	reply(share, tcpSYN|tcpACK)
	want("the backend has answered", 0, share, 3)
	toService(share, tcpACK)
	want("the client has answered that", 1, share, 2)
	toService(share+1, tcpACK)
	reply(share+1, tcpRST|tcpACK)
	toService(share+1, tcpACK)
	want("the backend has refused", 1, share, 2)
	reply(0, tcpSYN|tcpACK)
	toService(0, tcpACK)
	want("one of the share goes on", 2, share-1, 2)
	reply(1, tcpRST|tcpACK)
	toService(1, tcpSYN)
	want("one that was refused is opened again", 2, share-1, 2)
	toService(share+10, tcpSYN)
	want("a new one in its place", 2, share, 2)
	for _, n := range []int{0, share} {
		reply(n, tcpFIN|tcpACK)
		toService(n, tcpFIN|tcpACK)
	}
	flows, _ := flowTable(t, m)
	for i := range flows {
		if flows[i].State == StateClosed || flows[i].Overflow {
			must(t, New(m).Delete(&flows[i]))
		}
	}
	want("those that were established are gone, and the overflow", 0, share, 0)
}

// TestFlowTunnel shows in which direction flows use the tunnel, and removes one that is sent in it and
// nothing else.
func TestFlowTunnel(t *testing.T) {
	m := maptest.New(t, maptest.Small)
	must(t, devicemap.New(m).Put(devicemap.Device{ID: 9, Name: "uplink0", Ifindex: 7}))
	node := tables.Node{Addr: netip.MustParseAddr("192.0.2.33"), Name: "far"}
	must(t, nodemap.NewStore(m).PutNode(3, node))
	put := func(client netip.AddrPort, device uint8, otherPort uint16) {
		t.Helper()
		entry := forwardEntry(flowBackend, otherPort, uint32(device), uint8(bpf.SockBlFlowBitsBL_FLOW_TUNNEL))
		must(t, bpfmap.Put(m.BlFlow, flowKey(client, flowService, model.TCP), &entry))
	}
	other := netip.AddrPortFrom(flowClient.Addr(), 3)
	third := netip.AddrPortFrom(flowClient.Addr(), 4)
	put(flowClient, 9, 3) // to node 3
	put(third, 9, 4)      // to a node that is gone
	put(other, 0, bpf.Hton16(other.Port()))
	reply := Flow{Protocol: model.TCP, Source: other, Backend: flowBackend}
	must(t, bpfmap.Put(m.BlFlow, reply.replyKey(), replyEntry(flowKey(other, flowService, model.TCP))))
	type shown struct {
		tunnel Tunnel
		node   tables.Node
		source netip.AddrPort
		device string
	}
	want := map[netip.AddrPort]shown{
		flowClient: {LeavesByTunnel, node, flowClient, "uplink0"},
		third:      {LeavesByTunnel, tables.Node{}, third, "uplink0"},
		other:      {ComesByTunnel, tables.Node{}, other, ""},
	}
	flows, _ := flowTable(t, m)
	for _, f := range flows {
		if got := (shown{f.Tunnel, f.Node, f.Source, f.Device}); got != want[f.Client] {
			t.Errorf("the flow of %s is %+v, want %+v", f.Client, got, want[f.Client])
		}
		if f.Tunnel == LeavesByTunnel {
			must(t, New(m).Delete(&f))
		}
	}
	flows, replies := flowTable(t, m)
	if len(flows) != 1 || len(replies) != 1 {
		t.Fatalf("%v and %v are left", flows, replies)
	}
	must(t, New(m).Delete(&flows[0]))
	if flows, replies := flowTable(t, m); len(flows)+len(replies) != 0 {
		t.Errorf("%v and %v are left", flows, replies)
	}
}

// TestFlowMasquerade: of the two flows of a masqueraded connection, each is read as what it is and
// removed with its own entries, also where the client has a flow of its own with the endpoint.
func TestFlowMasquerade(t *testing.T) {
	m := maptest.New(t, maptest.Small)
	node := netip.MustParseAddrPort("192.0.2.1:4242")
	must(t, devicemap.New(m).SetMasquerade(node.Addr(), netip.Addr{}))
	put := func(f *Flow, device bpf.SockBlDeviceLimit, bits bpf.SockBlFlowBits) {
		t.Helper()
		entry := forwardEntry(f.Backend, bpf.Hton16(f.Source.Port()), 0, uint8(bits))
		entry.Forward.Device = uint8(device)
		reply := replyEntry(f.key())
		reply.Reply().Bits |= uint8(bits)
		if device != 0 {
			reply.Reply().Device = uint8(bpf.SockBlDeviceLimitBL_DEVICE_MASQUERADE)
		}
		must(t, bpfmap.Put(m.BlFlow, f.key(), &entry), bpfmap.Put(m.BlFlow, f.replyKey(), reply))
	}
	service := Flow{Protocol: model.TCP, Client: flowClient, ServiceAddr: flowService, Source: flowClient, Backend: flowBackend, Device: MasqueradeDevice}
	second := Flow{Protocol: model.TCP, Client: flowClient, ServiceAddr: flowBackend, Source: node, Backend: flowBackend, Device: RoutedDevice, Masquerade: true}
	direct := Flow{Protocol: model.TCP, Client: flowClient, ServiceAddr: flowBackend, Source: netip.AddrPortFrom(flowClient.Addr(), 5), Backend: flowBackend}
	put(&service, bpf.SockBlDeviceLimitBL_DEVICE_MASQUERADE, 0)
	put(&second, bpf.SockBlDeviceLimitBL_DEVICE_ROUTED, bpf.SockBlFlowBitsBL_FLOW_SNAT)
	put(&direct, 0, 0)
	for left := 3; left > 0; left-- {
		flows, replies := flowTable(t, m)
		if len(flows) != left || len(replies) != left {
			t.Fatalf("%v and %v are there, want %d", flows, replies, left)
		}
		f := &flows[0]
		want := &direct
		if f.Masquerade {
			want = &second
		} else if f.ServiceAddr == flowService {
			want = &service
		}
		if f.Source != want.Source || f.Device != want.Device || f.Masqueraded() != (want != &direct) {
			t.Errorf("it is read as %+v, want %+v", f, want)
		}
		removed, err := New(m).Expire(f)
		if must(t, err); !removed {
			t.Errorf("%+v is not removed", f)
		}
	}
}
