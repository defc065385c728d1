package policy

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/model"
)

const (
	// A change of a zone's share of less than spillSlack parts is none: demand is never still.
	spillSlack = 0.75
	// The weights of zones are whole numbers up to spillScale times the least that are within
	// spillError of their shares.
	spillScale = 32
	spillError = 0.03
)

// Zones are the Ready endpoints of a Service by the zone that topology hints give them to.
type Zones struct {
	// Weights are the sums of their weights.
	Weights map[string]float64
	// Own is how many there are of the node's own zone, at the port and in the family that has most.
	Own int
}

// ZonesOf returns the zones of a Service; none when topology hints do not keep the connections
// of the node in its zone. The parameters are as for [Select]. Ports beyond [MostLooked] are taken to
// have what the others have.
func ZonesOf(svc *model.Service, list []*model.Slice, node *model.LocalNode) Zones {
	full := *svc
	full.SlowStart = 0
	zones := Zones{Weights: make(map[string]float64)}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	looked := 0
	for _, family := range model.Families {
		if !svc.HasFamily(family) {
			continue
		}
		joined := Join(svc, family, list)
		for i := range svc.Ports {
			targets := joined.targets(s, i)
			if looked += listed(targets); looked > MostLooked && i > 0 {
				break
			}
			zones.add(s.endpoints(&full, targets, node, math.MaxInt), node)
		}
	}
	return zones
}

// add adds the endpoints of a Service port.
func (z *Zones) add(eps []endpoint, node *model.LocalNode) {
	if hintsOf(eps, node) != zoneHints {
		return
	}
	own := 0
	for i := range eps {
		e := &eps[i]
		if !e.ready {
			continue
		}
		zone := e.zone(node)
		z.Weights[zone] += float64(e.weight)
		if zone == node.Zone {
			own++
		}
	}
	z.Own = max(z.Own, own)
}

// zone returns the zone that topology hints give an endpoint to, the node's own when it is one of
// several, and for endpoints on the node.
func (e *endpoint) zone(node *model.LocalNode) string {
	if e.onNode || len(e.from.ZoneHints) == 0 || slices.Contains(e.from.ZoneHints, node.Zone) {
		return node.Zone
	}
	return e.from.ZoneHints[0]
}

// Spill returns the shares of the node's new connections that go to other zones, as of
// [model.Service.ZoneShares]. demand is how many active connections the clients of each zone have,
// wherever they go, so the shares do not depend on themselves and cannot oscillate. now are the
// present shares, which stay while they are right but for some slack.
//
// The fair share of a zone is its part of all connections by the weight of its endpoints. What
// its clients ask for beyond that and above percent more goes to the zones that have less than theirs,
// in proportion to what is missing there. While there is less than one active connection for each
// endpoint of the zone, all stay.
func Spill(zones Zones, demand map[string]float64, zone string, above uint16, now map[string]uint16) map[string]uint16 {
	capacity, all := 0.0, 0.0
	for _, w := range zones.Weights {
		capacity += w
	}
	spread := 0.0 // of clients in zones without endpoints, whom hints send everywhere
	for z, d := range demand {
		all += d
		if zones.Weights[z] == 0 {
			spread += d
		}
	}
	fair := func(z string) float64 { return all * zones.Weights[z] / capacity }
	load := func(z string) float64 { return demand[z] + spread*zones.Weights[z]/capacity }
	if zones.Weights[zone] == 0 || demand[zone] == 0 || load(zone) < float64(zones.Own) {
		return settle(nil, now)
	}
	excess := load(zone) - fair(zone)*(1+float64(above)/100)
	missing, sum := make(map[string]float64), 0.0
	for z := range zones.Weights {
		if m := fair(z) - load(z); m > 0 {
			missing[z] = m
			sum += m
		}
	}
	if excess <= 0 || sum == 0 {
		return settle(nil, now)
	}
	spilled := min(model.SpillParts*excess/demand[zone], model.SpillParts-1)
	for z, m := range missing {
		missing[z] = spilled * m / sum
	}
	return settle(missing, now)
}

