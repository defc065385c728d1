package netns_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestOutliers: connections of sockets that are refused eject the endpoint, of each family by itself;
// those that are answered do not.
func TestOutliers(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{Outliers: model.Outliers{Failures: 4, Time: time.Hour, Percent: 50}})
	for _, silent := range []string{"10.77.0.9/32", "fd77::9/128"} {
		h.AddAddr("lo", silent) // where nobody listens
	}
	a.Apply(dual,
		lab.Slice("dual", "web:8080/TCP,dns:8080/UDP", append(backends4(2), netip.MustParseAddr("10.77.0.9"))...),
		lab.Slice("dual", "web:8080/TCP,dns:8080/UDP", append(backends6(2), netip.MustParseAddr("fd77::9"))...))
	for i, network := range []string{"tcp4", "tcp6"} {
		to, left := dualTCP4, backends4(2)
		if network == "tcp6" {
			to, left = dualTCP6, backends6(2)
		}
		refused := 0
		lab.Eventually(t, fmt.Sprintf("%s: an endpoint is ejected", network), func() bool {
			_, err := h.Reach(network, to)
			if errors.Is(err, unix.ECONNREFUSED) {
				refused++
			} else if err != nil {
				t.Fatal(err)
			}
			return ejected(t, a) == i+1
		})
		if refused < 4 {
			t.Errorf("%s: after %d refused connections", network, refused)
		}
		wantBalanced(t, h.Namespace, network, to, left...)
	}
}

// TestOutlierOfADissolvedConnection: a process dissolves a connection before the endpoint has
// answered, and uses its socket again. What becomes of the next connection is told of where that goes.
func TestOutlierOfADissolvedConnection(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{Outliers: model.Outliers{Failures: 100, Time: time.Hour, Percent: 50}})
	for _, refusing := range []string{"10.77.0.9/32", "fd77::9/128"} {
		h.AddAddr("lo", refusing) // where nobody listens
	}
	// Nobody on the link has these.
	silent := []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")}
	closed := []netip.Addr{netip.MustParseAddr("10.77.0.9"), netip.MustParseAddr("fd77::9")}
	a.Apply(dual, lab.Slice("dual", "web:8080/TCP", silent[0]), lab.Slice("dual", "web:8080/TCP", silent[1]),
		lab.Service("closed", `{clusterIPs: [10.96.0.9, "fd96::9"], ports: [{port: 80}]}`),
		lab.Slice("closed", "8080/TCP", closed[0]), lab.Slice("closed", "8080/TCP", closed[1]))
	failures := func(backend netip.Addr) uint32 {
		have, err := a.Services().Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		for id, b := range have.Backends {
			if b.AddrPort.Addr() == backend {
				return a.Services().Outlier(id, b.Generation).Failures
			}
		}
		t.Fatalf("no backend %s", backend)
		return 0
	}
	for i, network := range []string{"tcp4", "tcp6"} {
		for _, next := range []struct {
			to   netip.AddrPort
			told uint32 // of closed
		}{
			{netip.AddrPortFrom(closed[i], 8080), 0},
			{[]netip.AddrPort{ap("10.96.0.9:80"), ap("[fd96::9]:80")}[i], 1},
		} {
			s := h.Socket(network)
			for {
				began, before := time.Now(), failures(silent[i])
				if err := s.StartConnect([]netip.AddrPort{dualTCP4, dualTCP6}[i]); err != nil {
					t.Fatalf("%s: connect: %v", network, err)
				}
				if err := s.Disconnect(); err != nil {
					t.Fatal(err)
				}
				if time.Since(began) > time.Second {
					continue // its SYN may have been sent again, which is told
				}
				told := failures(closed[i])
				if err := s.Connect(next.to); !errors.Is(err, unix.ECONNREFUSED) {
					t.Fatalf("%s: connect to %s: %v", network, next.to, err)
				}
				if got := failures(closed[i]) - told; got != next.told {
					t.Errorf("%s, then to %s: %d failures are told of its endpoint, want %d", network, next.to, got, next.told)
				}
				if got := failures(silent[i]); got != before {
					t.Errorf("%s, then to %s: %d failures more are told of the endpoint before", network, next.to, got-before)
				}
				break
			}
		}
	}
}

// ejected returns how many endpoints get no connections.
func ejected(t *testing.T, a *lab.Agent) int {
	t.Helper()
	have, err := a.Services().Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for id, b := range have.Backends {
		if a.Services().Outlier(id, b.Generation).Until != 0 && b.Weight == 0 {
			count++
		}
	}
	return count
}

// TestFlappingEndpoint: under load, an endpoint whose process ends and comes back, again and again, is
// ejected each time; then only the connections that try it fail. It serves again each time that it is back, and
// no connection is counted in the end. By lc, which sends all connections to an endpoint that ends each at once.
func TestFlappingEndpoint(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	const flaps, clients, ejection = 3, 4, time.Second
	h, a := newHost(t, lab.AgentOptions{Outliers: model.Outliers{Failures: 3, Time: ejection, Percent: 50}})
	flapping := ap("10.77.0.9:8080")
	h.AddAddr("lo", "10.77.0.9/32")
	backends := append(backends4(2), flapping.Addr())
	a.Apply(withAlgorithm("lc", ""), lab.Slice("algorithm", algorithmPorts, backends...))

	var failed, answered, flapped atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	defer load.Wait()
	defer stop()
	end := h.ServeTCPUntil(flapping)
	for range clients {
		load.Go(func() {
			for pause.For(ctx, 4*time.Millisecond) { // else they take the whole machine
				switch at, err := h.Reach("tcp4", algorithmFrontends[0].to); {
				case err != nil:
					failed.Add(1)
				case at == flapping:
					flapped.Add(1)
				default:
					answered.Add(1)
				}
			}
		})
	}
	for flap := range flaps {
		more := func(what string, count *atomic.Int64, n int64) {
			t.Helper()
			want := count.Load() + n
			lab.Eventually(t, fmt.Sprintf("time %d: %d connections more %s", flap, n, what), func() bool { return count.Load() >= want })
		}
		more("to the endpoint", &flapped, 10)
		end()
		lab.Eventually(t, fmt.Sprintf("time %d: the endpoint is ejected", flap), func() bool { return ejected(t, a) == 1 })
		start, before := time.Now(), failed.Load()
		more("to the others", &answered, 200)
		// Those that had begun before, and one each time that it is tried.
		if n, most := failed.Load()-before, clients+1+int64(time.Since(start)/ejection); n > most {
			t.Errorf("time %d: %d connections have failed while the endpoint was ejected, want at most %d", flap, n, most)
		}
		end = h.ServeTCPUntil(flapping)
	}
	lab.Eventually(t, "the endpoint serves", func() bool { return ejected(t, a) == 0 })
	stop()
	load.Wait()
	wantActive(t, a, "tcp4", backends, make([]int, len(backends)))
}
