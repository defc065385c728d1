package flowmap

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// State is how far a flow has come.
type State uint8

// The states; the numbers are those of enum bl_flow_state.
const (
	StateNew            = State(bpf.SockBlFlowStateBL_FLOW_NEW)             // no reply yet
	StateSynReceived    = State(bpf.SockBlFlowStateBL_FLOW_SYN_RECEIVED)    // replied to; TCP: the backend has answered the SYN
	StateEstablished    = State(bpf.SockBlFlowStateBL_FLOW_ESTABLISHED)     // the client has gone on after that
	StateClientClosing  = State(bpf.SockBlFlowStateBL_FLOW_CLIENT_CLOSING)  // TCP: FIN of the client seen
	StateBackendClosing = State(bpf.SockBlFlowStateBL_FLOW_BACKEND_CLOSING) // TCP: FIN of the backend seen
	StateClosed         = State(bpf.SockBlFlowStateBL_FLOW_CLOSED)          // TCP: FIN of both sides, or RST
	StateAborted        = State(bpf.SockBlFlowStateBL_FLOW_ABORTED)         // TCP: ended before it was established
	StateClashed        = State(bpf.SockBlFlowStateBL_FLOW_CLASHED)         // TCP: the backend has answered within another connection
)

// StateNames are the states as people write them, by number.
var StateNames = [...]string{
	StateNew:            "new",
	StateSynReceived:    "syn-received",
	StateEstablished:    "established",
	StateClientClosing:  "client-closing",
	StateBackendClosing: "backend-closing",
	StateClosed:         "closed",
	StateAborted:        "aborted",
	StateClashed:        "clashed",
}