// settle rounds shares to parts, unless those of now are right but for some slack.
func settle(shares map[string]float64, now map[string]uint16) map[string]uint16 {
	right := true
	for z, s := range shares {
		right = right && math.Abs(s-float64(now[z])) <= spillSlack
	}
	for z, n := range now {
		right = right && math.Abs(shares[z]-float64(n)) <= spillSlack
	}
	if right {
		return now
	}
	return round(shares)
}

// round rounds shares so that their sum is rounded, too: those with the largest remainders up.
func round(shares map[string]float64) map[string]uint16 {
	sum := 0.0
	parts := make(map[string]uint16)
	remainder := func(z string) float64 { return shares[z] - math.Floor(shares[z]) }
	zones := slices.SortedFunc(maps.Keys(shares), func(a, b string) int {
		return cmp.Or(cmp.Compare(remainder(b), remainder(a)), cmp.Compare(a, b))
	})
	down := 0
	for _, z := range zones {
		sum += shares[z]
		parts[z] = uint16(shares[z])
		down += int(parts[z])
	}
	for _, z := range zones[:min(max(int(math.Round(sum))-down, 0), len(zones))] {
		parts[z]++
	}
	maps.DeleteFunc(parts, func(_ string, n uint16) bool { return n == 0 })
	return parts
}

// spill weighs the endpoints so that other zones get their shares of new connections. Endpoints
// of zones without a share get the weight 0: they keep what they serve, and that is counted.
func spill(eps []endpoint, shares map[string]uint16, node *model.LocalNode) {
	weights := make(map[string]float64)
	for i := range eps {
		if e := &eps[i]; e.ready {
			weights[e.zone(node)] += float64(e.weight)
		}
	}
	var zones []string
	var factors []float64
	rest := uint16(model.SpillParts)
	for _, z := range slices.Sorted(maps.Keys(shares)) {
		if z != node.Zone && weights[z] > 0 {
			zones, factors = append(zones, z), append(factors, float64(shares[z])/weights[z])
			rest -= min(rest, shares[z])
		}
	}
	if weights[node.Zone] > 0 && rest > 0 {
		zones, factors = append(zones, node.Zone), append(factors, float64(rest)/weights[node.Zone])
	}
	by := make(map[string]uint32, len(zones))
	for i, n := range wholes(factors) {
		by[zones[i]] = n
	}
	var largest uint32
	for i := range eps {
		largest = max(largest, uint32(eps[i].weight)*by[eps[i].zone(node)])
	}
	less := max(1, (largest+math.MaxUint16-1)/math.MaxUint16)
	for i := range eps {
		e := &eps[i]
		if !e.ready {
			continue
		}
		weight := uint32(e.weight) * by[e.zone(node)]
		e.spare = e.weight > 0 && weight == 0
		e.weight = uint16(max(weight/less, min(weight, 1)))
	}
}

// wholes returns whole numbers in about the ratio of positive ones.
func wholes(of []float64) []uint32 {
	if len(of) == 0 {
		return nil
	}
	least := slices.Min(of)
	whole := make([]uint32, len(of))
	for scale := 1; scale <= spillScale; scale++ {
		right := true
		for i, f := range of {
			want := f / least * float64(scale)
			whole[i] = uint32(math.Round(want))
			right = right && math.Abs(float64(whole[i])-want) <= spillError*want
		}
		if right {
			break
		}
	}
	return whole
}

// SharesOf returns the shares of other zones by which the endpoints of port number i of the Service
// have their weights, such as those that a former agent has left in the tables.
func (j *Joined) SharesOf(i int, node *model.LocalNode, weight func(netip.AddrPort) uint16) map[string]uint16 {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	eps := s.endpoints(j.svc, j.targets(s, i), node, math.MaxInt)
	if hintsOf(eps, node) != zoneHints {
		return nil
	}
	sums, all := make(map[string]float64), 0.0
	for i := range eps {
		e := &eps[i]
		if !e.ready {
			continue
		}
		w := float64(weight(netip.AddrPortFrom(e.from.Addr, e.port)))
		sums[e.zone(node)] += w
		all += w
	}
	delete(sums, node.Zone)
	for z := range sums {
		sums[z] *= model.SpillParts / max(all, 1)
	}
	return round(sums)
}
