package tables

import (
	"cmp"
	"slices"
)

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
// of them, and of different weights only those that may have become the next.
func turnsOf(weights []uint32) []uint32 {
	t := newTournament(weights)
	slots := make([]uint32, t.all)
	for i := range slots {
		slots[i] = t.next()
	}
	return slots
}

// tournament finds the group that is furthest behind. Groups fall behind in proportion to their weights, so
// the winner of a match stays the winner until a time that is known, if it does not take a turn: a kinetic
// tournament.
type tournament struct {
	groups []equals
	all    int64   // sum of the weights
	turn   int64   // number of the next one, from 1 on
	tree   []match // of node n the children are 2n and 2n+1; the leaves are the groups, the root is 1
	played int     // matches, which is what it costs
}

// match is between the winners of two others.
type match struct {
	winner int
	until  int64 // the first turn at which it, or one below it, may have another winner
}

func newTournament(weights []uint32) *tournament {
	t := &tournament{all: int64(sum(weights)), turn: 1}
	byWeight := make(map[uint32]int)
	for i, w := range weights {
		g, ok := byWeight[w]
		if !ok {
			g = len(t.groups)
			byWeight[w] = g
			t.groups = append(t.groups, equals{weight: w})
		}
		t.groups[g].places = append(t.groups[g].places, uint32(i))
	}
	// Neighbors, of similar weights, seldom change which of them is further behind.
	slices.SortFunc(t.groups, func(a, b equals) int { return cmp.Compare(a.weight, b.weight) })
	t.tree = make([]match, 2*len(t.groups))
	for g := range t.groups {
		t.tree[len(t.groups)+g] = match{g, t.all + 1}
	}
	return t
}

// next returns the place that is furthest behind, which takes the turn.
func (t *tournament) next() uint32 {
	t.playAll(1)
	g := t.tree[1].winner
	place := t.groups[g].take()
	t.turn++
	for node := (len(t.groups) + g) / 2; node > 0; node /= 2 {
		t.play(node)
	}
	return place
}

// playAll plays the match of a node, and those below it, whose winners may be others than before.
func (t *tournament) playAll(node int) {
	if t.tree[node].until <= t.turn {
		t.playAll(2 * node)
		t.playAll(2*node + 1)
		t.play(node)
	}
}

// play plays the match of a node between the winners below it. A winner that gains less than the other
// one stays so long as it is ahead.
func (t *tournament) play(node int) {
	t.played++
	left, right := t.tree[2*node], t.tree[2*node+1]
	until := min(left.until, right.until)
	winner, loser := left.winner, right.winner
	ahead := t.behind(winner) - t.behind(loser)
	first := t.groups[winner].place() < t.groups[loser].place()
	if ahead < 0 || ahead == 0 && !first {
		winner, loser, ahead, first = loser, winner, -ahead, !first
	}
	if gains := int64(t.groups[loser].weight) - int64(t.groups[winner].weight); gains > 0 && ahead < gains*(until-t.turn) {
		turns := ahead / gains
		if first || ahead%gains != 0 {
			turns++
		}
		until = min(until, t.turn+turns)
	}
	t.tree[node] = match{winner, until}
}

// behind returns how far a group is behind its share, in parts of it.
func (t *tournament) behind(group int) int64 {
	g := &t.groups[group]
	return t.turn*int64(g.weight) - g.rounds*t.all
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
