package bpfmap

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/model"
)

// SourcePorts are ports of the node that SNAT leaves to others.
type SourcePorts struct {
	// LocalMin and LocalMax bound what the kernel gives to connections of the node's own
	// processes, net.ipv4.ip_local_port_range. SNAT takes them last.
	LocalMin, LocalMax uint16
	// Reserved are those of net.ipv4.ip_local_reserved_ports, a bit each. SNAT never takes
	// them.
	Reserved [1024]uint64
}

// DefaultSourcePorts are Linux's.
var DefaultSourcePorts = SourcePorts{LocalMin: 32768, LocalMax: 60999}

// SetSourcePorts tells the programs which source ports are others'. A new flow may meet a part
// of a change. It may be called beside all other methods.
func (m *Maps) SetSourcePorts(p SourcePorts) {
	e := m.Entries.SourcePort
	e.LocalMin, e.LocalMax, e.Reserved = p.LocalMin, p.LocalMax, p.Reserved
}

// Exhausted is a backend on another node for which new flows found no free source port.
type Exhausted struct {
	Backend  netip.AddrPort
	Protocol model.Protocol
	Service  uint32 // 0 and not Known when the backend is gone
	Known    bool
	Count    uint64 // of flows that were dropped
}

// Exhausted returns the backends that ran out of source ports, sorted.
func (m *Maps) Exhausted() ([]Exhausted, error) {
	var key bpf.SockBlExhaustedKey
	var value bpf.SockBlExhaustedEntry
	var list []Exhausted
	entries := m.BlExhausted.Iterate()
	for entries.Next(&key, &value) {
		x := Exhausted{
			Backend:  netip.AddrPortFrom(key.Addr.Netip(), bpf.Hton16(key.Port)),
			Protocol: model.Protocol(key.Proto),
			Count:    value.Count,
		}
		if e := m.backend.at(value.BackendId); e != nil && e.Addr == key.Addr && e.Port == key.Port {
			x.Service, x.Known = e.Service, true
		}
		list = append(list, x)
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("map %s: %w", bpf.SockMapBlExhausted, err)
	}
	slices.SortFunc(list, func(a, b Exhausted) int {
		return cmp.Or(a.Backend.Compare(b.Backend), cmp.Compare(a.Protocol, b.Protocol))
	})
	return list, nil
}
