package tables

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/bounds"
)

// TestWideServiceGoes: ports that go are not each compared with all that stay.
func TestWideServiceGoes(t *testing.T) {
	const ports = 20_000
	tables := New(nothing{})
	svc := &model.Service{Name: model.Name{Namespace: "shop", Name: "wide"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}
	for i := range ports {
		svc.Ports = append(svc.Ports, model.ServicePort{Name: fmt.Sprint(i), Protocol: model.TCP, Port: uint16(i + 1)})
	}
	svc.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	for i := range 5000 {
		svc.SourceRanges = append(svc.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32))
	}
	for _, most := range []uint32{ports, ports / 2, 1} {
		given := unlimited
		given[ofPorts] = most
		if most > 1 {
			given[ofSourceRanges] = 0
		}
		for range 2 { // then without a change
			bounds.Check(t, 2*ports, func() {
				if _, err := tables.Apply(compile(svc, nil, &model.LocalNode{}, given)); err != nil {
					t.Fatal(err)
				}
			})
		}
		if n := len(tables.owned[svc.Name].ports); n != int(most) || n != len(tables.ports) {
			t.Errorf("the Service has %d ports of %d, want %d", n, len(tables.ports), most)
		}
	}
}

// TestRestoreWide: a port with many endpoints, whose ids are in the order in which they came, is taken over
// in proportion to their number.
func TestRestoreWide(t *testing.T) {
	const endpoints = 100_000
	port := ServiceName{Port: model.PortName{Service: model.Name{Namespace: "shop", Name: "wide"}, Port: "http"}}
	have := Snapshot{Names: map[uint32]ServiceName{1: port}, Services: map[uint32]Service{1: {}}, Backends: make(map[uint32]Backend, endpoints)}
	addr := netip.MustParseAddr("10.9.255.255")
	for id := range uint32(endpoints) {
		have.Backends[id] = Backend{AddrPort: netip.AddrPortFrom(addr, 80), Service: 1, State: InCluster}
		addr = addr.Prev()
	}
	again := have.Backends[endpoints-1]
	have.Backends[endpoints] = again // of the same address
	var restored *Tables
	bounds.Check(t, endpoints/5, func() { restored = Restore(nothing{}, have) })
	list := restored.ports[port.ServicePortName()].backends
	if cap(list) > endpoints+1 {
		t.Errorf("there is room for %d backends of %d, for as long as the agent runs", cap(list), endpoints)
	}
	if len(list) != endpoints || !slices.IsSortedFunc(list, func(a, b backend) int { return a.addr.Compare(b.addr) }) || list[0].id != endpoints-1 {
		t.Errorf("%d backends, the first one of id %d", len(list), list[0].id)
	}
	if len(restored.orphans.backends) != 1 || restored.orphans.backends[0].id != endpoints {
		t.Errorf("%d are left out, want the second one of an address", len(restored.orphans.backends))
	}
}

// nothing is a store that takes every write and forgets it.
type nothing struct{ Store }

func (nothing) Limits() Limits {
	size := Limit{Size: 1 << 20}
	return Limits{Services: size, Backends: size, Slots: size, Frontends: size, SourceRanges: size}
}
func (nothing) PutServiceName(uint32, ServiceName) error { return nil }
func (nothing) ClearServiceName(uint32) error            { return nil }
func (nothing) PutService(uint32, Service) error         { return nil }
func (nothing) PutFrontend(FrontendKey, Frontend) error  { return nil }
func (nothing) DeleteFrontend(FrontendKey) error         { return nil }
func (nothing) PutSourceRange(SourceRange) error         { return nil }
func (nothing) DeleteSourceRange(SourceRange) error      { return nil }
func (nothing) Barrier() error                           { return nil }
