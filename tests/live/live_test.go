package live_test

import (
	"fmt"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/web"
	"github.com/beeline-lb/beeline/tests/browser"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/terminal"
)

// interval is the time between two readings of a view.
const interval = 200 * time.Millisecond

// The NodePorts of the Services.
var (
	longPort  = netip.AddrPortFrom(lab.Node4, 31001)
	briefPort = netip.AddrPortFrom(lab.Node4, 31002)
	emptyPort = netip.AddrPortFrom(lab.Node4, 31003)
)

// host is a node with a client outside of it: it keeps its connections to default/long open, and again
// and again connects to default/brief and is refused by default/empty.
type host struct {
	*lab.Host
	t *testing.T
	// reached is how many connections to default/long each backend has.
	reached map[netip.AddrPort]int
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{lab.NewHost(t), t, make(map[netip.AddrPort]int)}
	h.ServeBackends()
	service := func(name string, number int) string {
		return lab.Service(name, fmt.Sprintf(`{type: NodePort, clusterIP: 10.96.0.%d, ports: [{port: 80, nodePort: %d}]}`, number, 31000+number))
	}
	h.Serve(lab.AgentOptions{Devices: []string{lab.Uplink}, Manifests: []string{
		service("long", 1), lab.Slice("long", "8080/TCP", lab.Backend4(1), lab.Backend4(2)),
		service("brief", 2), lab.Slice("brief", "8080/TCP", lab.Backend4(3)),
		service("empty", 3),
	}})
	for range 5 {
		h.connect()
	}
	return h
}

// connect makes one more connection to default/long, which is open until the test ends.
func (h *host) connect() {
	h.t.Helper()
	s := h.Outside.Socket("tcp4")
	h.t.Cleanup(s.Close)
	if err := s.Connect(longPort); err != nil {
		h.t.Fatal(err)
	}
	answer, _, err := s.Receive()
	if err != nil {
		h.t.Fatal(err)
	}
	h.reached[netip.MustParseAddrPort(answer)]++
}

// shares are what a view shows of the backends of default/long: address, connections and share, which
// between stands between.
func (h *host) shares() (rows [][]string) {
	total := 0
	for _, n := range h.reached {
		total += n
	}
	for i := range 2 {
		backend := netip.AddrPortFrom(lab.Backend4(i+1), lab.BackendPort)
		n := h.reached[backend]
		rows = append(rows, []string{backend.String(), fmt.Sprint(n), fmt.Sprintf("%.1f %%", 100*float64(n)/float64(total))})
	}
	return rows
}

// reachBySockets makes ten connections to default/long by sockets of the node, and returns how many each backend has
// got.
func (h *host) reachBySockets() map[netip.AddrPort]int {
	h.t.Helper()
	reached := make(map[netip.AddrPort]int)
	for range 10 {
		backend, err := h.Reach("tcp4", netip.MustParseAddrPort("10.96.0.1:80"))
		if err != nil {
			h.t.Fatal(err)
		}
		reached[backend]++
	}
	return reached
}

// traffic has the client connect to default/brief and default/empty until stop is called.
func (h *host) traffic() (stop func()) {
	h.t.Helper()
	quit := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			if _, err := h.Outside.Reach("tcp4", briefPort); err != nil {
				h.t.Errorf("default/brief: %v", err)
			}
			if _, err := h.Outside.Reach("tcp4", emptyPort); err != unix.ECONNREFUSED {
				h.t.Errorf("default/empty: %v", err)
			}
			select {
			case <-tick.C:
			case <-quit:
				return
			}
		}
	})
	stop = sync.OnceFunc(func() { close(quit); done.Wait() })
	h.t.Cleanup(stop)
	return stop
}

// connections returns how many active connections the backends of default/long have, and when that was
// read.
func (h *host) connections() (n int, read time.Time) {
	h.t.Helper()
	sample, err := inspect.Read(h.BPFFS, (*inspect.Datapath).Sample)
	if err != nil {
		h.t.Fatal(err)
	}
	top := sample.Since(nil)
	return top.Matching("long", inspect.ByName)[0].Flows, top.Time
}