// String returns the name of the state.
func (s State) String() string {
	if int(s) < len(StateNames) {
		return StateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Table is the flow table of some maps, with the one of flows that begin beyond the share of
// half-open ones, and the former one as long as programs look there.
type Table struct{ maps *bpfmap.Maps }

// New returns the flow table of the maps.
func New(m *bpfmap.Maps) Table { return Table{m} }

// Flow is a connection that a packet of a client outside of this node's sockets
// began.
type Flow struct {
	Protocol model.Protocol
	Client   netip.AddrPort
	// ServiceAddr is the client's destination.
	ServiceAddr netip.AddrPort
	// Source is where the backend sees the connection come from: the client, or
	// with SNAT this node. Its address is then the one that Device has now; it is
	// not valid when the device has none.
	Source netip.AddrPort
	SNAT   bool
	Tunnel Tunnel
	// Node is at the end of the tunnel that packets leave by; the zero value when that node
	// is gone.
	Node    tables.Node
	Backend netip.AddrPort
	State   State
	Idle    time.Duration // since the last packet of either direction, to a second
	// Device is the name of the one that the client's packets leave by; "" is the
	// host's stack. Or it is one of [RoutedDevice], [HairpinDevice], [MasqueradeDevice].
	Device string
	// Masquerade says that the flow gives the packets of another one, with Device
	// [MasqueradeDevice], their source. ServiceAddr is then the backend.
	Masquerade bool
	// Service and BackendID are not known of a flow whose backend serves no more, and of
	// one that comes by the tunnel.
	Service   uint32
	BackendID uint32
	Known     bool
	// generation is the backend's.
	generation uint32
	// Overflow says that the flow is in the table of those that began when half-open
	// ones had used up their share of the other.
	Overflow bool
	// Moved says that this is what the former flow table has of a flow that programs have taken from there.
	Moved bool

	forward bpf.SockBlFlowForward
}

// Expired returns what is told to who listens to events when the flow is removed.
func (f *Flow) Expired() bpf.SockBlFound {
	return bpf.SockBlFound{Key: *f.key(), Forward: f.forward, Kind: uint32(bpf.SockBlEventKindBL_EVENT_ENDED)}
}

// unknown is the id of a backend that a flow's entries do not name.
const unknown = ^uint32(0)

// Departed reports whether the flow is open, and its endpoint has left the Service.
func (f *Flow) Departed() bool {
	return f.State.Active() && !f.Known && f.forward.BackendId != unknown
}

// Left returns what is told when an endpoint has left its Service with open flows, of which this is
// one.
func (f *Flow) Left(flows int) bpf.SockBlFound {
	found := bpf.SockBlFound{Key: *f.key(), Forward: f.forward, Kind: uint32(bpf.SockBlEventKindBL_EVENT_LEFT), Flows: uint32(flows)}
	// Of all clients, with whatever source.
	found.Key.Src, found.Key.SrcPort = bpf.SockBlAddr{}, 0
	found.Forward.Bits &^= uint8(bpf.SockBlFlowBitsBL_FLOW_SNAT | bpf.SockBlFlowBitsBL_FLOW_TUNNEL)
	return found
}

// Evicted returns what is told when the kernel has evicted established flows.
func Evicted(flows int) bpf.SockBlFound {
	found := bpf.SockBlFound{Kind: uint32(bpf.SockBlEventKindBL_EVENT_EVICTED), Flows: uint32(flows)}
	found.Forward.BackendId = unknown
	return found
}

// Ejected returns what is told when a backend is ejected for so long, as so many connections to it have
// failed, or with 0 when it is let in again.
func Ejected(id, generation uint32, backend netip.AddrPort, failures uint32, pause time.Duration) bpf.SockBlFound {
	found := bpf.SockBlFound{Kind: uint32(bpf.SockBlEventKindBL_EVENT_ADMITTED)}
	if pause > 0 {
		found.Kind = uint32(bpf.SockBlEventKindBL_EVENT_EJECTED)
		found.Flows, found.Seconds = failures, uint32(pause/time.Second)
	}
	found.Key.Proto = uint8(model.TCP)
	found.Forward.Backend, found.Forward.BackendPort = bpf.AddrOf(backend.Addr()), bpf.Hton16(backend.Port())
	found.Forward.BackendId, found.Forward.Generation = id, uint16(generation)
	return found
}

// Tunnel is the direction in which the client's packets use the tunnel between nodes.
type Tunnel uint8

// The directions. A flow whose packets leave by the tunnel has no reply entry, for the other
// node answers the client.
const (
	NoTunnel Tunnel = iota
	LeavesByTunnel
	ComesByTunnel
)

// Replied is the name of [StateSynReceived] for protocols without SYN.
const Replied = "replied"

// StateName returns the state as people write it.
func (f *Flow) StateName() string {
	if f.State == StateSynReceived && f.Protocol == model.UDP {
		return Replied
	}
	return f.State.String()
}

// Active reports whether a flow is an active connection, as bl_flow_active of the programs.
func (s State) Active() bool { return s <= StateEstablished }

// HalfOpen reports whether no packet of the client has come after a reply yet: it may be none
// that gets them.
func (s State) HalfOpen() bool { return bpf.SockBlFlowState(s).HalfOpen() }

// The indexes that stand for more than one device.
const (
	routedDevice     = bpf.SockBlDeviceLimitBL_DEVICE_ROUTED
	hairpinDevice    = bpf.SockBlDeviceLimitBL_DEVICE_HAIRPIN
	masqueradeDevice = bpf.SockBlDeviceLimitBL_DEVICE_MASQUERADE
)

// RoutedDevice is the value of [Flow.Device] when each packet leaves by the device that
// the route leads to. No device can have this name.
const RoutedDevice = "by route"

// HairpinDevice is the value of [Flow.Device] when packets are sent back to a backend on this
// node where they would leave it.
const HairpinDevice = "hairpin"

// MasqueradeDevice is the value of [Flow.Device] when the host's stack takes packets on with the
// client's address, and they get one of this node as they leave it.
const MasqueradeDevice = "masquerade"

// Masqueraded reports whether the endpoint sees this node for the client by masqueradeAll.
func (f *Flow) Masqueraded() bool {
	return f.Masquerade || f.Device == MasqueradeDevice || f.SNAT && f.Device == RoutedDevice
}

// key returns the key of the forward entry: the client's packets.
func (f *Flow) key() *bpf.SockBlFlowKey {
	key := flowKey(f.Client, f.ServiceAddr, f.Protocol)
	if f.Masquerade {
		key.Masquerade = 1
	}
	return key
}

// replyKey returns the key of the reply entry: the backend's packets.
func (f *Flow) replyKey() *bpf.SockBlFlowKey { return flowKey(f.Backend, f.Source, f.Protocol) }

func flowKey(src, dst netip.AddrPort, protocol model.Protocol) *bpf.SockBlFlowKey {
	return &bpf.SockBlFlowKey{
		Src: bpf.AddrOf(src.Addr()), SrcPort: bpf.Hton16(src.Port()),
		Dst: bpf.AddrOf(dst.Addr()), DstPort: bpf.Hton16(dst.Port()),
		Proto: uint8(protocol),
	}
}

// Reply is the reply entry of a flow.
type Reply struct {
	// Unused is the time since the last reply. The entry has only the low 16 bits
	// of its second: of a longer time, this is the rest.
	Unused time.Duration

	key     bpf.SockBlFlowKey
	forward bpf.SockBlFlowKey
	touched uint16
}

// batch is how many entries are read by one system call; more than any bucket of
// a hash holds.
const batch = 4096

// Batch is a part of the flow tables.
type Batch struct {
	Overflow bool   // as of its flows
	Former   bool   // of the former flow table
	Flows    []Flow // by their forward entries
	Replies  []Reply
}

// Batches reads the flow tables, one part of a few thousand entries by each
// system call, with the time by clock, which is [bpf.Clock] but in tests. The slices of
// a batch are good until the next one. An entry that comes or goes meanwhile is seen
// or not, one that is moved to another table once or twice; every other is seen once.
// Reading leaves the order of eviction alone.
// After an error there is no further batch.
func (t Table) Batches(clock func() (time.Duration, error)) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		r, err := newReader(t.maps, clock)
		for _, table := range t.tables() {
			r.Overflow, r.Former, r.cursor = table == t.maps.BlOverflow, table == t.maps.FormerFlow(), ebpf.MapBatchCursor{}
			for last := false; err == nil && !last; {
				last, err = r.next(table)
				if err == nil && r.Former {
					err = t.markMoved(r.Flows)
				}
				if err == nil && !yield(r.Batch, nil) {
					return
				}
			}
			if err != nil {
				yield(Batch{}, fmt.Errorf("read %s: %w", table, err))
				return
			}
		}
	}
}

