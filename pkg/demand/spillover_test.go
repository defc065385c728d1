package demand

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/tests/tier"
)

// simulation is a Service with as many endpoints in each zone, and the connections of its clients. What
// nodes count, tell and make of it are the package's own functions and those of pkg/policy.
type simulation struct {
	random *rand.Rand
	lasts  time.Duration // a connection, in the mean
	now    time.Duration
	nodes  []*simulated
}

const (
	simulatedZones     = 3
	simulatedNodes     = 4 // of a zone
	simulatedEndpoints = 5 // of a zone
	simulatedAbove     = 20
)

// simulated is a node.
type simulated struct {
	zone   int
	rate   float64             // of new connections, a second
	open   [simulatedZones]int // to the endpoints of each zone
	mean   mean
	shares map[string]uint16
	turn   time.Duration // when it looks, within a period
	// Since the shares were last looked at by the test.
	changes, least, most int
}

func zoneName(zone int) string { return fmt.Sprint("zone-", zone) }

func newSimulation(seed uint64, lasts time.Duration) *simulation {
	s := &simulation{random: rand.New(rand.NewPCG(seed, seed)), lasts: lasts}
	for i := range simulatedZones * simulatedNodes {
		s.nodes = append(s.nodes, &simulated{zone: i % simulatedZones, turn: time.Duration(s.random.Int64N(int64(period)))})
	}
	return s
}

// demand sets how many connections the clients of each zone want to have open.
func (s *simulation) demand(connections ...float64) {
	for _, n := range s.nodes {
		n.rate = connections[n.zone] / simulatedNodes / s.lasts.Seconds()
	}
}

// run goes on for a time, in steps in which connections end and begin.
func (s *simulation) run(d time.Duration) {
	step := min(time.Second, s.lasts/2)
	for _, n := range s.nodes {
		n.changes, n.least, n.most = 0, n.spilled(), n.spilled()
	}
	for end := s.now + d; s.now < end; s.now += step {
		for _, n := range s.nodes {
			s.move(n, step)
			if s.now/time.Second != (s.now+step)/time.Second {
				n.mean.add(float64(n.sum()), float64(time.Second)/float64(half))
			}
			if (s.now-n.turn)/period != (s.now+step-n.turn)/period {
				s.look(n)
			}
		}
	}
}

// move ends and begins connections of a node.
func (s *simulation) move(n *simulated, step time.Duration) {
	ends := 1 - math.Exp(-float64(step)/float64(s.lasts))
	for z := range n.open {
		for range n.open[z] {
			if s.random.Float64() < ends {
				n.open[z]--
			}
		}
	}
	for wait := s.random.ExpFloat64(); wait < n.rate*step.Seconds(); wait += s.random.ExpFloat64() {
		n.open[s.choose(n)]++
	}
}

// choose returns the zone that a new connection of a node goes to.
func (s *simulation) choose(n *simulated) int {
	part := s.random.IntN(model.SpillParts)
	for z := range simulatedZones {
		if part -= int(n.shares[zoneName(z)]); part < 0 {
			return z
		}
	}
	return n.zone
}

// look has a node see to its shares.
func (s *simulation) look(n *simulated) {
	demand, zones := Zones{}, policy.Zones{Weights: make(map[string]float64), Own: simulatedEndpoints}
	for _, other := range s.nodes {
		demand[zoneName(other.zone)] += other.mean.value
		zones.Weights[zoneName(other.zone)] = simulatedEndpoints
	}
	before := fmt.Sprint(n.shares)
	n.shares = policy.Spill(zones, demand, zoneName(n.zone), simulatedAbove, n.shares)
	if fmt.Sprint(n.shares) != before {
		n.changes++
	}
	n.least, n.most = min(n.least, n.spilled()), max(n.most, n.spilled())
}

func (n *simulated) sum() (sum int) {
	for _, open := range n.open {
		sum += open
	}
	return sum
}

func (n *simulated) spilled() (parts int) {
	for _, share := range n.shares {
		parts += int(share)
	}
	return parts
}

// load returns the part of all connections that the endpoints of a zone have.
func (s *simulation) load(zone int) float64 {
	here, all := 0, 0
	for _, n := range s.nodes {
		here += n.open[zone]
		all += n.sum()
	}
	return float64(here) / float64(all)
}

// TestSpillOver: when the clients of a zone want three times what those of others do, what its endpoints
// are not to have goes to the other zones, no more, and comes back when it is over. While demand is still,
// shares are: with short and long connections, whatever chance does.
func TestSpillOver(t *testing.T) {
	tier.OneGoroutine(t)
	for _, lasts := range []time.Duration{time.Second, 20 * time.Second, 5 * time.Minute} {
		t.Run(fmt.Sprint(lasts), func(t *testing.T) {
			for seed := range uint64(2) {
				s := newSimulation(seed, lasts)
				settles := 3*time.Minute + 5*lasts
				s.demand(500, 500, 500)
				s.run(settles)
				s.run(10 * time.Minute)
				s.expect(t, "even demand", 0, 0, 1.0/3)

				s.demand(1500, 500, 500)
				s.run(settles)
				// Of 2,500 its endpoints may have 1,000, so a third of its 1,500 spills over.
				s.expect(t, "on the way there", 0, 8, 0.4)
				s.run(10 * time.Minute)
				s.expect(t, "one zone with more", 6, 7, 0.4)
				for _, n := range s.nodes {
					if n.changes > 4 {
						t.Errorf("seed %d: shares of a node changed %d times in 10 minutes of still demand", seed, n.changes)
					}
				}

				s.demand(500, 500, 500)
				s.run(settles)
				s.run(10 * time.Minute)
				s.expect(t, "even demand again", 0, 0, 1.0/3)
			}
		})
	}
}

// expect checks that the nodes of zone 0 have kept their spilled parts within bounds, that those of the others
// have none, and which part of the connections the endpoints of zone 0 have.
func (s *simulation) expect(t *testing.T, when string, least, most int, load float64) {
	t.Helper()
	for _, n := range s.nodes {
		if n.zone == 0 && (n.least < least || n.most > most) {
			t.Errorf("%s: from %d to %d parts spill over, want from %d to %d", when, n.least, n.most, least, most)
		}
		if n.zone != 0 && n.most > 0 {
			t.Errorf("%s: %d parts of zone %d spill over", when, n.most, n.zone)
		}
	}
	if got := s.load(0); math.Abs(got-load) > 0.04 {
		t.Errorf("%s: the endpoints of the zone have %.3f of the connections, want %.3f", when, got, load)
	}
}
