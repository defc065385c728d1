package policy

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/pkg/model"
)

// TestSpill: what the clients of a zone ask for beyond the share of its endpoints goes to zones whose
// clients ask for less, in proportion.
func TestSpill(t *testing.T) {
	even := Zones{Weights: map[string]float64{"a": 4, "b": 4, "c": 4}, Own: 4}
	type zones = map[string]float64
	type shares = map[string]uint16
	for name, tt := range map[string]struct {
		zones  Zones
		demand zones
		above  uint16
		now    shares
		want   shares
	}{
		"balanced":                      {even, zones{"a": 100, "b": 100, "c": 100}, 0, nil, nil},
		"within what is allowed":        {even, zones{"a": 119, "b": 90, "c": 91}, 20, nil, nil},
		"half too much":                 {even, zones{"a": 200, "b": 50, "c": 50}, 0, nil, shares{"b": 5, "c": 5}},
		"half too much, 20 % allowed":   {even, zones{"a": 200, "b": 50, "c": 50}, 20, nil, shares{"b": 4, "c": 4}},
		"to the zone that has less":     {even, zones{"a": 200, "b": 90, "c": 10}, 0, nil, shares{"b": 1, "c": 9}},
		"not to one with too much":      {even, zones{"a": 150, "b": 150, "c": 0}, 0, nil, shares{"c": 7}},
		"all of the clients":            {even, zones{"a": 300}, 0, nil, shares{"b": 7, "c": 6}},
		"by weight":                     {Zones{zones{"a": 2, "b": 4, "c": 2}, 2}, zones{"a": 400}, 0, nil, shares{"b": 10, "c": 5}},
		"clients without endpoints":     {Zones{zones{"a": 4, "b": 4}, 4}, zones{"a": 150, "b": 50, "c": 100}, 0, nil, shares{"b": 7}},
		"a zone without clients":        {even, zones{"b": 100, "c": 200}, 0, nil, nil},
		"fewer than endpoints":          {even, zones{"a": 3.9}, 0, nil, nil},
		"nothing known":                 {even, nil, 0, shares{"b": 7, "c": 6}, nil},
		"no hints":                      {Zones{}, zones{"a": 300}, 0, shares{"b": 7}, nil},
		"as good as right":              {even, zones{"a": 204, "b": 50, "c": 46}, 0, shares{"b": 5, "c": 5}, shares{"b": 5, "c": 5}},
		"not right any more":            {even, zones{"a": 250, "b": 25, "c": 25}, 0, shares{"b": 5, "c": 5}, shares{"b": 6, "c": 6}},
		"as many as before, not enough": {even, zones{"a": 110, "b": 95, "c": 95}, 0, shares{"b": 5, "c": 5}, shares{"b": 1, "c": 1}},
		"no more":                       {even, zones{"a": 100, "b": 100, "c": 100}, 0, shares{"b": 5, "c": 5}, nil},
		"a zone that is gone":           {Zones{zones{"a": 4, "b": 4}, 4}, zones{"a": 200, "b": 100}, 0, shares{"c": 5}, shares{"b": 5}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Spill(tt.zones, tt.demand, "a", tt.above, tt.now)
			if !maps.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			if again := Spill(tt.zones, tt.demand, "a", tt.above, got); !maps.Equal(again, got) {
				t.Errorf("got %v the second time, %v the first", again, got)
			}
		})
	}
}

