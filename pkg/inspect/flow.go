package inspect

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// Flow is a connection of a client outside of this node's sockets: from the client
// to the Service address, and on from the source to the backend.
type Flow struct {
	Protocol       string         `json:"protocol"`
	Client         netip.AddrPort `json:"client"`
	ServiceAddress netip.AddrPort `json:"serviceAddress"`
	// Source is the source address that the backend sees: the client's, or with
	// SNAT this node. It is empty when the device has lost its address.
	Source  netip.AddrPort `json:"source"`
	Backend netip.AddrPort `json:"backend"`
	SNAT    bool           `json:"snat"`
	// Tunnel is "out" when the client's packets leave in the tunnel to Node, which
	// answers the client, and "in" when another node has chosen the backend and sends
	// them here; else absent. Node is absent when it is gone, NodeName when it is not known.
	Tunnel   string     `json:"tunnel,omitempty"`
	Node     netip.Addr `json:"node,omitzero"`
	NodeName string     `json:"nodeName,omitempty"`
	State    string     `json:"state"` // new, syn-received, replied, established, client-closing, backend-closing, closed, aborted
	// IdleSeconds have passed since the last packet of either direction.
	IdleSeconds int64 `json:"idleSeconds"`
	// Device is the output device of the client's packets, absent when the host's
	// stack takes them on.
	Device string `json:"device,omitempty"`
	// Service is absent when it is not known and nothing is served at
	// ServiceAddress any more.
	Service PortName `json:"service,omitzero"`
	// BackendID is the index in bl_backend, absent when it is not known any more.
	BackendID *uint32 `json:"backendID,omitempty"`
}

// FlowFilter says which flows are meant. The zero value is all; of each field that
// is set, a flow must have what it says.
type FlowFilter struct {
	ConnectionFilter
	Namespace string // of the Service
	State     string
}

// matches reports whether the flow is meant.
func (f *FlowFilter) matches(flow *Flow) bool {
	return f.ConnectionFilter.matches(flow.Client, flow.Backend, flow.Service, flow.Protocol) &&
		(f.Namespace == "" || f.Namespace == flow.Service.Namespace) && (f.State == "" || f.State == flow.State)
}

// ConnectionFilter says which connections are meant, by who and what they are of. The zero value is
// all.
type ConnectionFilter struct {
	Client   AddrFilter
	Backend  AddrFilter
	Service  model.Name
	Protocol model.Protocol
}

// matches reports whether a connection is meant.
func (f *ConnectionFilter) matches(client, backend netip.AddrPort, service PortName, protocol string) bool {
	return f.Client.matches(client) && f.Backend.matches(backend) &&
		(f.Service == model.Name{} || f.Service == model.Name{Namespace: service.Namespace, Name: service.Service}) &&
		(f.Protocol == 0 || f.Protocol.String() == protocol)
}

// AddrFilter is a range of addresses, or one address and port. The zero value is
// all.
type AddrFilter struct {
	prefix netip.Prefix
	port   uint16 // 0 is all
}

// ParseAddrFilter parses an address, a CIDR, or ADDRESS:PORT.
func ParseAddrFilter(s string) (AddrFilter, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		return addrFilter(addr, 0), nil
	}
	if prefix, err := netip.ParsePrefix(s); err == nil {
		return AddrFilter{prefix: prefix.Masked()}, nil
	}
	addrPort, err := netip.ParseAddrPort(s)
	if err != nil || addrPort.Port() == 0 {
		return AddrFilter{}, fmt.Errorf("%q is no address, CIDR or ADDRESS:PORT", s)
	}
	return addrFilter(addrPort.Addr(), addrPort.Port()), nil
}

func addrFilter(addr netip.Addr, port uint16) AddrFilter {
	addr = addr.Unmap().WithZone("")
	return AddrFilter{netip.PrefixFrom(addr, addr.BitLen()), port}
}

func (f AddrFilter) matches(a netip.AddrPort) bool {
	return (!f.prefix.IsValid() || f.prefix.Contains(a.Addr())) && (f.port == 0 || f.port == a.Port())
}

// FlowList is the first flows that are meant, by Service port and client, and how many are in all.
type FlowList struct {
	Flows []Flow
	All   int
}