// Flows yields what [Table.Batches] reads, each flow once: one that is in both tables as the present one has it.
// A flow is good until the next one.
func (t Table) Flows(clock func() (time.Duration, error)) iter.Seq2[*Flow, error] {
	return func(yield func(*Flow, error) bool) {
		for batch, err := range t.Batches(clock) {
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range batch.Flows {
				if f := &batch.Flows[i]; !f.Moved && !yield(f, nil) {
					return
				}
			}
		}
	}
}

// markMoved finds those flows of the former table that the present ones have, too.
func (t Table) markMoved(flows []Flow) error {
	present := t.tables()[1:]
	for i := range flows {
		for _, table := range present {
			var entry bpf.SockBlFlowEntry
			err := table.Lookup(flows[i].key(), &entry)
			if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
			flows[i].Moved = flows[i].Moved || err == nil && !entry.IsReply()
		}
	}
	return nil
}

// reader reads and converts entries.
type reader struct {
	Batch
	clock   func() (time.Duration, error)
	seconds uint32 // of the clock when the batch was read
	devices [routedDevice + 1]devicemap.Device
	// backend returns the entry of a backend; nil beyond the table.
	backend func(id uint32) *bpf.SockBlBackendEntry
	nodes   map[uint16]tables.Node
	cursor  ebpf.MapBatchCursor
	keys    []bpf.SockBlFlowKey
	values  []bpf.SockBlFlowEntry
}

