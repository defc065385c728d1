package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/monitor"
	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/servicemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// The kinds of events.
const (
	EventConnection  = "connection"  // a backend was chosen for a new connection
	EventRefused     = "refused"     // it is not served, and the client is told so
	EventDropped     = "dropped"     // it is not served
	EventEstablished = "established" // of packets: both sides have answered each other
	EventEnded       = "ended"       // it is closed
	EventLeft        = "left"        // an endpoint has left its Service, and has open flows
	EventEvicted     = "evicted"     // established flows were, from the full table
	EventEjected     = "ejected"     // an endpoint is, for connections to it have failed
	EventAdmitted    = "admitted"    // it gets connections again
	EventLeftOut     = "left-out"    // so many events are not shown
)

// eventKinds are the kinds by their numbers.
var eventKinds = [...]string{
	bpf.SockBlEventKindBL_EVENT_CONNECTION:  EventConnection,
	bpf.SockBlEventKindBL_EVENT_REFUSED:     EventRefused,
	bpf.SockBlEventKindBL_EVENT_DROPPED:     EventDropped,
	bpf.SockBlEventKindBL_EVENT_ESTABLISHED: EventEstablished,
	bpf.SockBlEventKindBL_EVENT_ENDED:       EventEnded,
	bpf.SockBlEventKindBL_EVENT_LEFT:        EventLeft,
	bpf.SockBlEventKindBL_EVENT_EVICTED:     EventEvicted,
	bpf.SockBlEventKindBL_EVENT_EJECTED:     EventEjected,
	bpf.SockBlEventKindBL_EVENT_ADMITTED:    EventAdmitted,
}

// EventKinds are the kinds that can be asked for, NotServed those that have a reason.
var (
	EventKinds = eventKinds[1:]
	NotServed  = []string{EventRefused, EventDropped}
)

// eventHooks are the values of [Event.Hook].
var eventHooks = [...]string{
	bpf.SockBlEventHookBL_EVENT_AT_CONNECT: "connect",
	bpf.SockBlEventHookBL_EVENT_AT_SENDMSG: "sendmsg",
	bpf.SockBlEventHookBL_EVENT_AT_CLOSE:   "close",
	bpf.SockBlEventHookBL_EVENT_AT_TC:      "tc",
	bpf.SockBlEventHookBL_EVENT_AT_XDP:     "xdp",
	bpf.SockBlEventHookBL_EVENT_AT_TIMEOUT: "timeout",
	bpf.SockBlEventHookBL_EVENT_AT_WALK:    "walk",
	bpf.SockBlEventHookBL_EVENT_AT_LOOK:    "look",
}

// Event is something that a program has seen: a connection that begins, ends or is not served.
type Event struct {
	Time time.Time `json:"time"`
	Kind string    `json:"kind"` // connection, refused, dropped, established, ended, left, evicted, ejected, admitted, left-out
	// Hook is where it was seen: connect, sendmsg, close (of a socket), tc, xdp, timeout (of an idle
	// flow, which the agent has removed), walk (of the agent over the flow tables), look (of the
	// agent at connections that fail).
	Hook     string `json:"hook,omitempty"`
	Protocol string `json:"protocol,omitempty"`
	// Client is absent of a socket that is not bound to an address.
	Client netip.AddrPort `json:"client,omitzero"`
	// PID and Command are those of a socket's process, Netns the cookie of its network namespace.
	PID     uint32 `json:"pid,omitempty"`
	Command string `json:"command,omitempty"`
	Netns   uint64 `json:"netns,omitempty"`
	// ServiceAddress is what the client has asked for; of what comes by the tunnel and is
	// dropped it may be the tunnel's.
	ServiceAddress netip.AddrPort `json:"serviceAddress,omitzero"`
	// Service is absent when the address belongs to none, or it is not known. A port that the
	// Service does not declare has no name, and the ID of another one.
	Service PortName       `json:"service,omitzero"`
	Backend netip.AddrPort `json:"backend,omitzero"`
	// Source is what the backend sees, when that is an address of this node.
	Source netip.AddrPort `json:"source,omitzero"`
	// TunnelNode is that to which the client's packets go in the tunnel.
	TunnelNode string `json:"tunnelNode,omitempty"`
	Device     string `json:"device,omitempty"` // at which the packet was seen
	// Reason is why it is not served, as in metrics, and Explanation the same in words.
	Reason      string `json:"reason,omitempty"`
	Explanation string `json:"explanation,omitempty"`
	// DurationSeconds is how long what has ended was open, absent when its begin was not seen.
	DurationSeconds *float64 `json:"durationSeconds,omitempty"`
	// Bytes are the payload of a TCP connection that has ended: of one of packets by its sequence
	// numbers; of a socket, and Packets too, only where trafficSampling has it counted.
	Bytes   *EventVolume `json:"bytes,omitempty"`
	Packets *EventVolume `json:"packets,omitempty"`
	// BytesModulo is 2^32 where Bytes are by sequence numbers: how many times that there was is not known.
	BytesModulo uint64 `json:"bytesModulo,omitempty"`
	// Flows are the open ones of an endpoint that has left, or those evicted, at least.
	Flows uint32 `json:"flows,omitempty"`
	// Failures are the connections in a row that have failed to an endpoint which is ejected, and
	// EjectedSeconds is for how long it is.
	Failures       uint32 `json:"failures,omitempty"`
	EjectedSeconds uint32 `json:"ejectedSeconds,omitempty"`
	// LeftOut is how many events are not shown, of kind left-out.
	LeftOut uint64 `json:"leftOut,omitempty"`
}

