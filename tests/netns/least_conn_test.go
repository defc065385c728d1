package netns_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// leastConn are the algorithms that count active connections.
var leastConn = []string{"lc", "wlc", "sed", "nq"}

// load returns the load of a backend as IPVS weighs it, as a ratio.
func load(algorithm string, active, weight int) (connections, of int) {
	switch {
	case algorithm == "lc":
		return active, 1
	case algorithm == "sed", algorithm == "nq" && active > 0:
		return active + 1, weight
	}
	return active, weight
}

// leastLoaded returns the backends that may be chosen.
func leastLoaded(algorithm string, active, weights []int) (list []int) {
	for i := range active {
		least := weights[i] > 0
		for j := range active {
			a, aw := load(algorithm, active[i], weights[i])
			b, bw := load(algorithm, active[j], weights[j])
			least = least && (weights[j] == 0 || a*bw <= b*aw)
		}
		if least {
			list = append(list, i)
		}
	}
	return list
}

// activeSockets returns the active connections of sockets that are counted at backends.
func activeSockets(t *testing.T, a *lab.Agent, protocol model.Protocol, backends []netip.Addr) []int {
	t.Helper()
	have, err := a.Services().Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	counts := make([]int, len(backends))
	for id, b := range have.Backends {
		i := slices.Index(backends, b.AddrPort.Addr())
		if i < 0 || have.Names[b.Service].Port.Protocol != protocol {
			continue
		}
		sockets, flows := flowmap.New(a.Maps()).Active(id, b.Generation)
		if flows != 0 {
			t.Errorf("%s: %d connections of packets are counted", b.AddrPort, flows)
		}
		counts[i] += int(sockets)
	}
	return counts
}

// wantActive waits until the active connections are as they should be. A closed socket ends later
// when a child that another test has started has a copy of it, which it has until it runs its
// program.
func wantActive(t *testing.T, a *lab.Agent, network string, backends []netip.Addr, want []int) {
	t.Helper()
	lab.Eventually(t, fmt.Sprintf("active connections of %s are %v", network, want), func() bool {
		return slices.Equal(activeSockets(t, a, protocolOf(network), backends), want)
	})
}

func protocolOf(network string) model.Protocol {
	if strings.HasPrefix(network, "udp") {
		return model.UDP
	}
	return model.TCP
}

// held is a socket that is connected to a backend.
type held struct {
	socket  *lab.Socket
	network string
	backend int
}

// hold connects a socket and tells to which of the backends.
func hold(t testing.TB, n *lab.Namespace, network string, to netip.AddrPort, backends []netip.Addr) held {
	t.Helper()
	c := held{n.Socket(network), network, -1}
	if err := c.connect(to, backends); err != nil {
		t.Fatal(err)
	}
	return c
}

// connect connects the socket to a Service, again perhaps.
func (c *held) connect(to netip.AddrPort, backends []netip.Addr) error {
	if err := c.socket.Connect(to); err != nil {
		return err
	}
	if protocolOf(c.network) == model.UDP {
		if err := c.socket.Send("who"); err != nil {
			return err
		}
	}
	answer, _, err := c.socket.Receive()
	if err != nil {
		return err
	}
	at, err := netip.ParseAddrPort(answer)
	if err != nil {
		return err
	}
	c.backend = slices.Index(backends, at.Addr())
	return nil
}

func backendsOf(network string, n int) []netip.Addr {
	if strings.HasSuffix(network, "6") {
		return backends6(n)
	}
	return backends4(n)
}

