package netns_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/maglev"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

const algorithmPorts = "web:8080/TCP,dns:8080/UDP"

// algorithmFrontends are the addresses of the Service of withAlgorithm.
var algorithmFrontends = []struct {
	network string
	to      netip.AddrPort
}{
	{"tcp4", ap("10.96.0.40:80")}, {"tcp6", ap("[fd96::40]:80")},
	{"udp4", ap("10.96.0.40:53")}, {"udp6", ap("[fd96::40]:53")},
}

// withAlgorithm returns a Service of both families with an algorithm and further fields of its
// spec.
func withAlgorithm(algorithm, fields string) string {
	return annotate(lab.Service("algorithm", `{clusterIPs: [10.96.0.40, "fd96::40"], `+fields+
		` ports: [{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}]}`), "", "algorithm", algorithm)
}

// annotate adds an annotation to a manifest, and a suffix to the object's name.
func annotate(manifest, suffix, key, value string) string {
	annotations := fmt.Sprintf("annotations: {service.beeline.io/%s: %q}", key, value)
	manifest = strings.Replace(manifest, "namespace: default}", "namespace: default, "+annotations+"}", 1)
	return strings.Replace(manifest, "\n  namespace: default\n", suffix+"\n  namespace: default\n  "+annotations+"\n", 1)
}

// weighted returns a slice of one endpoint for each weight.
func weighted(weights []int, addrs []netip.Addr) (list []string) {
	for i, w := range weights {
		list = append(list, annotate(lab.Slice("algorithm", algorithmPorts, addrs[i]), fmt.Sprint("-", i), "weight", fmt.Sprint(w)))
	}
	return list
}

// sequence returns the numbers of the backends that sockets reach one after the
// other, all from one CPU.
func sequence(n *lab.Namespace, network string, to netip.AddrPort, backends []netip.Addr, times int) (list []int, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the thread ends here
		var cpu unix.CPUSet
		cpu.Set(0)
		if err = unix.SchedSetaffinity(0, &cpu); err != nil {
			return
		}
		for range times {
			var got netip.AddrPort
			if got, err = n.Reach(network, to); err != nil {
				return
			}
			list = append(list, slices.Index(backends, got.Addr()))
		}
	}()
	<-done
	return list, err
}

// TestRoundRobin: connections of one CPU go to the backends in the same order in each cycle, to
// each backend as often as its weight says.
func TestRoundRobin(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	for _, tt := range []struct {
		algorithm string
		weights   []int
		cycle     []int
	}{
		{"rr", []int{1, 1, 1}, []int{0, 1, 2}},
		{"rr", []int{2, 0, 5}, []int{0, 2}},
		{"wrr", []int{5, 1, 1}, []int{0, 0, 1, 0, 2, 0, 0}},
		{"wrr", []int{0, 20, 10}, []int{1, 2, 1}},
	} {
		a.Apply(append(append(weighted(tt.weights, backends4(3)), weighted(tt.weights, backends6(3))...), withAlgorithm(tt.algorithm, ""))...)
		for _, s := range algorithmFrontends {
			backends := backends4(3)
			if s.to.Addr().Is6() {
				backends = backends6(3)
			}
			got, err := sequence(h.Namespace, s.network, s.to, backends, 3*len(tt.cycle))
			if err != nil {
				t.Fatalf("%s %v, %s, after %v: %v", tt.algorithm, tt.weights, s.network, got, err)
			}
			if !repeats(got, tt.cycle) {
				t.Errorf("%s %v, %s: reached %v, want cycles of %v", tt.algorithm, tt.weights, s.network, got, tt.cycle)
			}
		}
	}
}

// repeats reports whether got repeats cycle, from any place in it.
func repeats(got, cycle []int) bool {
	endless := slices.Repeat(cycle, len(got)/len(cycle)+1)
	for i := range cycle {
		if slices.Equal(endless[i:i+len(got)], got) {
			return true
		}
	}
	return false
}

