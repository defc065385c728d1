package netns_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// locality are the algorithms that stay with some endpoints until these are overloaded.
var locality = []string{"lblc", "lblcr"}

// servers is what IPVS knows for one destination address.
type servers struct {
	algorithm       string
	active, weights []int // of the backends
	list            []int // the backends that are servers
}

// overloaded reports whether a backend has more connections than weight while another one has
// less than half as many.
func (s *servers) overloaded(backend int) bool {
	for i := range s.active {
		if 2*s.active[i] < s.weights[i] && s.active[backend] > s.weights[backend] {
			return true
		}
	}
	return false
}

// next returns the backends that may be chosen.
func (s *servers) next() []int {
	among := make([]int, len(s.weights)) // the weights of the servers
	for _, i := range s.list {
		among[i] = s.weights[i]
	}
	if list := leastLoaded("wlc", s.active, among); len(list) > 0 && !s.overloaded(list[0]) {
		return list
	}
	return leastLoaded("wlc", s.active, s.weights)
}

func (s *servers) choose(backend int) {
	s.active[backend]++
	switch {
	case s.algorithm == "lblc":
		s.list = []int{backend}
	case !slices.Contains(s.list, backend):
		s.list = append(s.list, backend)
	}
}

// connectTo connects a socket and fails when it reaches another backend than IPVS's would.
func (s *servers) connectTo(t *testing.T, n *lab.Namespace, network string, to netip.AddrPort, backends []netip.Addr) held {
	t.Helper()
	allowed := s.next()
	c := hold(t, n, network, to, backends)
	if !slices.Contains(allowed, c.backend) {
		t.Fatalf("%s, %s: with servers %v and %v active of weights %v a connection reached %d, want one of %v",
			s.algorithm, network, s.list, s.active, s.weights, c.backend, allowed)
	}
	s.choose(c.backend)
	return c
}

// TestLocality: connections that are made one after the other go where IPVS's algorithm has
// them, whatever has ended meanwhile, also while no agent runs and with another one.
func TestLocality(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	weights := []int{1, 4, 0, 2, 1, 7}
	for i, algorithm := range locality {
		manifests := append(append(weighted(weights, backends4(len(weights))), weighted(weights, backends6(len(weights)))...), withAlgorithm(algorithm, ""))
		a.Apply(manifests...)
		for _, to := range tier.Share(t, algorithmFrontends, i, len(locality)) {
			backends := backendsOf(to.network, len(weights))
			s := servers{algorithm: algorithm, active: make([]int, len(weights)), weights: weights}
			var open []held
			for i := range 60 {
				open = append(open, s.connectTo(t, h.Namespace, to.network, to.to, backends))
				switch {
				case i == 30:
					a.Stop()
				case i == 40:
					a = h.Serve(lab.AgentOptions{Manifests: manifests})
				case i < 30 && rand.IntN(3) == 0:
					j := rand.IntN(len(open))
					open[j].socket.Close()
					s.active[open[j].backend]--
					open = slices.Delete(open, j, j+1)
					wantActive(t, a, to.network, backends, s.active)
				}
			}
			wantActive(t, a, to.network, backends, s.active)
			for _, c := range open {
				c.socket.Close()
			}
			wantActive(t, a, to.network, backends, make([]int, len(weights)))
		}
	}
}

// TestLocalityGenerations: an endpoint that leaves and comes back is no server.
func TestLocalityGenerations(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	backends, to := backends4(2), algorithmFrontends[0].to
	for _, algorithm := range locality {
		a.Apply(withAlgorithm(algorithm, ""), lab.Slice("algorithm", algorithmPorts, backends...))
		first := hold(t, h.Namespace, "tcp4", to, backends)
		other := 1 - first.backend
		a.Apply(lab.Slice("algorithm", algorithmPorts, backends[other]))
		second := hold(t, h.Namespace, "tcp4", to, backends)
		a.Apply(lab.Slice("algorithm", algorithmPorts, backends...))
		if c := hold(t, h.Namespace, "tcp4", to, backends); c.backend != other {
			t.Errorf("%s: reached %d, which has come back, and not the server", algorithm, c.backend)
		}
		first.socket.Close()
		second.socket.Close()
	}
}

// TestLocalityIdle: a server that got no connection for long is forgotten; of several servers
// one is taken back when there has been no change for long.
func TestLocalityIdle(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	backends, to := backends4(3), algorithmFrontends[0].to
	slice := lab.Slice("algorithm", algorithmPorts, backends...)
	a.Apply(withAlgorithm("lblcr", ""), slice)
	s := servers{algorithm: "lblcr", active: make([]int, 3), weights: []int{1, 1, 1}}
	for range 9 {
		s.connectTo(t, h.Namespace, "tcp4", to, backends)
	}
	if !slices.Equal(s.active, []int{3, 3, 3}) || len(s.list) != 3 {
		t.Fatalf("%v connections at servers %v, want 3 at each of 3", s.active, s.list)
	}
	a.Stop()
	a = h.Serve(lab.AgentOptions{Manifests: []string{withAlgorithm("lblcr", ""), slice}, LocalityIdle: time.Nanosecond})
	for range 2 { // each takes one back
		s.choose(hold(t, h.Namespace, "tcp4", to, backends).backend)
	}
	last := hold(t, h.Namespace, "tcp4", to, backends).backend
	for range 3 {
		if c := hold(t, h.Namespace, "tcp4", to, backends); c.backend != last {
			t.Errorf("lblcr: reached %d after %d, of %v connections", c.backend, last, s.active)
		}
	}

	a.Apply(withAlgorithm("lblc", ""), lab.Slice("algorithm", algorithmPorts, backends4(6)[3:]...))
	var reached []int
	for range 3 {
		reached = append(reached, hold(t, h.Namespace, "tcp4", to, backends4(6)[3:]).backend)
	}
	slices.Sort(reached)
	if !slices.Equal(reached, []int{0, 1, 2}) {
		t.Errorf("lblc: reached %v, and not each idle endpoint", reached)
	}
}
