package netns_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// sticky is a Service with session affinity and its frontends.
func sticky(seconds int) string {
	return lab.Service("sticky", fmt.Sprintf(`{type: NodePort, clusterIPs: [10.96.0.20, "fd96::20"], sessionAffinity: ClientIP,`+
		` sessionAffinityConfig: {clientIP: {timeoutSeconds: %d}},`+
		` ports: [{name: web, port: 80, nodePort: 30020}, {name: dns, port: 53, protocol: UDP, nodePort: 30020}]}`, seconds))
}

const stickyPorts = "web:8080/TCP,dns:8080/UDP"

var stickyTCP, stickyUDP = ap("10.96.0.20:80"), ap("10.96.0.20:53")

// TestAffinity: a network namespace stays with one backend of a Service port,
// whichever address, socket and system call it uses.
func TestAffinity(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	a.Apply(sticky(10800), lab.Slice("sticky", stickyPorts, backends4(8)...), lab.Slice("sticky", stickyPorts, backends6(8)...))
	first := mustReach(t, h.Namespace, "tcp4", stickyTCP)
	for range 20 {
		for _, c := range []struct {
			network string
			to      netip.AddrPort
		}{
			{"tcp4", stickyTCP},
			{"tcp6", stickyTCP},
			{"tcp4", netip.AddrPortFrom(lab.Node4, 30020)},
			{"tcp4", ap("127.0.0.1:30020")},
		} {
			if got := mustReach(t, h.Namespace, c.network, c.to); got != first {
				t.Fatalf("%s to %s went to %s, after %s", c.network, c.to, got, first)
			}
		}
	}
	t.Run("UDP", func(t *testing.T) {
		first := mustReach(t, h.Namespace, "udp4", stickyUDP)
		for range 20 {
			if got := mustReach(t, h.Namespace, "udp4", stickyUDP); got != first {
				t.Fatalf("a connected socket went to %s, after %s", got, first)
			}
			if got := send(t, h.Socket("udp6"), "udp6", stickyUDP); got != first {
				t.Fatalf("an unconnected socket went to %s, after %s", got, first)
			}
		}
	})
	t.Run("per namespace", func(t *testing.T) {
		seen := map[netip.AddrPort]bool{}
		for range 30 {
			seen[mustReach(t, h.NewPod(), "tcp4", stickyTCP)] = true
		}
		if len(seen) < 2 {
			t.Errorf("30 namespaces all reached %v", seen)
		}
	})
}

// TestAffinityList: clients on this node and outside are listed once each, with the backend of their
// next connection, also those that have yet to establish one.
func TestAffinityList(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{Devices: []string{lab.Uplink}})
	silent := lab.Service("silent", `{type: NodePort, clusterIP: 10.96.0.21, sessionAffinity: ClientIP, ports: [{port: 53, protocol: UDP, nodePort: 30021}]}`)
	a.Apply(sticky(10800), lab.Slice("sticky", stickyPorts, backends4(8)...), lab.Slice("sticky", stickyPorts, backends6(8)...),
		silent, lab.Slice("silent", "9/UDP", backends4(1)...))
	clients := map[string]netip.AddrPort{ // those of packets with the NodePort that they use
		lab.Outside4.String(): netip.AddrPortFrom(lab.Node4, 30020),
		lab.Outside6.String(): netip.AddrPortFrom(lab.Node6, 30020),
	}
	want := []string{fmt.Sprintf("%s default/silent %s:9", lab.Outside4, lab.Backend4(1))}
	for client, to := range clients {
		network := "tcp4"
		if to.Addr().Is6() {
			network = "tcp6"
		}
		want = append(want, fmt.Sprintf("%s default/sticky:web %s", client, mustReach(t, h.Outside, network, to)))
	}
	want = append(want, fmt.Sprintf("netns:%d default/sticky:web %s", uint32(h.Cookie()), mustReach(t, h.Namespace, "tcp4", stickyTCP)))
	s := h.Outside.Socket("udp4")
	defer s.Close()
	if err := s.SendTo("nobody answers", netip.AddrPortFrom(lab.Node4, 30021)); err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	var list []inspect.Affinity
	lab.Eventually(t, "the datagram is there", func() bool {
		var err error
		if list, err = inspect.Read(h.BPFFS, func(d *inspect.Datapath) ([]inspect.Affinity, error) { return d.Affinities(true) }); err != nil {
			t.Fatal(err)
		}
		return len(list) >= len(want)
	})
	var got []string
	for _, a := range list {
		if a.State != inspect.AffinityValid || a.RemainingSeconds == 0 || a.Backend == nil {
			t.Errorf("%+v", a)
			continue
		}
		got = append(got, fmt.Sprintf("%s %s %s", a.Client, a.Service, netip.AddrPortFrom(a.Backend.Address, a.Backend.TargetPort)))
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("listed are %q, want %q", got, want)
	}
}