// TestHashes: all sockets of a pod reach the backend at the slot that the hash of the pod's address
// (sh) or the Service's (dh) selects.
func TestHashes(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	for _, algorithm := range []string{"sh", "dh"} {
		a.Apply(withAlgorithm(algorithm, ""), lab.Slice("algorithm", algorithmPorts, backends4(8)...), lab.Slice("algorithm", algorithmPorts, backends6(8)...))
		for _, s := range algorithmFrontends {
			ring := ringOf(backends4(8))
			if s.to.Addr().Is6() {
				ring = ringOf(backends6(8))
			}
			for _, pod := range []*lab.Namespace{h.Pod, h.NewPod(), h.NewPod()} {
				hashed := s.to.Addr()
				if algorithm == "sh" {
					hashed = sourceOf(t, pod, s.network, s.to)
				}
				want := ring[lab.Hash(0).Addr(hashed).Slot(len(ring))]
				for range 5 {
					if got := mustReach(t, pod, s.network, s.to); got != want {
						t.Fatalf("%s, %s from %s: reached %s, want %s", algorithm, s.network, hashed, got, want)
					}
				}
			}
		}
	}
}

// sourceOf returns the address that a connection of a namespace has.
func sourceOf(t *testing.T, n *lab.Namespace, network string, to netip.AddrPort) netip.Addr {
	t.Helper()
	s := n.Socket(network)
	defer s.Close()
	if err := s.Connect(to); err != nil {
		t.Fatal(err)
	}
	self, err := s.Local()
	if err != nil {
		t.Fatal(err)
	}
	return self.Addr()
}

func ringOf(addrs []netip.Addr) (ring []netip.AddrPort) {
	var list []maglev.Backend
	for _, addr := range addrs {
		list = append(list, maglev.Backend{AddrPort: netip.AddrPortFrom(addr, 8080), Weight: 1})
	}
	for _, b := range maglev.Ring(maglev.Size(len(list)), list) {
		ring = append(ring, list[b].AddrPort)
	}
	return ring
}

// TestBoundSource: sh hashes the address that a socket is bound to.
func TestBoundSource(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	a.Apply(withAlgorithm("sh", ""), lab.Slice("algorithm", algorithmPorts, backends4(8)...))
	ring, to := ringOf(backends4(8)), algorithmFrontends[0].to
	for _, source := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"} {
		s := h.Socket("tcp4")
		if err := s.Bind(ap(source + ":0")); err != nil {
			t.Fatal(err)
		}
		if err := s.Connect(to); err != nil {
			t.Fatal(err)
		}
		got, _, err := s.Receive()
		if want := ring[lab.Hash(0).Addr(ap(source+":0").Addr()).Slot(len(ring))]; err != nil || got != want.String() {
			t.Errorf("from %s: reached %s, %v, want %s", source, got, err, want)
		}
	}
}

// TestMaglevSockets: the sockets of one pod are balanced over the whole ring.
func TestMaglevSockets(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	a.Apply(withAlgorithm("maglev", ""), lab.Slice("algorithm", algorithmPorts, backends4(4)...), lab.Slice("algorithm", algorithmPorts, backends6(4)...))
	for _, s := range algorithmFrontends {
		count := make(map[netip.AddrPort]int)
		for range 80 {
			count[mustReach(t, h.Namespace, s.network, s.to)]++
		}
		for _, n := range count {
			if len(count) != 4 || n < 5 {
				t.Errorf("%s: reached %v, want each of 4 often", s.network, count)
				break
			}
		}
	}
}

// TestNoWeight: an endpoint whose weight becomes 0 gets no new connection, not even of
// a client with affinity, and keeps an unconnected socket.
func TestNoWeight(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	backends, to := backends4(3), algorithmFrontends[0].to
	a.Apply(append(weighted([]int{1, 1, 1}, backends), withAlgorithm("random", "sessionAffinity: ClientIP,"))...)
	first := mustReach(t, h.Namespace, "tcp4", to)
	udp := h.Socket("udp4")
	kept := send(t, udp, "udp4", algorithmFrontends[2].to)

	weights := []int{1, 1, 1}
	weights[slices.Index(backends, first.Addr())] = 0
	weights[slices.Index(backends, kept.Addr())] = 0
	a.Apply(weighted(weights, backends)...)
	for range 10 {
		if got := mustReach(t, h.Namespace, "tcp4", to); weights[slices.Index(backends, got.Addr())] == 0 {
			t.Fatalf("a new connection went to %s, which has no weight", got)
		}
	}
	if got := send(t, udp, "udp4", algorithmFrontends[2].to); got != kept {
		t.Errorf("the unconnected socket went to %s, after %s", got, kept)
	}

	a.Apply(weighted([]int{0, 0, 0}, backends)...)
	wantFailure(t, h.Namespace, "tcp4", to, unix.ECONNREFUSED)
	if got := send(t, udp, "udp4", algorithmFrontends[2].to); got != kept {
		t.Errorf("the unconnected socket went to %s, after %s", got, kept)
	}
}
