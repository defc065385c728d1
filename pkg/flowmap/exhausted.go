package flowmap

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/model"
)

// Exhausted is a backend on another node for which new flows found no free source port.
type Exhausted struct {
	Backend  netip.AddrPort
	Protocol model.Protocol
	Service  uint32 // 0 and not Known when the backend is gone
	Known    bool
	Count    uint64 // of flows that were dropped
}

// Exhausted returns the backends that ran out of source ports, sorted.
func (t Table) Exhausted() ([]Exhausted, error) {
	var list []Exhausted
	err := bpfmap.Each(t.maps.BlExhausted, func(key *bpf.SockBlExhaustedKey, value *bpf.SockBlExhaustedEntry) {
		x := Exhausted{
			Backend:  netip.AddrPortFrom(key.Addr.Netip(), bpf.Hton16(key.Port)),
			Protocol: model.Protocol(key.Proto),
			Count:    value.Count,
		}
		if e := t.maps.Backend.At(value.BackendId); e != nil && e.Addr == key.Addr && e.Port == key.Port {
			x.Service, x.Known = e.Service, true
		}
		list = append(list, x)
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b Exhausted) int {
		return cmp.Or(a.Backend.Compare(b.Backend), cmp.Compare(a.Protocol, b.Protocol))
	})
	return list, nil
}
