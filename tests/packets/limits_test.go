package packets_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/tests/lab"
)

// TestSourcePortsRunOut: four connections to one endpoint on another node have the same source port,
// which is not ephemeral, and SNAT has a range of two ports. One keeps its port, two get those of
// the range, and the fourth finds none; the others go on.
func TestSourcePortsRunOut(t *testing.T) {
	t.Parallel()
	c, a := serveCluster(t, func(c *cluster) []string {
		return c.service(1, "web", "", []endpoint{remote})
	}, "--snat-port-range", "61000-61001")
	for i, network := range networks {
		port := uint16(21000 + i)
		var open []*lab.Socket
		seen := make(map[uint16]bool)
		for _, f := range frontends[:3] {
			s, hello := connectFrom(t, c.client, network, port, netip.AddrPortFrom(f.address(1).of(network), uint16(f.port(1))))
			open, seen[hello.client.Port()] = append(open, s), true
		}
		if !seen[port] || !seen[61000] || !seen[61001] {
			t.Errorf("%s: source ports %v, want %d, 61000 and 61001", network, seen, port)
		}
		before := eventCount(t, a.node, "no_source_port")
		f, fourth := frontends[3], boundSocket(t, c.client, network, port)
		to := netip.AddrPortFrom(f.address(1).of(network), uint16(f.port(1)))
		next := &asked{name: "without a source port", network: network, port: port, to: to}
		c.explainAll(t, []*asked{next})
		last := next.said.Steps[len(next.said.Steps)-1]
		if last.Result != "no_source_port, connections of the Service port" { // the backend had been chosen
			t.Errorf("%s: explained as %+v", network, next.said.Steps)
		}
		if err := c.silentBy(fourth, c.client, network, to); !errors.Is(err, lab.ErrNothing) {
			t.Errorf("%s without a source port: %v, want no answer", network, err)
		}
		again := func() error {
			if strings.HasPrefix(network, "tcp") {
				return nil // the kernel sends SYNs again
			}
			return fourth.Send("hello")
		}
		sendUntil(t, network+": a packet is counted as one without a source port", again, func() bool {
			return eventCount(t, a.node, "no_source_port") > before
		})
		for _, s := range open {
			if err := goesOn(s, network); err != nil {
				t.Errorf("%s: %v", network, err)
			}
		}
	}
}

// eventCount returns a counter of a node's programs.
func eventCount(t *testing.T, n *node, name string) uint64 {
	t.Helper()
	return withMaps(t, n, func(maps *bpfmap.Maps) uint64 {
		reasons, err := statusmap.New(maps).Reasons()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range reasons {
			if r.Name == name {
				return r.Count
			}
		}
		t.Fatalf("no counter %s", name)
		return 0
	})
}

// TestAffinityEnds: a client keeps its backend while it reconnects within the affinity timeout, and
// not after it.
func TestAffinityEnds(t *testing.T) {
	t.Parallel()
	endpoints := []endpoint{local, otherLocal, remote, otherRemote}
	c, _ := serveCluster(t, func(c *cluster) []string {
		return c.service(1, "sticky", "sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 2}},", endpoints)
	})
	reached := func() string {
		got, err := ask(c.client, "tcp4", nodePort("tcp4", 1), "x")
		if err != nil {
			t.Fatal(err)
		}
		return got.name
	}
	began := time.Now() // before the last connection
	last := reached()
	for range 8 {
		time.Sleep(500 * time.Millisecond)
		next := time.Now()
		got := reached()
		idle := time.Since(began)
		began = next
		if idle < 1900*time.Millisecond && got != last {
			t.Errorf("%s after %s, at most %s after the last connection", got, last, idle)
		}
		last = got
	}
	const tries = 20
	for range tries {
		time.Sleep(2100 * time.Millisecond)
		if reached() != last {
			return
		}
	}
	t.Errorf("%s %d times, each after the time-out", last, tries)
}