// TestAffinityExpires: affinity ends one timeout after the last connection.
// [TestAffinityClock] measures it to the second.
func TestAffinityExpires(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	const seconds = 7200
	a.Apply(sticky(seconds), lab.Slice("sticky", stickyPorts, backends4(8)...))
	last := mustReach(t, h.Namespace, "tcp4", stickyTCP)
	for range 20 {
		h.AgeAffinity(seconds*time.Second - wait.Limit) // a slow machine ages it, too
		if got := mustReach(t, h.Namespace, "tcp4", stickyTCP); got != last {
			t.Fatalf("%s after %s within the time-out", got, last)
		}
	}
	seen := map[netip.AddrPort]bool{}
	for range 40 {
		h.AgeAffinity(seconds * time.Second)
		seen[mustReach(t, h.Namespace, "tcp4", stickyTCP)] = true
	}
	if len(seen) < 2 {
		t.Errorf("only %v after the time-out", seen)
	}
}

// TestAffinityClock: the timeout is measured in real time, and each connection restarts it.
func TestAffinityClock(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	a.Apply(sticky(1), lab.Slice("sticky", stickyPorts, backends4(8)...))
	began := time.Now() // before the last connection
	last := mustReach(t, h.Namespace, "tcp4", stickyTCP)
	for range 4 {
		time.Sleep(600 * time.Millisecond)
		next := time.Now()
		got := mustReach(t, h.Namespace, "tcp4", stickyTCP)
		idle := time.Since(began)
		began = next
		if idle < 990*time.Millisecond && got != last {
			t.Errorf("%s after %s, at most %s after the last connection", got, last, idle)
		}
		last = got
	}
	for range 6 {
		time.Sleep(1010 * time.Millisecond)
		if mustReach(t, h.Namespace, "tcp4", stickyTCP) != last {
			return
		}
	}
	t.Error("the same backend 6 times, each a second after the last connection")
}

// TestAffinityVoid: affinity ends when the backend is removed, and does not return with it.
func TestAffinityVoid(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	a.Apply(sticky(10800), lab.Slice("sticky", stickyPorts, backends4(8)...))
	for range 20 {
		first := mustReach(t, h.Namespace, "tcp4", stickyTCP)
		var rest []netip.Addr
		for _, b := range backends4(8) {
			if b != first.Addr() {
				rest = append(rest, b)
			}
		}
		a.Apply(lab.Slice("sticky", stickyPorts, rest...))
		second := mustReach(t, h.Namespace, "tcp4", stickyTCP)
		if second == first {
			t.Fatalf("still at %s, which has left", first)
		}
		a.Apply(lab.Slice("sticky", stickyPorts, backends4(8)...))
		if got := mustReach(t, h.Namespace, "tcp4", stickyTCP); got != second {
			t.Fatalf("went from %s to %s when %s came back", second, got, first)
		}
	}
}

// TestAffinityKeptOverChanges: clients keep their backend when other endpoints or the affinity
// timeout change.
func TestAffinityKeptOverChanges(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	a.Apply(sticky(10800), lab.Slice("sticky", stickyPorts, backends4(8)...))
	first := mustReach(t, h.Namespace, "tcp4", stickyTCP)
	for i := range 20 {
		others := []netip.Addr{first.Addr()}
		for _, b := range backends4(8) {
			if b != first.Addr() && (int(b.As4()[3])+i)%3 > 0 {
				others = append(others, b)
			}
		}
		a.Apply(sticky(10800-i), lab.Slice("sticky", stickyPorts, others...))
		if got := mustReach(t, h.Namespace, "tcp4", stickyTCP); got != first {
			t.Fatalf("went from %s to %s after a change of others", first, got)
		}
	}
}