func newReader(m *bpfmap.Maps, clock func() (time.Duration, error)) (*reader, error) {
	r := &reader{clock: clock, backend: m.Backend.At, keys: make([]bpf.SockBlFlowKey, batch), values: make([]bpf.SockBlFlowEntry, batch)}
	table := devicemap.New(m)
	devices, err := table.List()
	if err != nil {
		return r, err
	}
	for _, d := range devices {
		r.devices[d.ID] = d
	}
	r.devices[masqueradeDevice].Name = MasqueradeDevice
	hairpin := &r.devices[hairpinDevice]
	hairpin.Name = HairpinDevice
	if hairpin.Addr4, hairpin.Addr6, err = table.Hairpin(); err != nil {
		return r, err
	}
	nodes, err := nodemap.New(m).List()
	if err != nil {
		return r, err
	}
	r.nodes = make(map[uint16]tables.Node)
	for _, n := range nodes {
		r.nodes[n.ID] = n.Node
	}
	routed := &r.devices[routedDevice]
	routed.Name = RoutedDevice
	routed.Addr4, routed.Addr6, err = table.Masquerade()
	return r, err
}

// next reads a batch and reports whether it is the last one.
func (r *reader) next(kernelMap *ebpf.Map) (bool, error) {
	now, err := r.clock()
	if err != nil {
		return false, err
	}
	r.seconds = uint32(now / time.Second)
	n, err := kernelMap.BatchLookup(&r.cursor, r.keys, r.values, nil)
	last := errors.Is(err, ebpf.ErrKeyNotExist)
	if err != nil && !last {
		return false, err
	}
	r.Flows, r.Replies = r.Flows[:0], r.Replies[:0]
	for i := range n {
		if r.values[i].IsReply() {
			r.Replies = append(r.Replies, r.reply(&r.keys[i], &r.values[i]))
		} else {
			r.Flows = append(r.Flows, r.flow(&r.keys[i], &r.values[i]))
		}
	}
	return last, nil
}

func (r *reader) flow(key *bpf.SockBlFlowKey, value *bpf.SockBlFlowEntry) Flow {
	forward := &value.Forward
	device := &r.devices[forward.Device]
	f := Flow{
		Protocol:    model.Protocol(key.Proto),
		Client:      netip.AddrPortFrom(key.Src.Netip(), bpf.Hton16(key.SrcPort)),
		ServiceAddr: netip.AddrPortFrom(key.Dst.Netip(), bpf.Hton16(key.DstPort)),
		SNAT:        uint32(forward.Bits)&uint32(bpf.SockBlFlowBitsBL_FLOW_SNAT) != 0,
		Backend:     netip.AddrPortFrom(forward.Backend.Netip(), bpf.Hton16(forward.BackendPort)),
		State:       State(forward.State()),
		// A packet may have come since the clock was read.
		Idle:     time.Duration(max(0, int32(r.seconds-forward.Used))) * time.Second,
		Device:   device.Name,
		Overflow: r.Overflow,
		forward:  *forward,

		Masquerade: key.Masquerade != 0,
	}
	if e := r.backend(forward.BackendId); e != nil && e.State != 0 && sameUser(e.Generation, uint32(forward.Generation)) {
		f.Service, f.BackendID, f.generation, f.Known = e.Service, forward.BackendId, e.Generation, true
	}
	if uint32(forward.Bits)&uint32(bpf.SockBlFlowBitsBL_FLOW_TUNNEL) != 0 {
		f.Tunnel = ComesByTunnel
		if forward.Device != 0 {
			f.Tunnel, f.Node, f.Source = LeavesByTunnel, r.nodes[forward.Source.Port], f.Client
			return f
		}
	}
	f.Source = netip.AddrPortFrom(r.source(&f, forward), bpf.Hton16(forward.Source.Port))
	return f
}

