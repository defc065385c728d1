package policy

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

// TestTerminating: the endpoints of TCP on this node that terminate, at each port, and of many the first.
func TestTerminating(t *testing.T) {
	svc := &model.Service{ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")}}
	slice := &model.Slice{Family: model.IPv4}
	for i := range 50 {
		name, number := string(rune('a'+i)), uint16(1000+i)
		svc.Ports = append(svc.Ports, model.ServicePort{Name: name, Protocol: model.TCP, Port: number})
		slice.Ports = append(slice.Ports, model.SlicePort{Name: name, Protocol: model.TCP, Port: number})
	}
	slice6 := &model.Slice{Family: model.IPv6, Ports: slice.Ports, Endpoints: []model.Endpoint{
		{Addr: netip.MustParseAddr("fd00::1"), NodeName: "here", Terminating: true},
		{Addr: netip.MustParseAddr("fd00::2"), NodeName: "there", Terminating: true},
		{Addr: netip.MustParseAddr("fd00::3"), NodeName: "here", Ready: true},
	}}
	node := &model.LocalNode{Name: "here"}
	found := Terminating(svc, []*model.Slice{slice6}, node)
	if len(found) != 50 || found[0] != netip.MustParseAddrPort("[fd00::1]:1000") {
		t.Errorf("of one endpoint with 50 ports: %v", found)
	}
	for i := range 100 {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: addr, NodeName: "here", Terminating: true})
	}
	found = Terminating(svc, []*model.Slice{slice, slice6}, node)
	if len(found) != MaxTerminating || cap(found) > 2*MaxTerminating || !slices.IsSortedFunc(found, netip.AddrPort.Compare) {
		t.Errorf("of 5,050: %d, room for %d", len(found), cap(found))
	}
}