// TestLeastConn: connections made one after another go to the backend that IPVS's algorithm selects,
// whichever connections have closed meanwhile; a backend of weight 0 gets none.
func TestLeastConn(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	weights := []int{1, 4, 0, 2, 1, 7}
	for _, algorithm := range leastConn {
		a.Apply(append(append(weighted(weights, backends4(len(weights))), weighted(weights, backends6(len(weights)))...), withAlgorithm(algorithm, ""))...)
		for _, s := range algorithmFrontends {
			backends := backendsOf(s.network, len(weights))
			active := make([]int, len(weights))
			var open []held
			for i := range 60 {
				allowed := leastLoaded(algorithm, active, weights)
				c := hold(t, h.Namespace, s.network, s.to, backends)
				if !slices.Contains(allowed, c.backend) {
					t.Fatalf("%s, %s: with %v active of weights %v connection %d reached %d, want one of %v",
						algorithm, s.network, active, weights, i, c.backend, allowed)
				}
				active[c.backend]++
				open = append(open, c)
				if rand.IntN(3) == 0 {
					j := rand.IntN(len(open))
					open[j].socket.Close()
					active[open[j].backend]--
					open = slices.Delete(open, j, j+1)
					wantActive(t, a, s.network, backends, active)
				}
			}
			wantActive(t, a, s.network, backends, active)
			for _, c := range open {
				c.socket.Close()
			}
			wantActive(t, a, s.network, backends, make([]int, len(weights)))
		}
	}
}

// TestLeastConnShares: connections that stay open are balanced by weight (by lc evenly), and so are
// short ones among equally loaded backends.
func TestLeastConnShares(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	weights, backends, to := []int{1, 2, 5}, backends4(3), algorithmFrontends[2].to
	for _, algorithm := range leastConn {
		a.Apply(append(weighted(weights, backends), withAlgorithm(algorithm, ""))...)
		want := []int{100, 200, 500}
		if algorithm == "lc" {
			want = []int{267, 267, 266}
		}
		var open []*lab.Socket
		for range 800 {
			s := h.Socket("udp4")
			if err := s.Connect(to); err != nil {
				t.Fatal(err)
			}
			open = append(open, s)
		}
		for i, n := range activeSockets(t, a, model.UDP, backends) {
			if n < want[i]-2 || n > want[i]+2 {
				t.Errorf("%s: %d of 800 connections at backend %d of weights %v, want %d", algorithm, n, i, weights, want[i])
			}
		}
		for _, s := range open {
			s.Close()
		}
		if algorithm != "lc" && algorithm != "wlc" {
			continue // sed takes the one of the greatest weight
		}
		short := make([]int, 3)
		for range 800 {
			c := hold(t, h.Namespace, "udp4", to, backends)
			c.socket.Close()
			short[c.backend]++
		}
		for i, n := range short {
			if n < want[i]*7/10 || n > want[i]*13/10 {
				t.Errorf("%s: %v of 800 short connections, want about %v", algorithm, short, want)
				break
			}
		}
	}
}

// TestActiveSocket: the counts follow a socket's connect(), reconnect, shutdown and close().
func TestActiveSocket(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	a.Apply(withAlgorithm("lc", ""), lab.Slice("algorithm", algorithmPorts, backends4(2)...), lab.Slice("algorithm", algorithmPorts, backends6(2)...))
	for _, s := range algorithmFrontends {
		backends, none := backendsOf(s.network, 2), []int{0, 0}
		at := func(i int) []int { return []int{1 - i, i} }
		t.Run(s.network, func(t *testing.T) {
			first := hold(t, h.Namespace, s.network, s.to, backends)
			wantActive(t, a, s.network, backends, at(first.backend))
			dup := first.socket.Dup(t)
			first.socket.Close()
			wantActive(t, a, s.network, backends, at(first.backend))
			dup.Close()
			wantActive(t, a, s.network, backends, none)

			killed := hold(t, h.Namespace, s.network, s.to, backends)
			process := h.Hand(killed.socket)
			wantActive(t, a, s.network, backends, at(killed.backend))
			process.Signal(unix.SIGKILL)
			_ = process.Wait() // was killed
			wantActive(t, a, s.network, backends, none)
			if protocolOf(s.network) == model.UDP {
				testActiveUDP(t, h, a, s.network, s.to, backends)
			}
		})
	}
}

