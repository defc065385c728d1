package netns_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// farDelay is on the way to a far backend and back.
const farDelay = 10 * time.Millisecond

// newFarPod makes a pod behind a link with farDelay, with a backend at each of the addresses.
func newFarPod(h *lab.Host, addrs ...string) {
	far := h.NewBarePod()
	h.AddTUN("far", far, farDelay/2)
	for _, gateway := range []string{"10.89.0.1", "fd89::1"} {
		bits := map[bool]string{true: "/24", false: "/64"}[strings.Contains(gateway, ".")]
		h.AddAddr("far", gateway+bits)
	}
	for _, addr := range addrs {
		bits := map[bool]string{true: "/24", false: "/64"}[strings.Contains(addr, ".")]
		far.AddAddr("far", addr+bits)
		far.ServeTCP(netip.AddrPortFrom(netip.MustParseAddr(addr), lab.BackendPort))
		far.ServeUDP(netip.AddrPortFrom(netip.MustParseAddr(addr), lab.BackendPort))
	}
}

// rtts returns the round-trip times to backends that ewma goes by, 0 where none is known.
func rtts(t *testing.T, a *lab.Agent, backends []netip.Addr) []time.Duration {
	t.Helper()
	list := make([]time.Duration, len(backends))
	now, err := bpf.Clock()
	if err != nil {
		t.Fatal(err)
	}
	have, err := a.Services().Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for id, b := range have.Backends {
		if i := slices.Index(backends, b.AddrPort.Addr()); i >= 0 && have.Names[b.Service].Port.Protocol == model.TCP {
			list[i] = flowmap.New(a.Maps()).RTT(id, b.Generation, now)
		}
	}
	return list
}

// sooner returns which of two backends ewma may choose.
func sooner(rtts []time.Duration, active []int) []int {
	first, second := 1+active[0], 1+active[1]
	if rtts[0] > 0 && rtts[1] > 0 {
		first, second = first*int(rtts[0]), second*int(rtts[1])
	}
	switch {
	case first < second:
		return []int{0}
	case second < first:
		return []int{1}
	}
	return []int{0, 1}
}

// TestEWMA: of two backends the one gets a connection that has the lower round-trip time, times its
// connections, as far as known; also with another agent. What is known ages.
func TestEWMA(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	newFarPod(h, "10.89.0.2", "fd89::2")
	manifests := []string{
		withAlgorithm("ewma", ""),
		lab.Slice("algorithm", algorithmPorts, lab.Backend4(1), netip.MustParseAddr("10.89.0.2")),
		lab.Slice("algorithm", algorithmPorts, lab.Backend6(1), netip.MustParseAddr("fd89::2")),
	}
	a.Apply(manifests...)
	frontends := algorithmFrontends[:2]
	if tier.Brief(t) {
		frontends = frontends[:1]
	}
	for _, s := range frontends {
		backends := []netip.Addr{lab.Backend4(1), netip.MustParseAddr("10.89.0.2")}
		if s.to.Addr().Is6() {
			backends = []netip.Addr{lab.Backend6(1), netip.MustParseAddr("fd89::2")}
		}
		var open []held
		active := []int{0, 0}
		connect := func() {
			t.Helper()
			before := rtts(t, a, backends)
			c := hold(t, h.Namespace, s.network, s.to, backends)
			after := rtts(t, a, backends) // halved, perhaps
			if allowed := append(sooner(before, active), sooner(after, active)...); !slices.Contains(allowed, c.backend) {
				t.Fatalf("%s: with %v active and round-trip times of %v a connection reached %d", s.network, active, before, c.backend)
			}
			active[c.backend]++
			open = append(open, c)
		}
		end := func() {
			t.Helper()
			for _, c := range open {
				c.socket.Close()
			}
			open, active = nil, []int{0, 0}
			wantActive(t, a, s.network, backends, active)
		}

		var longest time.Duration
		for range 20 { // the first two are of backends that are not known
			start := time.Now()
			connect()
			connect()
			end()
			longest = max(longest, time.Since(start))
		}
		if got := rtts(t, a, backends); got[0] == 0 || got[1] < farDelay/16 || got[1] > longest {
			t.Errorf("%s: round-trip times of %v, the second with %s on the way, of connections of up to %s", s.network, got, farDelay, longest)
		}

		known := map[netip.Addr]time.Duration{backends[0]: time.Millisecond, backends[1]: 3500 * time.Microsecond}
		for i := range 30 {
			noted := time.Now()
			lab.NoteRTTs(t, a.Maps(), known, 0) // else a slow machine has forgotten them before the end
			connect()
			if i == 10 {
				a.Stop()
				a = h.Serve(lab.AgentOptions{Manifests: manifests})
				got := rtts(t, a, backends)
				if time.Since(noted) < time.Minute && (got[0] == 0 || got[1] == 0) {
					t.Errorf("%s: round-trip times of %v with another agent", s.network, got)
				}
			}
		}
		if active[0] < 20 || active[0] > 26 {
			t.Errorf("%s: %v of 30 connections with round-trip times of %v", s.network, active, known)
		}
		end()

		lab.NoteRTTs(t, a.Maps(), known, time.Hour)
		if got := rtts(t, a, backends); got[0] != 0 || got[1] != 0 {
			t.Errorf("%s: after an hour the round-trip times are %v", s.network, got)
		}
		connect()
		connect()
		if !slices.Equal(active, []int{1, 1}) {
			t.Errorf("%s: %v connections of two backends that are not known", s.network, active)
		}
		end()
	}
}