// TestTop: beeline top shows connections as they are made, in the order and with the filter asked for,
// and stands still while it is paused.
func TestTop(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	cmd := exec.Command("/proc/self/exe", "top", "--bpffs", h.BPFFS, "--interval", interval.String())
	cmd.Env = append(os.Environ(), asCommandVariable+"=1")
	s := terminal.Start(t, 120, 14, cmd)
	s.Shows("the Services", "3 services", "brief", "empty", "long")
	stop := h.traffic()
	inOrder := func(names ...string) {
		t.Helper()
		s.Shows("the Services in order", append([]string{"BACKENDS"}, names...)...)
	}
	inOrder("brief", "empty", "by connections")
	s.Press("r")
	inOrder("empty", "brief", "by refused")
	s.Press("f")
	inOrder("long", "brief", "by flows")
	s.Press("n")
	inOrder("brief", "empty", "long", "by name")
	s.Press("/lon")
	s.Lacks("only those of the filter", "brief")
	s.Press("\r\r") // keep the filter, then show the backends
	for _, row := range h.shares() {
		s.Shows("the backends with their shares", append([]string{"Service default/long"}, row...)...)
	}
	for backend, n := range h.reachBySockets() {
		s.Matches("new connections of sockets", fmt.Sprintf(`%s +no +\d+ +\d+\.0 %% +%d +%.1f %% +50\.0 %%`, regexp.QuoteMeta(backend.String()), n, 10*float64(n)))
	}
	s.Press(" ")
	s.Shows("paused", "PAUSED")
	paused := s.Text()
	h.connect()
	var counted time.Time
	lab.Eventually(t, "ten readings have one connection more", func() bool {
		n, read := h.connections()
		if n == 6 && counted.IsZero() {
			counted = read
		}
		return !counted.IsZero() && read.After(counted.Add(10*interval))
	})
	if now := s.Text(); now != paused {
		t.Errorf("while it is paused the view goes on, from:\n%s\nto:\n%s", paused, now)
	}
	s.Press(" ")
	for _, row := range h.shares() {
		s.Shows("the shares with one connection more", append([]string{"6 active flows"}, row...)...)
	}
	s.Press("\x1b")
	s.Shows("the filter is kept", `1 service with "lon"`)
	s.Press("\x1b")
	s.Shows("all Services", "brief", "empty", "long")
	stop()
	s.Shows("traffic has ended", " 0.0 connections/s, 0.0 refused/s, 6 active flows")
	s.Press("q")
	s.Ended(0)
}

// firstRow is the first Service of the page's list.
const firstRow = "#services tbody tr:first-child"

// TestWebPage: the page shows connections as they are made, the shares of backends, and who was
// refused and why.
func TestWebPage(t *testing.T) {
	t.Parallel()
	b := browser.New(t)
	h := newHost(t)
	page := web.New(web.Options{
		Read:     func() (*inspect.Sample, error) { return inspect.Read(h.BPFFS, (*inspect.Datapath).Sample) },
		Listen:   func(o inspect.EventOptions) (web.Listener, error) { return inspect.Listen(h.BPFFS, o) },
		Interval: interval,
	})
	t.Cleanup(page.Close)
	server := httptest.NewServer(page)
	t.Cleanup(server.Close)
	b.Window(1280, 900, "light")
	b.Open(server.URL)
	b.Shows("the Services", "#services", "default/brief", "default/empty", "default/long")
	b.Shows("nothing refused", "#refusals", "Nothing was refused")
	stop := h.traffic()
	b.Shows("the Service with connections comes first", firstRow, "default/brief")
	b.Until("its connections are counted", "latest.sum.connectionsPerSecond > 0 && latest.sum.refusedPerSecond > 0")
	b.Shows("who was refused, by which Service, and why", "#refusals", "One by one",
		lab.Outside4.String()+":", emptyPort.String()+" TCP", "default/empty", "refused: no_endpoint", "no endpoint of the Service can be used",
		"By reason", "no_endpoint", "By Service", "default/empty")
	b.Click(`#services [data-key="default/long"]`)
	for _, row := range h.shares() {
		b.Shows("its backends with their shares", "#chosen", append([]string{"Service default/long"}, row...)...)
	}
	for backend, n := range h.reachBySockets() {
		share := fmt.Sprintf("new %.1f %%, intended 50.0 %%", 10*float64(n))
		b.Shows("the shares of new connections of sockets", "#chosen", backend.String(), fmt.Sprint(n), share)
		b.Shows("where new connections go", "#traffic", "New connections since", "other nodes 100.0 %", "Active connections",
			"default/brief", backend.String(), "default/long", fmt.Sprint(n))
	}
	b.Window(360, 740, "dark")
	b.Screenshot("new-phone-dark")
	b.Fits("new connections on a phone")
	b.Contrast("new connections on a phone")
	stop()
	b.Until("traffic has ended", "latest.sum.connectionsPerSecond === 0 && latest.sum.refusedPerSecond === 0")
	b.NoProblems()
}