// Flows returns the flows that are meant, most of them at most, 0 being all. It has twice as many
// in memory, however many there are in the tables.
func (d *Datapath) Flows(filter FlowFilter, most int) (FlowList, error) {
	list := FlowList{Flows: []Flow{}}
	if err := d.need(flowTables...); err != nil {
		return list, err
	}
	cut := func() {
		slices.SortFunc(list.Flows, func(a, b Flow) int {
			return cmp.Or(a.Service.compare(b.Service), a.Client.Compare(b.Client),
				a.ServiceAddress.Compare(b.ServiceAddress), cmp.Compare(a.Protocol, b.Protocol))
		})
		if most > 0 && len(list.Flows) > most {
			clear(list.Flows[most:])
			list.Flows = list.Flows[:most]
		}
	}
	err := d.eachFlow(filter, func(_ *flowmap.Flow, flow *Flow) error {
		list.All++
		list.Flows = append(list.Flows, *flow)
		if most > 0 && len(list.Flows) == 2*most {
			cut()
		}
		return nil
	})
	cut()
	return list, err
}

// FlowsOf returns the flows of one client's port. The error is an [ErrNotFound] when
// there are none.
func (d *Datapath) FlowsOf(client netip.AddrPort) ([]Flow, error) {
	list, err := d.Flows(FlowFilter{ConnectionFilter: ConnectionFilter{Client: addrFilter(client.Addr(), client.Port())}}, 0)
	if err == nil && list.All == 0 {
		return nil, fmt.Errorf("flow of client %s %w (beeline flow list shows those that are there)", client, ErrNotFound)
	}
	return list.Flows, err
}

// DeleteFlows removes the flows that are meant and returns their number. A
// connection whose client goes on to send is a new one then, or is refused.
func (d *Datapath) DeleteFlows(filter FlowFilter) (int, error) {
	deleted := 0
	if err := d.needAll(); err != nil {
		return 0, err
	}
	err := d.eachFlow(filter, func(entry *flowmap.Flow, _ *Flow) error {
		if err := flowmap.New(d.maps).Delete(entry); err != nil {
			return err
		}
		deleted++
		return nil
	})
	return deleted, err
}

// eachFlow calls fn for the flows that are meant, until it fails.
func (d *Datapath) eachFlow(filter FlowFilter, fn func(*flowmap.Flow, *Flow) error) error {
	r, err := d.read()
	if err != nil {
		return err
	}
	for entry, err := range flowmap.New(d.maps).Flows(bpf.Clock) {
		if err != nil {
			return err
		}
		flow := r.flow(entry)
		if !filter.matches(&flow) {
			continue
		}
		if err := fn(entry, &flow); err != nil {
			return err
		}
	}
	return nil
}

// tunnelNames are the values of [Flow.Tunnel].
var tunnelNames = map[flowmap.Tunnel]string{flowmap.LeavesByTunnel: "out", flowmap.ComesByTunnel: "in"}

func (r *reading) flow(f *flowmap.Flow) Flow {
	out := Flow{
		Protocol:       f.Protocol.String(),
		Client:         f.Client,
		ServiceAddress: f.ServiceAddr,
		Source:         f.Source,
		Backend:        f.Backend,
		SNAT:           f.SNAT,
		Tunnel:         tunnelNames[f.Tunnel],
		Node:           f.Node.Addr,
		NodeName:       f.Node.Name,
		State:          f.StateName(),
		IdleSeconds:    int64(f.Idle / time.Second),
		Device:         f.Device,
	}
	if f.Known {
		id := f.BackendID
		out.Service, out.BackendID = r.portName(f.Service), &id
	} else {
		out.Service = r.servedAt(f.ServiceAddr, f.Protocol)
	}
	return out
}

// servedAt returns the Service port that an address leads to now.
func (r *reading) servedAt(addr netip.AddrPort, protocol model.Protocol) PortName {
	for _, key := range frontendsAt(addr, protocol) {
		if f, ok := r.Frontends[key]; ok {
			return r.portName(f.Service)
		}
	}
	return PortName{}
}

// frontendsAt returns the frontends that may serve an address, in order: its own, and a NodePort.
func frontendsAt(addr netip.AddrPort, protocol model.Protocol) []tables.FrontendKey {
	own := tables.FrontendKey{Addr: addr.Addr(), Port: addr.Port(), Protocol: protocol}
	return []tables.FrontendKey{own, own.AnyAddress()}
}
