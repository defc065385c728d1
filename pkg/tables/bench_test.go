package tables_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/pkg/tables/tablestest"
)

// discard is a Store that takes every write and forgets it.
type discard struct{}

func (discard) Limits() tables.Limits {
	l := tablestest.Roomy
	l.Services.Size, l.Backends.Size, l.Slots.Size = 1<<18, 1<<21, 1<<24
	return l
}
func (discard) Reserve(_, _, _ uint32) error                          { return nil }
func (discard) PutServiceName(uint32, tables.ServiceName) error       { return nil }
func (discard) ClearServiceName(uint32) error                         { return nil }
func (discard) PutService(uint32, tables.Service) error               { return nil }
func (discard) PutBackend(uint32, tables.Backend) error               { return nil }
func (discard) Generation(uint32) uint32                              { return 0 }
func (discard) PutSlots(uint32, []uint32) error                       { return nil }
func (discard) PutFrontend(tables.FrontendKey, tables.Frontend) error { return nil }
func (discard) DeleteFrontend(tables.FrontendKey) error               { return nil }
func (discard) PutSourceRange(tables.SourceRange) error               { return nil }
func (discard) DeleteSourceRange(tables.SourceRange) error            { return nil }
func (discard) PutServiceCIDR(netip.Prefix) error                     { return nil }
func (discard) DeleteServiceCIDR(netip.Prefix) error                  { return nil }
func (discard) PutForeign(netip.Addr) error                           { return nil }
func (discard) DeleteForeign(netip.Addr) error                        { return nil }
func (discard) PutNodeAddr(netip.Addr, tables.NodeAddr) error         { return nil }
func (discard) DeleteNodeAddr(netip.Addr) error                       { return nil }
func (discard) PutNode(uint16, tables.Node) error                     { return nil }
func (discard) ClearNode(uint16) error                                { return nil }
func (discard) PutNodeID(netip.Addr, uint16) error                    { return nil }
func (discard) DeleteNodeID(netip.Addr) error                         { return nil }
func (discard) Barrier() error                                        { return nil }

// BenchmarkApply changes one endpoint of one Service out of many.
func BenchmarkApply(b *testing.B) {
	for _, services := range []int{10, 10_000} {
		for _, n := range []int{10, 1000} {
			b.Run(fmt.Sprintf("services=%d/endpoints=%d", services, n), func(b *testing.B) {
				tbl := tables.New(discard{})
				for i := range services {
					d := onePort(fmt.Sprint("other-", i), vip(i), tables.FrontendClusterIP, endpoints(10), nil)
					if _, err := tbl.Apply(d); err != nil {
						b.Fatal(err)
					}
				}
				key := tables.FrontendKey{Addr: netip.MustParseAddr("10.200.0.1"), Port: 80, Protocol: model.TCP}
				var states [2]tables.Desired
				for i := range states {
					states[i] = onePort("changing", key, tables.FrontendClusterIP, endpoints(n + 1)[i:n+i], nil)
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if _, err := tbl.Apply(states[i%2]); err != nil {
						b.Fatal(err)
					}
					tbl.Release(tbl.Retire())
				}
			})
		}
	}
}

// BenchmarkCompile makes the desired state of a Service of three ports with a slice of endpoints, out of
// what it asks for.
func BenchmarkCompile(b *testing.B) {
	for _, n := range []int{10, 100} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			svc := &model.Service{Name: named("web"), ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}
			slice := &model.Slice{Name: named("web-1"), Service: "web", Family: model.IPv4}
			for i, port := range []string{"http", "https", "metrics"} {
				svc.Ports = append(svc.Ports, model.ServicePort{Name: port, Protocol: model.TCP, Port: uint16(80 + i)})
				slice.Ports = append(slice.Ports, model.SlicePort{Name: port, Protocol: model.TCP, Port: uint16(8080 + i)})
			}
			for _, a := range endpoints(n) {
				slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: a.Addr(), Ready: true, Serving: true})
			}
			tbl, list, node := tables.New(discard{}), []*model.Slice{slice}, &model.LocalNode{Name: "here"}
			b.ReportAllocs()
			for b.Loop() {
				tbl.Want(svc.Name, &tables.Desired{Name: svc.Name}, tables.DemandOf(svc, list))
				tbl.Share()
				d := tbl.Compile(svc, list, node)
				tbl.Bound(&d)
			}
		})
	}
}