// source returns the address that the backend of a flow sees.
func (r *reader) source(f *Flow, forward *bpf.SockBlFlowForward) netip.Addr {
	device := &r.devices[forward.Device]
	itself := uint32(forward.Bits)&uint32(bpf.SockBlFlowBitsBL_FLOW_POD) != 0 && !f.SNAT &&
		bpf.SockBlDeviceLimit(forward.Device) != masqueradeDevice && f.Backend.Addr() == f.Client.Addr()
	switch {
	case itself && f.Protocol == model.UDP:
		device = &r.devices[hairpinDevice]
	case itself:
		return f.ServiceAddr.Addr()
	case !f.SNAT:
		return f.Client.Addr()
	}
	if f.Client.Addr().Is4() {
		return device.Addr4
	}
	return device.Addr6
}

// stampAhead is how many seconds a stamp may be later than the time at which the
// batch was read.
const stampAhead = 60

func (r *reader) reply(key *bpf.SockBlFlowKey, value *bpf.SockBlFlowEntry) Reply {
	reply := value.Reply()
	unused := uint16(r.seconds) - reply.Touched
	if unused > math.MaxUint16-stampAhead {
		unused = 0
	}
	return Reply{
		Unused:  time.Duration(unused) * time.Second,
		key:     *key,
		forward: reply.ForwardKey(key.Proto),
		touched: reply.Touched,
	}
}

// Delete removes both entries of a flow. It is no error when they are gone.
func (t Table) Delete(f *Flow) error {
	same := func(e *bpf.SockBlFlowEntry) bool { return !e.IsReply() && e.Forward.Owns(f.replyKey()) }
	if !f.Source.IsValid() || f.Tunnel == LeavesByTunnel {
		same = func(e *bpf.SockBlFlowEntry) bool { return !e.IsReply() }
	}
	removed, err := t.remove(f, same)
	if removed {
		t.drop(f)
	}
	if err != nil {
		return err
	}
	_, err = t.remove(f, same) // a packet of the backend may have made it again, which counts nothing
	return err
}

// Expire removes a flow unless a packet of it came since it was read, and reports whether it did. One that was
// moved goes from the former table alone; with another goes what is left of it there.
func (t Table) Expire(f *Flow) (bool, error) {
	same := func(e *bpf.SockBlFlowEntry) bool { return !e.IsReply() && e.Forward.Used == f.forward.Used }
	former := t.maps.FormerFlow()
	if f.Moved {
		return t.removeFrom([]*ebpf.Map{former}, f, same)
	}
	removed, err := t.remove(f, same)
	if !removed {
		return false, err
	}
	t.drop(f)
	if err == nil && former != nil {
		_, err = t.remove(f, func(e *bpf.SockBlFlowEntry) bool {
			return !e.IsReply() && e.Forward.Used <= f.forward.Used
		})
	}
	return true, err
}

// remove removes a flow whose forward entry is as it should be from all tables, and reports whether it did. The
// reply entry stays when another flow has it, and when Source is not valid, until
// [Table.ExpireReply].
//
// The forward entry goes first: with the reply entry alone, what the backend still
// sends is translated, while with the forward entry alone it would reach the client
// from an address that it does not know. Such a packet, or a new connection of the client, may make
// the forward entry again meanwhile; that keeps the reply entry. So does one that is left in another table.
func (t Table) remove(f *Flow, ok func(*bpf.SockBlFlowEntry) bool) (bool, error) {
	return t.removeFrom(t.tables(), f, ok)
}