// TestEWMAFails: a backend that refuses connections, quickly, is not the one with the least load.
func TestEWMAFails(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	for i, s := range algorithmFrontends[:2] {
		backends := [][]netip.Addr{{lab.Backend4(1), netip.MustParseAddr("127.0.0.9")}, {lab.Backend6(1), lab.Node6}}[i]
		a.Apply(withAlgorithm("ewma", ""), lab.Slice("algorithm", algorithmPorts, backends...))
		try := func() bool {
			socket := h.Socket(s.network)
			defer socket.Close()
			err := socket.Connect(s.to)
			if err != nil && err != unix.ECONNREFUSED {
				t.Fatal(err)
			}
			return err == nil
		}
		lab.Eventually(t, "both backends are known", func() bool {
			try()
			got := rtts(t, a, backends)
			return got[0] > 0 && got[1] > 0
		})
		for i := range 50 {
			if !try() {
				t.Fatalf("%s: connection %d was refused, with %v", s.network, i, rtts(t, a, backends))
			}
		}
	}
}

// TestEWMADisconnected: a connection that its process dissolves is not one that has failed.
func TestEWMADisconnected(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	for i, s := range algorithmFrontends[:2] {
		backends := []netip.Addr{[]netip.Addr{lab.Backend4(1), lab.Backend6(1)}[i]}
		a.Apply(withAlgorithm("ewma", ""), lab.Slice("algorithm", algorithmPorts, backends...))
		c := hold(t, h.Namespace, s.network, s.to, backends)
		if err := c.socket.Disconnect(); err != nil {
			t.Fatal(err)
		}
		c.socket.Close()
		wantActive(t, a, s.network, backends, []int{0})
		if got := rtts(t, a, backends); got[0] != 0 {
			t.Errorf("%s: a round-trip time of %s, want none", s.network, got[0])
		}
	}
}

// TestEWMAWeights: a backend of weight 0 gets none, one of more weight more; UDP, which has no
// round-trip time, is balanced by active connections.
func TestEWMAWeights(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	weights := []int{1, 0, 1, 4}
	a.Apply(append(append(weighted(weights, backends4(4)), weighted(weights, backends6(4))...), withAlgorithm("ewma", ""))...)
	for _, s := range algorithmFrontends {
		backends := backendsOf(s.network, 4)
		var open []held
		reached := make([]int, 4)
		for range 120 {
			c := hold(t, h.Namespace, s.network, s.to, backends)
			reached[c.backend]++
			open = append(open, c)
		}
		if reached[1] != 0 || reached[0] < 10 || reached[2] < 10 || reached[3] <= max(reached[0], reached[2]) {
			t.Errorf("%s: %v connections by weights %v", s.network, reached, weights)
		}
		for _, c := range open {
			c.socket.Close()
		}
		wantActive(t, a, s.network, backends, make([]int, 4))
	}
}