// EventVolume is how much a connection has carried.
type EventVolume struct {
	FromClient  uint64 `json:"fromClient"`
	FromBackend uint64 `json:"fromBackend"`
}

// EventOptions say which events are meant. A field that is not set means all.
type EventOptions struct {
	ConnectionFilter
	Kinds   []string
	Reasons []string
	Rate    int // as of [monitor.Options]
	Sample  int // of so many connections one, with all its events
	// Renewal is for how long the maps may be missing, some or all; 0 is [DefaultRenewal].
	Renewal time.Duration
	Stall   time.Duration // as of [monitor.Options]
}

// matches reports whether an event is meant.
func (o *EventOptions) matches(e *Event) bool {
	return (len(o.Kinds) == 0 || slices.Contains(o.Kinds, e.Kind)) &&
		(len(o.Reasons) == 0 || slices.Contains(o.Reasons, e.Reason)) &&
		o.ConnectionFilter.matches(e.Client, e.Backend, e.Service, e.Protocol)
}

// kinds returns the kinds that the programs have to tell.
func (o *EventOptions) kinds() (kinds []bpf.SockBlEventKind) {
	for kind := range eventKinds {
		if kind > 0 && (len(o.Kinds) == 0 || slices.Contains(o.Kinds, eventKinds[kind])) {
			kinds = append(kinds, bpf.SockBlEventKind(kind))
		}
	}
	if slices.Contains(o.Kinds, EventEnded) { // how long and how much it was
		kinds = append(kinds, bpf.SockBlEventKindBL_EVENT_CONNECTION, bpf.SockBlEventKindBL_EVENT_ESTABLISHED)
	}
	return kinds
}

// filter returns what the programs choose by, which know Services by their ids, in a table.
func (o *EventOptions) filter(table servicemap.Table) monitor.Filter {
	f := monitor.Filter{Reasons: statusmap.ReasonsNamed(o.Reasons), Client: o.Client.prefix, Backend: o.Backend.prefix}
	if o.Service != (model.Name{}) {
		f.Services = table.ServiceIDs(o.Service)
	}
	return f
}

// Monitor listens to the programs' events.
type Monitor struct {
	bpffs   string
	options EventOptions
	history *monitor.History // nil: no end is told
	names   *Datapath        // of what is told, the maps that are pinned
	nodes   map[uint16]string
	devices map[int]string // names, asked for again every second
	leftOut uint64         // as told
	// leftBefore are those left out at former maps.
	leftBefore uint64
	told       time.Time
	renewed    time.Time // when the maps were known to be those that are pinned
	services   []uint32  // the ids of the Service that is meant, which the listener has chosen

	mu        sync.Mutex
	at        *monitor.Listener
	interrupt bool
}