// removeFrom is remove, with the forward entry from some of the tables.
func (t Table) removeFrom(from []*ebpf.Map, f *Flow, ok func(*bpf.SockBlFlowEntry) bool) (bool, error) {
	forward, err := t.take(from, f.key(), ok)
	if len(forward) == 0 || err != nil {
		return len(forward) > 0, err
	}
	if !f.Source.IsValid() || f.Tunnel == LeavesByTunnel {
		return true, nil
	}
	_, err = t.takeReply(f.replyKey(), f.key(), func(e *bpf.SockBlFlowEntry) bool {
		return e.IsReply() && e.Reply().ForwardKey(uint8(f.Protocol)) == *f.key()
	})
	return true, err
}

// takeReply removes a reply entry that is as it should be from all tables, unless its flow has a forward entry
// in one of them, and reports whether it did.
func (t Table) takeReply(key, forward *bpf.SockBlFlowKey, ok func(*bpf.SockBlFlowEntry) bool) (bool, error) {
	if owned, err := t.owned(key, forward); owned || err != nil {
		return false, err
	}
	reply, err := t.take(t.tables(), key, ok)
	if len(reply) == 0 || err != nil {
		return false, err
	}
	owned, err := t.owned(key, forward)
	if owned || err != nil {
		for i := range reply {
			err = errors.Join(err, reply[i].putBack())
		}
		return false, err
	}
	return true, nil
}

// owned reports whether a reply entry's flow has a forward entry.
func (t Table) owned(key, forward *bpf.SockBlFlowKey) (bool, error) {
	var entry bpf.SockBlFlowEntry
	for _, table := range t.tables() {
		err := table.Lookup(forward, &entry)
		if err == nil && entry.Forward.Owns(key) {
			return true, nil
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return false, fmt.Errorf("%s: %w", table, err)
		}
	}
	return false, nil
}

// taken is an entry that was removed from a table.
type taken struct {
	table Table
	from  *ebpf.Map
	key   *bpf.SockBlFlowKey
	entry bpf.SockBlFlowEntry
}

// take removes those entries of a key that are as they should be from some tables, and returns them. A flow may be
// in two. Programs may replace an entry between a look at it and its removal, so what was removed is looked at again.
func (t Table) take(from []*ebpf.Map, key *bpf.SockBlFlowKey, ok func(*bpf.SockBlFlowEntry) bool) ([]taken, error) {
	var list []taken
	for _, table := range from {
		e := taken{table: t, from: table, key: key}
		err := table.Lookup(key, &e.entry)
		if err == nil && !ok(&e.entry) {
			continue
		}
		if err == nil {
			err = table.LookupAndDelete(key, &e.entry)
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err != nil {
			return list, fmt.Errorf("%s: %w", table, err)
		}
		e.count(1)
		if ok(&e.entry) {
			list = append(list, e)
		} else if err := e.putBack(); err != nil {
			return list, err
		}
	}
	return list, nil
}

// count counts what the agent has removed from the table of established flows.
func (e *taken) count(removed uint64) {
	if e.from == e.table.maps.BlFlow {
		atomic.AddUint64(&e.table.maps.Entries.HalfOpen.Removed, removed)
	}
}

// putBack puts the entry where it was, unless another is there by now.
func (e *taken) putBack() error {
	err := e.from.Update(e.key, &e.entry, ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", e.from, err)
	}
	e.count(^uint64(0))
	return nil
}

// ExpireReply removes a reply entry whose flow has no forward entry, unless a reply
// came since it was read, and reports whether it did.
func (t Table) ExpireReply(r *Reply) (bool, error) {
	return t.takeReply(&r.key, &r.forward, func(e *bpf.SockBlFlowEntry) bool {
		return e.IsReply() && e.Reply().Touched == r.touched
	})
}

// tables returns the maps that hold flows. They move from the first ones to the last.
func (t Table) tables() []*ebpf.Map {
	var list []*ebpf.Map
	if former := t.maps.FormerFlow(); former != nil {
		list = append(list, former)
	}
	if t.HalfOpen().Overflow != 0 {
		list = append(list, t.maps.BlOverflow)
	}
	return append(list, t.maps.BlFlow)
}
