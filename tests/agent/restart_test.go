package agent_test

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// flows are sockets that were in use before something happened to the agent.
type flows struct {
	tcp, connected, unconnected *lab.Socket
	udpBackend, keptBackend     string
	kept                        time.Time // before the unconnected socket was used last
	stickyBackend               netip.AddrPort
}

// udpIdle is how long an idle unconnected UDP socket keeps its backend.
const udpIdle = time.Minute

func openFlows(t *testing.T, h *lab.Host) *flows {
	t.Helper()
	f := &flows{tcp: h.Socket("tcp4"), connected: h.Socket("udp4"), unconnected: h.Socket("udp4")}
	if err := f.tcp.Connect(webTCP); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.tcp.Receive(); err != nil {
		t.Fatal(err)
	}
	if err := f.connected.Connect(webUDP); err != nil {
		t.Fatal(err)
	}
	f.kept = time.Now()
	f.udpBackend, f.keptBackend = askConnected(t, f.connected), askUnconnected(t, f.unconnected)
	f.stickyBackend = mustReach(t, h, "tcp4", stickyTCP)
	return f
}

func askConnected(t *testing.T, s *lab.Socket) string {
	t.Helper()
	answer, err := s.Ask("who")
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func askUnconnected(t *testing.T, s *lab.Socket) string {
	t.Helper()
	if err := s.SendTo("who", webUDP); err != nil {
		t.Fatal(err)
	}
	answer, from, err := s.Receive()
	if err != nil || from != webUDP {
		t.Fatalf("the answer comes from %v, %v, want %v", from, err, webUDP)
	}
	return answer
}

// check uses every flow again, each of which must be where it was.
func (f *flows) check(t *testing.T, h *lab.Host, when string) {
	t.Helper()
	if got, err := f.tcp.Ask("hello"); err != nil || got != "hello" {
		t.Errorf("%s: the TCP connection answers %q, %v", when, got, err)
	}
	if peer, err := f.tcp.Peer(); err != nil || peer != webTCP {
		t.Errorf("%s: getpeername() shows %v, %v", when, peer, err)
	}
	if got := askConnected(t, f.connected); got != f.udpBackend {
		t.Errorf("%s: the connected UDP socket went from %s to %s", when, f.udpBackend, got)
	}
	last := f.kept
	f.kept = time.Now()
	got := askUnconnected(t, f.unconnected)
	if idle := time.Since(last); got != f.keptBackend && idle < udpIdle {
		t.Errorf("%s: the unconnected UDP socket went from %s to %s after %s", when, f.keptBackend, got, idle)
	}
	f.keptBackend = got
	for range 5 {
		if got := mustReach(t, h, "tcp4", stickyTCP); got != f.stickyBackend {
			t.Errorf("%s: affinity went from %s to %s", when, f.stickyBackend, got)
		}
	}
}

// TestRestart kills the agent and starts it again while clients connect: not one
// connection fails, what was open goes on, and the maps are what they were.
func TestRestart(t *testing.T) {
	t.Parallel()
	h, s := start(t)
	f := openFlows(t, h)
	before := h.Dump(changing...)
	stop := connectAlways(t, h)
	starts := 3
	if tier.Brief(t) {
		starts = 1
	}
	for i := range starts {
		s.Signal(unix.SIGKILL)
		_ = s.Wait() // killed
		f.check(t, h, "while the agent is down")
		began := time.Now()
		s.Start()
		t.Logf("start %d: serves after %s", i+1, time.Since(began).Round(time.Millisecond))
		f.check(t, h, "after the restart")
	}
	if n := stop(); n < 10 {
		t.Errorf("only %d connections were made meanwhile", n)
	}
	lab.CompareDumps(t, before, h.Dump(changing...))
}

// connectAlways connects again and again until the returned function is called,
// which tells how often.
func connectAlways(t *testing.T, h *lab.Host) (stop func() int64) {
	var count atomic.Int64
	var end atomic.Bool
	var client sync.WaitGroup
	client.Go(func() {
		for !end.Load() {
			if _, err := h.Reach("tcp4", webTCP); err != nil {
				t.Error(fmt.Errorf("a connection failed: %w", err))
				return
			}
			count.Add(1)
		}
	})
	return func() int64 {
		end.Store(true)
		client.Wait()
		return count.Load()
	}
}

// TestTerminate: on SIGTERM the agent ends well and what it set up goes on.
func TestTerminate(t *testing.T) {
	t.Parallel()
	h, s := start(t)
	f := openFlows(t, h)
	s.Signal(unix.SIGTERM)
	if err := s.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	f.check(t, h, "without an agent")
}

// TestChangesWhileDown: what changed while no agent ran holds when one starts.
func TestChangesWhileDown(t *testing.T) {
	t.Parallel()
	h, s := start(t)
	f := openFlows(t, h)
	s.Signal(unix.SIGKILL)
	_ = s.Wait() // killed
	s.Write("first.yaml", web, lab.Slice("web", "web:8080/TCP,dns:8080/UDP", lab.Backend4(7)))
	s.Start()
	if got := mustReach(t, h, "tcp4", webTCP); got.Addr() != lab.Backend4(7) {
		t.Errorf("reached %s, which has left", got)
	}
	if got := askUnconnected(t, f.unconnected); got == f.keptBackend {
		t.Errorf("a datagram went to %s, which has left", got)
	}
	if _, err := h.Reach("tcp4", stickyTCP); err != unix.EHOSTUNREACH {
		t.Errorf("a deleted Service: %v, want EHOSTUNREACH", err)
	}
	if got, err := f.tcp.Ask("hello"); err != nil || got != "hello" {
		t.Errorf("the TCP connection answers %q, %v", got, err)
	}
}

// TestBrokenManifest: a file that breaks, before or while the agent runs, leaves
// its Services served.
func TestBrokenManifest(t *testing.T) {
	t.Parallel()
	h, s := start(t)
	const broken = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{prot: 80}]}\n"
	s.Write("first.yaml", broken)
	lab.Eventually(t, "the fault is told", func() bool { return contains(s.Output(), "first.yaml", "prot") })
	mustReach(t, h, "tcp4", webTCP)
	s.Signal(unix.SIGKILL)
	_ = s.Wait() // killed
	s.Start()
	mustReach(t, h, "tcp4", webTCP)
	mustReach(t, h, "tcp4", stickyTCP)
	s.Write("first.yaml", web, lab.Slice("web", "web:8080/TCP", lab.Backend4(1)))
	lab.Eventually(t, "the mended file counts", fails(h, stickyTCP, unix.EHOSTUNREACH))
	lab.Eventually(t, "that it is valid is told", func() bool { return contains(s.Output(), "Manifest is valid again", `file="first.yaml"`) })
}

// TestFollow: files that are written, renamed over and removed take effect.
func TestFollow(t *testing.T) {
	t.Parallel()
	h, s := start(t)
	to := netip.MustParseAddrPort("10.96.0.3:80")
	s.Write("second.yaml", lab.Service("more", `{clusterIP: 10.96.0.3, ports: [{port: 80}]}`))
	lab.Eventually(t, "the new Service refuses", fails(h, to, unix.ECONNREFUSED))
	s.Write("third.yaml", lab.Slice("more", "8080/TCP", lab.Backend4(1)))
	lab.Eventually(t, "the new Service serves", reachable(h, to))
	s.Remove("third.yaml")
	lab.Eventually(t, "the Service refuses again", fails(h, to, unix.ECONNREFUSED))
	s.Remove("second.yaml")
	lab.Eventually(t, "the Service is gone", fails(h, to, unix.EHOSTUNREACH))
}