// TestActiveMultipathTCP: a connection of MPTCP is not counted, for what connects is a socket of the
// kernel, whose end no program sees.
func TestActiveMultipathTCP(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	for _, algorithm := range []string{"lc", "ewma"} {
		a.Apply(withAlgorithm(algorithm, ""), lab.Slice("algorithm", algorithmPorts, backends4(2)...), lab.Slice("algorithm", algorithmPorts, backends6(2)...))
		for i, family := range []int{unix.AF_INET, unix.AF_INET6} {
			network, to := algorithmFrontends[i].network, algorithmFrontends[i].to
			backends, none := backendsOf(network, 2), []int{0, 0}
			for range 3 {
				s, err := h.TrySocket(family, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
				if err != nil {
					t.Skipf("no multipath TCP in this kernel: %v", err)
				}
				c := held{s, network, -1}
				if err := c.connect(to, backends); err != nil {
					t.Fatal(err)
				}
				if got := activeSockets(t, a, model.TCP, backends); !slices.Equal(got, none) {
					t.Errorf("%s, %s: while connected, %v are counted", algorithm, network, got)
				}
				s.Close()
			}
			wantActive(t, a, network, backends, none)
		}
	}
}

// testActiveUDP: a UDP socket counts for the Service that it has connected to last, or first
// sent to.
func testActiveUDP(t *testing.T, h *lab.Host, a *lab.Agent, network string, to netip.AddrPort, backends []netip.Addr) {
	c := hold(t, h.Namespace, network, to, backends)
	for range 5 {
		before := c.backend
		if err := c.connect(to, backends); err != nil {
			t.Fatal(err)
		}
		if c.backend == before {
			t.Fatalf("connected again to backend %d, which has a connection, and the other has none", before)
		}
		wantActive(t, a, network, backends, []int{1 - c.backend, c.backend})
	}
	if err := c.socket.Connect(netip.AddrPortFrom(backends[0], lab.BackendPort)); err != nil {
		t.Fatal(err)
	}
	wantActive(t, a, network, backends, []int{0, 0})
	if err := c.connect(to, backends); err != nil {
		t.Fatal(err)
	}
	if err := c.socket.Disconnect(); err != nil {
		t.Fatal(err)
	}
	c.socket.Close()
	wantActive(t, a, network, backends, []int{0, 0})

	unconnected := h.Socket(network)
	for range 3 {
		send(t, unconnected, network, to)
		if got := activeSockets(t, a, model.UDP, backends); got[0]+got[1] != 1 {
			t.Fatalf("an unconnected socket is counted as %v", got)
		}
	}
	unconnected.Close()
	wantActive(t, a, network, backends, []int{0, 0})
}

// TestActiveFails: a failed connection is counted until its socket is closed or connects elsewhere,
// also when its slot is in use by another socket.
func TestActiveFails(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{})
	nobody := []netip.Addr{netip.MustParseAddr("127.0.0.9")}
	a.Apply(withAlgorithm("lc", ""), lab.Slice("algorithm", algorithmPorts, nobody...))
	s := h.Socket("tcp4")
	connect := func(to netip.AddrPort) error {
		err := s.Connect(to)
		if err == unix.ECONNABORTED { // of the connection before
			err = s.Connect(to)
		}
		return err
	}
	for range 3 {
		if err := connect(algorithmFrontends[0].to); err != unix.ECONNREFUSED {
			t.Fatalf("connect: %v, want %v", err, unix.ECONNREFUSED)
		}
		wantActive(t, a, "tcp4", nobody, []int{1})
	}
	if err := connect(netip.AddrPortFrom(lab.Backend4(1), lab.BackendPort)); err != nil {
		t.Fatal(err)
	}
	wantActive(t, a, "tcp4", nobody, []int{0})

	h.TakeUDPPlaces()
	for _, end := range []func(*lab.Socket){(*lab.Socket).Close, func(s *lab.Socket) {
		if err := s.Connect(netip.AddrPortFrom(lab.Backend4(1), lab.BackendPort)); err != nil {
			t.Fatal(err)
		}
	}} {
		s := h.Socket("udp4")
		if err := s.Connect(algorithmFrontends[2].to); err != nil {
			t.Fatal(err)
		}
		wantActive(t, a, "udp4", nobody, []int{1})
		end(s)
		wantActive(t, a, "udp4", nobody, []int{0})
	}
}

