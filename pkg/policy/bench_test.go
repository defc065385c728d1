package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

// BenchmarkSelect is the cost of one endpoint change: slices of 100 endpoints,
// the most the controller puts into one, each in the order of addresses.
func BenchmarkSelect(b *testing.B) {
	for _, n := range []int{10, 1000, 5000} {
		for _, hinted := range []bool{false, true} {
			b.Run(fmt.Sprintf("endpoints=%d/hints=%v", n, hinted), func(b *testing.B) {
				port := model.ServicePort{Name: "http", Protocol: model.TCP, Port: 80}
				list := benchSlices(n, hinted)
				node := &model.LocalNode{Name: "node-1", Zone: "a"}
				b.ReportAllocs()
				for b.Loop() {
					Select(&model.Service{}, port, model.IPv4, list, node)
				}
			})
		}
	}
}

func benchSlices(n int, hinted bool) []*model.Slice {
	var list []*model.Slice
	for i, addr := range rand.New(rand.NewPCG(1, 1)).Perm(n) {
		if i%100 == 0 {
			list = append(list, &model.Slice{
				Family: model.IPv4,
				Ports:  []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}},
			})
		}
		ep := model.Endpoint{
			Addr:     netip.AddrFrom4([4]byte{10, 0, byte(addr >> 8), byte(addr)}),
			NodeName: fmt.Sprintf("node-%d", i%50),
			Ready:    true,
			Serving:  true,
		}
		if hinted {
			ep.ZoneHints = []string{string(rune('a' + i%3))}
		}
		s := list[len(list)-1]
		s.Endpoints = append(s.Endpoints, ep)
	}
	for _, s := range list {
		slices.SortFunc(s.Endpoints, func(a, b model.Endpoint) int { return a.Addr.Compare(b.Addr) })
	}
	return list
}