// Listen opens the maps that are pinned below bpffs and begins to listen. Its errors are those of
// [Open], and [monitor.ErrBusy] when as many listen as may.
func Listen(bpffs string, o EventOptions) (*Monitor, error) {
	now := time.Now()
	m := &Monitor{bpffs: bpffs, options: o, devices: make(map[int]string), told: now, renewed: now}
	if len(o.Kinds) == 0 || slices.Contains(o.Kinds, EventEnded) {
		m.history = monitor.NewHistory()
	}
	if err := m.renew(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// renew takes the maps that are pinned now: tables grow, and an agent that is started with other sizes,
// or after a clean-up, pins other maps, at which it has to be listened anew.
func (m *Monitor) renew() error {
	if m.names != nil {
		current, err := m.names.maps.Current(datapath.Dir(m.bpffs))
		if err != nil {
			return err
		}
		if current {
			return m.listen() // it may have failed before
		}
	}
	names, err := openAll(m.bpffs)
	if err != nil {
		return err
	}
	former := m.names
	m.names = names
	if former != nil {
		err = former.Close()
	}
	if nodes, errNodes := nodemap.New(names.maps).List(); errNodes == nil {
		m.nodes = make(map[uint16]string, len(nodes))
		for _, n := range nodes {
			m.nodes[n.ID] = n.Name
		}
	} else {
		err = errors.Join(err, errNodes)
	}
	return errors.Join(err, m.listen())
}

// openAll opens the maps, all of which are to be of this version.
func openAll(bpffs string) (*Datapath, error) {
	d, err := Open(bpffs)
	if err != nil {
		return nil, err
	}
	if err := d.needAll(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// listen begins to listen unless it does at these maps.
func (m *Monitor) listen() error {
	former, filter := m.at, m.options.filter(servicemap.New(m.names.maps))
	if former != nil {
		if same, err := former.ListensAt(m.names.maps); err != nil || same {
			if same && !slices.Equal(filter.Services, m.services) {
				former.Choose(filter)
				m.services = filter.Services
			}
			return err
		}
	}
	m.services = filter.Services
	listener, err := monitor.Listen(m.names.maps, monitor.Options{
		Kinds: m.options.kinds(), Rate: m.options.Rate, Sample: m.options.Sample, Stall: m.options.Stall, Filter: filter,
	})
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.at = listener
	if m.interrupt {
		listener.Interrupt()
	}
	m.mu.Unlock()
	if former == nil {
		return nil
	}
	n, err := former.LeftOut()
	m.leftBefore += n
	return errors.Join(err, former.Close())
}

// Interrupt ends a [Monitor.Next] that waits, and all later ones.
func (m *Monitor) Interrupt() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.interrupt = true
	m.at.Interrupt()
}

// Close ends listening and releases the maps.
func (m *Monitor) Close() (err error) {
	if m.at != nil {
		err = m.at.Close()
	}
	if m.names != nil {
		err = errors.Join(err, m.names.Close())
	}
	return err
}

// tellInterval is how often events that were left out are told of, and how often other maps are looked for.
const tellInterval = time.Second

// DefaultRenewal is longer than an agent that starts, or a clean-up, takes between the first pin that it
// makes or removes and the last.
const DefaultRenewal = 10 * time.Second

// Next waits for an event that is meant. The error is [monitor.ErrClosed] after [Monitor.Interrupt],
// and one of [Open] when no maps are pinned any more.
func (m *Monitor) Next() (*Event, error) {
	for {
		if now := time.Now(); now.Sub(m.told) >= tellInterval {
			m.told = now
			clear(m.devices)
			if err := m.renew(); err == nil {
				m.renewed = now
			} else if now.Sub(m.renewed) > cmp.Or(m.options.Renewal, DefaultRenewal) {
				return nil, err
			}
			if e, err := m.LeftOut(); e != nil || err != nil {
				return e, err
			}
		}
		m.at.SetDeadline(m.told.Add(tellInterval))
		raw, err := m.at.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var past *monitor.Past
		if m.history != nil {
			past = m.history.Note(raw)
		}
		if e := m.event(raw, past); m.options.matches(e) {
			return e, nil
		}
	}
}

// LeftOut returns an event about those that were not told since the last such one, nil when there
// are none. [Monitor.Next] returns one every second; at the end it is asked for.
func (m *Monitor) LeftOut() (*Event, error) {
	n, err := m.at.LeftOut()
	n += m.leftBefore
	if err != nil || n == m.leftOut {
		return nil, err
	}
	e := &Event{Time: time.Now(), Kind: EventLeftOut, LeftOut: n - m.leftOut}
	m.leftOut = n
	return e, nil
}

// event gives an event its names.
func (m *Monitor) event(raw *bpf.SockBlEvent, past *monitor.Past) *Event {
	e := &Event{
		Time:           timeOf(raw.Time),
		Kind:           nameIn(eventKinds[:], raw.Kind),
		Hook:           nameIn(eventHooks[:], raw.Hook),
		Client:         endpointOf(raw.Client, raw.ClientPort),
		PID:            raw.Pid,
		Command:        bpf.StringOf(raw.Comm[:]),
		Netns:          raw.Netns,
		ServiceAddress: endpointOf(raw.Dst, raw.DstPort),
		Service:        m.service(raw),
		Backend:        endpointOf(raw.Backend, raw.BackendPort),
		Reason:         statusmap.ReasonName(bpf.SockBlReason(raw.Reason)),
		Flows:          raw.Flows,
	}
	if e.Kind == EventEjected {
		e.Failures, e.EjectedSeconds, e.Flows = raw.Flows, raw.Seconds, 0
	}
	if raw.Proto != 0 {
		e.Protocol = model.Protocol(raw.Proto).String()
	}
	if raw.SourcePort != 0 {
		e.Source = endpointOf(raw.Source, raw.SourcePort)
	}
	if uint32(raw.Flow)&uint32(bpf.SockBlFlowBitsBL_FLOW_TUNNEL) != 0 && raw.Device != 0 {
		e.TunnelNode = m.nodes[raw.Node]
	}
	e.Explanation = refusalReasons[e.Reason]
	if raw.Ifindex != 0 {
		e.Device = m.device(int(raw.Ifindex))
	}
	if t := &raw.Traffic; t.ToBackend.Packets != 0 {
		e.Bytes = &EventVolume{t.ToBackend.Bytes, t.ToClient.Bytes}
		e.Packets = &EventVolume{t.ToBackend.Packets, t.ToClient.Packets}
	}
	e.addPast(past)
	return e
}

// addPast adds what the beginning of a connection has told.
func (e *Event) addPast(past *monitor.Past) {
	if past == nil {
		return
	}
	seconds := past.Duration.Seconds()
	e.DurationSeconds = &seconds
	if past.Counted {
		e.Bytes = &EventVolume{uint64(past.Sent), uint64(past.Received)}
		e.BytesModulo = 1 << 32
	}
	if e.PID == 0 {
		e.PID, e.Command, e.Netns = past.First.Pid, bpf.StringOf(past.First.Comm[:]), past.First.Netns
	}
	if !e.Client.IsValid() {
		e.Client = endpointOf(past.First.Client, past.First.ClientPort)
	}
}

// service returns the name of the Service port that an event is about. A port that the Service of
// the address does not declare has no name but the Service's.
func (m *Monitor) service(raw *bpf.SockBlEvent) PortName {
	table, id := servicemap.New(m.names.maps), raw.Service
	switch bpf.SockBlEventKind(raw.Kind) {
	case bpf.SockBlEventKindBL_EVENT_LEFT:
		id = m.servedAt(raw)
	case bpf.SockBlEventKindBL_EVENT_ESTABLISHED, bpf.SockBlEventKindBL_EVENT_ENDED:
		if id != m.servedAt(raw) { // it may have become another Service's since the connection was made
			return PortName{}
		}
	}
	undeclared := id == ^uint32(0) && bpf.SockBlReason(raw.Reason) == bpf.SockBlReasonBL_REASON_UNDECLARED_PORT
	if undeclared {
		f, ok, err := table.Frontend(tables.FrontendKey{Addr: raw.Dst.Netip()})
		if err != nil || !ok {
			return PortName{}
		}
		id = f.Service
	}
	if id == ^uint32(0) {
		return PortName{}
	}
	name, ok := table.ServiceName(id)
	if !ok {
		return PortName{ID: id}
	}
	port := portName(id, name)
	if undeclared {
		port.PortName, port.Port, port.Protocol = "", bpf.Hton16(raw.DstPort), model.Protocol(raw.Proto).String()
	}
	return port
}

// servedAt returns the id of the Service port to which what the client has asked for leads; all bits:
// that is served no more.
func (m *Monitor) servedAt(raw *bpf.SockBlEvent) uint32 {
	for _, key := range frontendsAt(endpointOf(raw.Dst, raw.DstPort), model.Protocol(raw.Proto)) {
		f, ok, err := servicemap.New(m.names.maps).Frontend(key)
		if err == nil && ok {
			return f.Service
		}
	}
	return ^uint32(0)
}

// nameIn returns the name of a number, "" when it has none.
func nameIn(names []string, number uint8) string {
	if int(number) >= len(names) {
		return ""
	}
	return names[number]
}

// endpointOf returns an address and port; the zero value when there is no address.
func endpointOf(addr bpf.SockBlAddr, port uint16) netip.AddrPort {
	a := addr.Netip()
	if a.IsUnspecified() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a, bpf.Hton16(port))
}

// timeOf returns when an event was that the programs have stamped with CLOCK_MONOTONIC.
func timeOf(stamp uint64) time.Time {
	clock, err := bpf.EventClock()
	now := time.Now()
	if err != nil {
		return now
	}
	return now.Add(time.Duration(stamp) - clock)
}

// device returns the name of a device of this network namespace, or its index.
func (m *Monitor) device(ifindex int) string {
	name, known := m.devices[ifindex]
	if known {
		return name
	}
	if l, err := netlink.LinkByIndex(ifindex); err == nil {
		name = l.Attrs().Name
	} else {
		name = fmt.Sprintf("if%d", ifindex)
	}
	m.devices[ifindex] = name
	return name
}