// TestActiveAffinity: clients with session affinity keep their backend, and are counted.
func TestActiveAffinity(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	backends := backends4(3)
	a.Apply(withAlgorithm("lc", "sessionAffinity: ClientIP,"), lab.Slice("algorithm", algorithmPorts, backends...))
	for _, s := range []int{0, 2} {
		network, to := algorithmFrontends[s].network, algorithmFrontends[s].to
		first := hold(t, h.Namespace, network, to, backends)
		want := make([]int, 3)
		want[first.backend]++
		for range 5 {
			c := hold(t, h.Namespace, network, to, backends)
			want[c.backend]++
			if c.backend != first.backend {
				t.Fatalf("%s: reached %d after %d", network, c.backend, first.backend)
			}
		}
		other := hold(t, h.NewPod(), network, to, backends)
		if other.backend == first.backend {
			t.Errorf("%s: another client reached %d, which has %d connections", network, other.backend, want[other.backend])
		}
		want[other.backend]++
		wantActive(t, a, network, backends, want)
	}
}

// TestActiveGenerations: an endpoint that is removed and added again starts at zero connections, and
// closing its former ones does not change the count.
func TestActiveGenerations(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	backends, to := backends4(2), algorithmFrontends[0].to
	a.Apply(withAlgorithm("lc", ""), lab.Slice("algorithm", algorithmPorts, backends...))
	var old []held
	for range 6 {
		old = append(old, hold(t, h.Namespace, "tcp4", to, backends))
	}
	wantActive(t, a, "tcp4", backends, []int{3, 3})
	a.Apply(lab.Slice("algorithm", algorithmPorts, backends[1]))
	a.Apply(lab.Slice("algorithm", algorithmPorts, backends...))
	wantActive(t, a, "tcp4", backends, []int{0, 3})
	for i := range 3 {
		if c := hold(t, h.Namespace, "tcp4", to, backends); c.backend != 0 {
			t.Fatalf("connection %d reached backend %d", i, c.backend)
		}
	}
	for _, c := range old {
		c.socket.Close()
	}
	wantActive(t, a, "tcp4", backends, []int{3, 0})
}

// TestLeastConnLarge: in a set with more endpoints than one selection compares, each gets connections,
// far more evenly than at random, which would give one endpoint none and another 12.
func TestLeastConnLarge(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	const endpoints, each = 200, 4
	var backends []netip.Addr
	for i := range endpoints {
		backends = append(backends, netip.AddrFrom4([4]byte{100, 64, 0, byte(i)}))
	}
	a.Apply(withAlgorithm("lc", ""), lab.Slice("algorithm", algorithmPorts, backends...))
	for range endpoints * each {
		if err := h.Socket("udp4").Connect(algorithmFrontends[2].to); err != nil {
			t.Fatal(err)
		}
	}
	if got := activeSockets(t, a, model.UDP, backends); slices.Min(got) < each-2 || slices.Max(got) > each+2 {
		t.Errorf("%d connections are shared as %v", endpoints*each, got)
	}
}

// TestLeastConnAtOnce: connections that threads make at the same time do not all select one backend.
func TestLeastConnAtOnce(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	backends := backends4(8)
	a.Apply(withAlgorithm("lc", ""), lab.Slice("algorithm", algorithmPorts, backends...))
	const threads, each = 10, 100
	sockets := make([][]*lab.Socket, threads)
	for i := range threads {
		for range each {
			sockets[i] = append(sockets[i], h.Socket("udp4"))
		}
	}
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i := range threads {
		all.Go(func() {
			<-begin
			for _, s := range sockets[i] {
				if err := s.Connect(algorithmFrontends[2].to); err != nil {
					t.Error(err)
				}
			}
		})
	}
	close(begin)
	all.Wait()
	// Nothing has ended: whoever was chosen with the fewest connections has one more then.
	if got := activeSockets(t, a, model.UDP, backends); slices.Max(got)-slices.Min(got) > 1 {
		t.Errorf("%d connections are shared as %v", threads*each, got)
	}
}

var atRandom = flag.Int("at-random", 100, "how many sockets each thread of TestActiveConcurrent opens or closes in each of its 12 rounds")

