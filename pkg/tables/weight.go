package tables

import "slices"

// maxWeighted is how many slots weights may take, beside one for each backend.
const maxWeighted = 1 << 18

// reduce divides weights by what they have in common; nil when all are equal.
func reduce(weights []uint32) []uint32 {
	if len(weights) == 0 {
		return nil
	}
	common, equal := weights[0], true
	for _, w := range weights {
		equal = equal && w == weights[0]
		for a := w; a != 0; {
			common, a = a, common%a
		}
	}
	if equal {
		return nil
	}
	for i := range weights {
		weights[i] /= common
	}
	return weights
}

// bound returns the weights, scaled down if they would take more slots than most, beside one
// for each.
func bound(weights []uint32, most uint64) []uint32 {
	all := sum(weights)
	if all <= most {
		return weights
	}
	scaled := make([]uint32, len(weights))
	for i, w := range weights {
		scaled[i] = uint32(max(1, (uint64(w)*most+all/2)/all))
	}
	return scaled
}

func sum(weights []uint32) uint64 {
	var all uint64
	for _, w := range weights {
		all += uint64(w)
	}
	return all
}

// runsOf returns each place of weights as many times in a row as its weight.
func runsOf(weights []uint32) []uint32 {
	slots := make([]uint32, 0, sum(weights))
	for i, w := range weights {
		for range w {
			slots = append(slots, uint32(i))
		}
	}
	return slots
}

// equals are the places of one weight, which take turns.
type equals struct {
	weight uint32
	places []uint32
	next   int // index of the next one
	rounds int64
}

// turnsOf returns each place of weights as many times as its weight, spread as
// smoothly as it can be: the next is always the one that is furthest behind its
// share, the first of several. That is the smooth weighted round robin of nginx;
// places of equal weight are looked at together, so that it takes no longer for many
// of them.
func turnsOf(weights []uint32) []uint32 {
	byWeight := make(map[uint32]int)
	var groups []equals
	for i, w := range weights {
		g, ok := byWeight[w]
		if !ok {
			g = len(groups)
			byWeight[w] = g
			groups = append(groups, equals{weight: w})
		}
		groups[g].places = append(groups[g].places, uint32(i))
	}
	all := int64(sum(weights))
	slots := make([]uint32, all)
	for t := range slots {
		best, behind := -1, int64(0)
		for i := range groups {
			g := &groups[i]
			late := int64(t+1)*int64(g.weight) - g.rounds*all
			if best < 0 || late > behind || late == behind && g.place() < groups[best].place() {
				best, behind = i, late
			}
		}
		slots[t] = groups[best].take()
	}
	return slices.Clip(slots)
}

// place returns whose turn it is.
func (g *equals) place() uint32 { return g.places[g.next] }

func (g *equals) take() uint32 {
	place := g.place()
	if g.next++; g.next == len(g.places) {
		g.next = 0
		g.rounds++
	}
	return place
}
