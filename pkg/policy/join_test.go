package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/bounds"
)

// firstOf says which backends stay of too many, with no thought of cost.
func firstOf(all []Backend, most int, localUsed bool) []Backend {
	rank := func(b Backend) int {
		switch {
		case !b.InSet():
			return 3
		case b.Weight == 0:
			return 2
		case localUsed && b.InLocal:
			return 0
		}
		return 1
	}
	kept := slices.Clone(all)
	slices.SortStableFunc(kept, func(a, b Backend) int { return rank(a) - rank(b) })
	kept = kept[:min(most, len(kept))]
	slices.SortFunc(kept, func(a, b Backend) int { return a.AddrPort.Compare(b.AddrPort) })
	return kept
}

// TestJoined compares what is made of all ports of a Service together with what Select makes of each,
// in full and of a part.
func TestJoined(t *testing.T) {
	s := *seed
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("repeat with -seed=%d", s)
	random := rand.New(rand.NewPCG(s, 0))
	ports := []model.ServicePort{{Name: "http", Protocol: model.TCP}, {Name: "dns", Protocol: model.UDP}, {Protocol: model.TCP}}
	for n := range fewPorts {
		ports = append(ports, model.ServicePort{Name: fmt.Sprint("other-", n), Protocol: model.TCP})
	}
	cut := 0
	for i := range 2000 {
		c := newChances(random)
		node, list := c.node(), c.slices()
		for _, slice := range list {
			if weight := uint8(c.IntN(3)); c.IntN(2) == 0 {
				slice.Weight = &weight
			}
		}
		svc := &model.Service{Ports: ports[:3]}
		if i%2 == 0 { // so many that they are in a map
			svc.Ports = ports
		}
		most, localUsed := uint64(c.IntN(8)), c.IntN(2) == 0
		for _, family := range model.Families {
			all, part := Join(svc, family, list), Join(svc, family, list)
			for number, port := range ports[:3] {
				want := Select(svc, port, family, list, node)
				if got := all.Select(number, node, math.MaxUint64, localUsed); !reflect.DeepEqual(got, want) {
					t.Fatalf("case %d, seed %d: port %q has %+v, want %+v", i, s, port.Name, got, want)
				}
				if len(want.Backends) > int(most) {
					cut++
				}
				want.Backends = firstOf(want.Backends, int(most), localUsed)
				got := part.Select(number, node, most, localUsed)
				if len(got.Backends)+len(want.Backends) > 0 && !reflect.DeepEqual(got, want) || got.Cluster != want.Cluster || got.Local != want.Local {
					t.Fatalf("case %d, seed %d: port %q has %+v of %d, want %+v", i, s, port.Name, got, most, want)
				}
			}
		}
	}
	if cut < 200 {
		t.Errorf("seed %d: only %d ports had more than they may", s, cut)
	}
}

// wide returns a Service with many ports and slices that have them all, in another order, each with
// many endpoints. shift gives each slice other target ports, so that no two ports are alike.
func wide(ports, sliceCount, endpoints int, shift bool) (*model.Service, []*model.Slice) {
	svc := &model.Service{ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}
	for i := range ports {
		svc.Ports = append(svc.Ports, model.ServicePort{Name: fmt.Sprint("port-", i), Protocol: model.TCP, Port: uint16(i + 1)})
	}
	r := rand.New(rand.NewPCG(1, 1))
	var list []*model.Slice
	for n := range sliceCount {
		s := &model.Slice{Family: model.IPv4}
		for i := range ports {
			port := uint16(i + 1)
			if shift {
				port = uint16(1 + r.IntN(math.MaxUint16))
			}
			s.Ports = append(s.Ports, model.SlicePort{Name: fmt.Sprint("port-", i), Protocol: model.TCP, Port: port})
		}
		slices.Reverse(s.Ports)
		for i := range endpoints {
			s.Endpoints = append(s.Endpoints, model.Endpoint{
				Addr: netip.AddrFrom4([4]byte{10, byte(n), byte(i >> 8), byte(i)}), NodeName: "here",
				Ready: true, Serving: true, Terminating: i%2 == 0,
			})
		}
		list = append(list, s)
	}
	return svc, list
}

// TestWideService: what a Service with many ports and endpoints costs grows with both and with what
// it may have, not with one times the other.
func TestWideService(t *testing.T) {
	const ports, sliceCount, endpoints, most = 5000, 10, 1000, 20
	const size = sliceCount*(ports+endpoints) + ports*most
	node := &model.LocalNode{Name: "here"}
	for _, shift := range []bool{false, true} {
		svc, list := wide(ports, sliceCount, endpoints, shift)
		bounds.Check(t, size/2, func() {
			joined, all := Join(svc, model.IPv4, list), 0
			for i := range svc.Ports {
				all += joined.Listed(i)
			}
			if all != ports*sliceCount*endpoints {
				t.Errorf("%d endpoints are listed", all)
			}
			for i := range svc.Ports {
				sets := joined.Select(i, node, most, true)
				if len(sets.Backends) != most || sets.Cluster != Backends || sets.Local != Backends {
					t.Fatalf("shift %v: port %d has %d backends, %v, %v", shift, i, len(sets.Backends), sets.Cluster, sets.Local)
				}
			}
		})
		bounds.Check(t, size/2, func() {
			if n := LocalReady(new(model.Service), model.IPv4, list, node); n != sliceCount*endpoints {
				t.Errorf("%d endpoints are ready", n)
			}
		})
		bounds.Check(t, size/2, func() {
			if n := len(Terminating(svc, list, node)); n != MaxTerminating {
				t.Errorf("%d endpoints terminate", n)
			}
		})
		bounds.Check(t, size/2, func() {
			for _, e := range list[0].Endpoints {
				svc.LoadBalancerIPs = append(svc.LoadBalancerIPs, e.Addr)
				svc.SourceRanges = append(svc.SourceRanges, netip.PrefixFrom(e.Addr, 31))
			}
			if ranges, _ := SourceRanges(svc, model.IPv4); len(ranges) != endpoints {
				t.Errorf("%d source ranges", len(ranges))
			}
		})
	}
}

// TestFewOfWideService: a Service that may have few backends costs what its objects hold, and a number of
// looks that follows from those few, also where each of its ports is of another shape.
func TestFewOfWideService(t *testing.T) {
	const ports, sliceCount, endpoints = 120, 10, 1000
	svc, list := wide(ports, sliceCount, endpoints, true)
	for most, want := range map[uint64]int{2: leastLooked, 100: lookedForEach * 100 * ports, 5000: MostLooked} {
		joined := Join(svc, model.IPv4, list)
		for i := range svc.Ports {
			if sets := joined.Select(i, &model.LocalNode{}, most, false); len(sets.Backends) != int(most) || sets.Cluster != Backends {
				t.Fatalf("port %d has %d backends of %d, %v", i, len(sets.Backends), most, sets.Cluster)
			}
		}
		if joined.looked > want || joined.looked <= want-sliceCount*endpoints {
			t.Errorf("%d endpoints are looked at, want up to %d", joined.looked, want)
		}
	}
}