// TestActiveConcurrent: sockets that many threads open and close at random, while no agent runs
// and while endpoints come and go, leave the counts at what is open.
func TestActiveConcurrent(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	backends := backends4(8)
	manifests := []string{withAlgorithm("lc", ""), lab.Slice("algorithm", algorithmPorts, backends...)}
	a.Apply(manifests...)
	var open []held
	run := func(meanwhile func()) {
		const threads = 8
		kept := make([][]held, threads)
		var all sync.WaitGroup
		for i := range threads {
			all.Go(func() { kept[i] = openAtRandom(t, h, backends, *atRandom) })
		}
		meanwhile()
		all.Wait()
		open = append(open, slices.Concat(kept...)...)
	}
	run(a.Stop)
	run(func() { a = h.Serve(lab.AgentOptions{Manifests: manifests}) })
	wantHeld(t, a, backends, open)
	// The last ones leave: what is open at the others is counted.
	for i := range 10 {
		run(func() { a.Apply(lab.Slice("algorithm", algorithmPorts, backends[:4+i%4]...)) })
	}
	stay := slices.DeleteFunc(slices.Clone(open), func(c held) bool { return c.backend >= 4 })
	wantHeld(t, a, backends[:4], stay)
	for _, c := range open {
		c.socket.Close()
	}
	wantHeld(t, a, backends, nil)
}

func wantHeld(t *testing.T, a *lab.Agent, backends []netip.Addr, open []held) {
	t.Helper()
	for _, network := range []string{"tcp4", "udp4"} {
		want := make([]int, len(backends))
		for _, c := range open {
			if c.network == network {
				want[c.backend]++
			}
		}
		wantActive(t, a, network, backends, want)
	}
}

// openAtRandom connects sockets and closes some of them; it returns those that stay open.
func openAtRandom(t *testing.T, h *lab.Host, backends []netip.Addr, times int) (open []held) {
	for range times {
		if rand.IntN(2) == 0 && len(open) > 0 {
			i := rand.IntN(len(open))
			open[i].socket.Close()
			open = slices.Delete(open, i, i+1)
			continue
		}
		s := algorithmFrontends[2*rand.IntN(2)]
		c := held{h.Socket(s.network), s.network, -1}
		if err := c.connect(s.to, backends); err != nil {
			t.Error(err)
			return open
		}
		open = append(open, c)
	}
	return open
}

// TestCountedRandom: the connections to a Service with zone spill-over are counted, and spread by weight as
// without.
func TestCountedRandom(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	weights, ends := []int{1, 4, 0, 5}, []int{6, 24, 0, 30}
	service := func(fields string) string {
		return strings.Replace(withAlgorithm("20%", fields), "io/algorithm", "io/zone-spill-over", 1)
	}
	slices4, slices6 := weighted(weights, backends4(len(weights))), weighted(weights, backends6(len(weights)))
	a.Apply(append(slices.Concat(slices4, slices6), service(""))...)
	for _, s := range algorithmFrontends {
		backends, active := backendsOf(s.network, len(weights)), make([]int, len(weights))
		var open []held
		for range 60 {
			c := hold(t, h.Namespace, s.network, s.to, backends)
			active[c.backend]++
			open = append(open, c)
		}
		for i, n := range active {
			if n < ends[i]/2 || n > ends[i]*3/2 {
				t.Errorf("%s: %v of 60 connections, want about %v", s.network, active, ends)
				break
			}
		}
		wantActive(t, a, s.network, backends, active)
		for _, c := range open {
			c.socket.Close()
		}
		wantActive(t, a, s.network, backends, make([]int, len(weights)))
	}
	a.Apply(append(slices.Concat(slices4, slices6), service("sessionAffinity: ClientIP,"))...)
	backends, active := backendsOf("tcp4", len(weights)), make([]int, len(weights))
	for range 5 {
		active[hold(t, h.Namespace, "tcp4", algorithmFrontends[0].to, backends).backend]++
	}
	if slices.Max(active) != 5 {
		t.Errorf("with session affinity, connections are with %v", active)
	}
	wantActive(t, a, "tcp4", backends, active)
}