// TestSpillSets: the weights in the cluster set follow the shares, whatever the endpoints weigh. Those of
// zones without a share are in it, and get no new connections. The shares follow from the weights again.
func TestSpillSets(t *testing.T) {
	svc := &model.Service{ClusterIPs: []netip.Addr{podAddr(model.IPv4, 200)}, SpillOver: model.SpillOver{Used: true}}
	heavy := uint8(200)
	zone := func(zone string, from, n int) (pods []pod) {
		for i := range n {
			pods = append(pods, ready(from+i).forZones(zone))
		}
		return pods
	}
	list := []*model.Slice{
		httpSlice(model.IPv4, zone("zone-a", 1, 3)...),
		httpSlice(model.IPv4, zone("zone-b", 11, 7)...),
		httpSlice(model.IPv4, zone("zone-c", 21, 2)...),
	}
	for _, weighed := range []bool{false, true} {
		if weighed {
			list[0].Weight = &heavy
		}
		for _, shares := range []map[string]uint16{nil, {"zone-b": 1}, {"zone-b": 5, "zone-c": 5}, {"zone-c": 19}, {"zone-d": 5}} {
			t.Run(fmt.Sprint(shares, " ", weighed), func(t *testing.T) {
				svc.ZoneShares = shares
				sets := Select(svc, httpPort, model.IPv4, list, here)
				sums, all, weights := make(map[string]float64), 0.0, make(map[netip.AddrPort]uint16)
				for _, b := range sets.Backends {
					if !b.InCluster || b.InLocal {
						t.Errorf("%s in the cluster set: %t, in the local set: %t", b.AddrPort, b.InCluster, b.InLocal)
					}
					sums[[]string{"zone-a", "zone-b", "zone-c"}[b.AddrPort.Addr().As4()[3]/10]] += float64(b.Weight)
					all += float64(b.Weight)
					weights[b.AddrPort] = b.Weight
				}
				if len(sets.Backends) != 12 {
					t.Errorf("%d backends, want 12", len(sets.Backends))
				}
				own := 1.0
				for z, n := range shares {
					want := float64(n) / model.SpillParts
					if z == "zone-d" {
						want = 0
					}
					own -= want
					if got := sums[z] / all; math.Abs(got-want) > 0.03 {
						t.Errorf("%s gets %.3f, want %.3f", z, got, want)
					}
				}
				if got := sums["zone-a"] / all; math.Abs(got-own) > 0.03 {
					t.Errorf("the own zone gets %.3f, want %.3f", got, own)
				}
				with := *svc
				with.Ports = []model.ServicePort{httpPort}
				joined := Join(&with, model.IPv4, list)
				again := joined.SharesOf(0, here, func(addr netip.AddrPort) uint16 { return weights[addr] })
				if want := maps.Clone(shares); !maps.Equal(again, without(want, "zone-d")) {
					t.Errorf("the shares that follow are %v", again)
				}
			})
		}
	}
}

func without(shares map[string]uint16, zone string) map[string]uint16 {
	delete(shares, zone)
	return shares
}

// TestSpillHints: without hints of zones that count nothing changes.
func TestSpillHints(t *testing.T) {
	svc := &model.Service{ClusterIPs: []netip.Addr{podAddr(model.IPv4, 200)}, SpillOver: model.SpillOver{Used: true}, ZoneShares: map[string]uint16{"zone-b": 5}}
	plain := &model.Service{ClusterIPs: svc.ClusterIPs}
	for name, pods := range map[string][]pod{
		"none":        {ready(1), ready(2)},
		"not all":     {ready(1).forZones("zone-a"), ready(2)},
		"other zones": {ready(1).forZones("zone-b"), ready(2).forZones("zone-c")},
		"nodes":       {ready(1).forNodes("here").forZones("zone-a"), ready(2).forNodes("there").forZones("zone-b")},
		"draining":    {draining(1).forZones("zone-a"), draining(2).forZones("zone-b")},
	} {
		t.Run(name, func(t *testing.T) {
			list := []*model.Slice{httpSlice(model.IPv4, pods...)}
			got, want := Select(svc, httpPort, model.IPv4, list, here), Select(plain, httpPort, model.IPv4, list, here)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("got %v, want %v", got, want)
			}
			if zones := ZonesOf(svc, list, here); len(zones.Weights) > 0 {
				t.Errorf("zones %v", zones)
			}
		})
	}
}
