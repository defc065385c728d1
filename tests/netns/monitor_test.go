package netns_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/monitor"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// openMaps opens the maps of a host.
func openMaps(t *testing.T, h *lab.Host) *bpfmap.Maps {
	t.Helper()
	maps, err := bpfmap.Open(datapath.Dir(h.BPFFS))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { maps.Close() })
	return maps
}

// listening returns how many listen to events.
func listening(m *bpfmap.Maps) (count int) {
	for bits := atomic.LoadUint64(&m.Entries.Monitor.Listening); bits != 0; bits &= bits - 1 {
		count++
	}
	return count
}

// printed is what a program has printed. Its lines can be counted while it goes on.
type printed struct {
	bytes.Buffer
	lines atomic.Int64
}

func (p *printed) Write(text []byte) (int, error) {
	defer p.lines.Add(int64(bytes.Count(text, []byte("\n"))))
	return p.Buffer.Write(text)
}

// monitored is a run of beeline monitor.
type monitored struct {
	out   printed
	errs  bytes.Buffer
	code  int
	ended sync.WaitGroup
	done  atomic.Bool // nothing is written any more
}

// startMonitor starts beeline monitor, which has to end by itself, and returns when it listens.
func startMonitor(t *testing.T, h *lab.Host, args ...string) *monitored {
	t.Helper()
	maps, m := openMaps(t, h), new(monitored)
	before := listening(maps)
	m.ended.Go(func() {
		defer m.done.Store(true)
		env := cli.Env{Out: &m.out, Err: &m.errs, Now: time.Now, Renewal: wait.Limit} // beside others, loading programs takes long
		m.code = cli.Run(t.Context(), env, append([]string{"--bpffs", h.BPFFS, "monitor"}, args...)...)
	})
	lab.Eventually(t, "beeline monitor listens", func() bool { return listening(maps) > before })
	return m
}

// events returns what was printed as JSON.
func (m *monitored) events(t *testing.T) (list []inspect.Event) {
	t.Helper()
	m.ended.Wait()
	if m.code != cli.ExitOK {
		t.Fatalf("exit code %d: %s", m.code, &m.errs)
	}
	for d := json.NewDecoder(&m.out); d.More(); {
		var e inspect.Event
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

// TestMonitorSockets: what becomes of the connections of this node's sockets is told with its
// names, also while no agent runs.
func TestMonitorSockets(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges})
	a.Apply(dual, lab.Slice("dual", "web:8080/TCP,dns:8080/UDP", backends4(1)...), lab.Slice("dual", "web:8080/TCP,dns:8080/UDP", backends6(1)...),
		lab.Service("none", "{clusterIP: 10.96.0.9, ports: [{port: 80}]}"))
	a.Stop()
	all := startMonitor(t, h, "-o", "json", "--count", "9")
	refused := startMonitor(t, h, "--reason", "no_endpoint", "--service", "default/none", "--count", "1")

	mine := fmt.Sprintf("%d", os.Getpid())
	var want []string
	for _, c := range []struct {
		n                           *lab.Namespace
		network, hook, service, end string
		to                          netip.AddrPort
	}{
		{h.Namespace, "tcp4", "connect", "dual:web", "10.77.0.1:8080", dualTCP4},
		{h.Namespace, "udp6", "sendmsg", "dual:dns", "[fd77::1]:8080", dualUDP6},
		{h.Pod, "tcp6", "connect", "dual:web", "10.77.0.1:8080", dualTCP4},
	} {
		s := c.n.Socket(c.network)
		send := s.Connect
		if c.hook == "sendmsg" {
			send = func(to netip.AddrPort) error { return s.SendTo("who", to) }
		}
		if err := send(c.to); err != nil {
			t.Fatal(err)
		}
		s.Close()
		for _, what := range []string{"connection " + c.hook, "ended close"} {
			want = append(want, fmt.Sprintf("%s %s %s default/%s %s  %s %d", what, strings.ToUpper(c.network[:3]), c.to, c.service, c.end, mine, c.n.Cookie()))
		}
		// A process that is being started may hold the socket a while longer.
		lab.Eventually(t, "the end of the connection is told", func() bool { return all.out.lines.Load() == int64(len(want)) })
	}
	for _, c := range []struct {
		kind, service, reason string
		to                    netip.AddrPort
		err                   error
	}{
		{"refused", "default/dual", "undeclared_port", ap("10.96.0.1:81"), unix.ECONNREFUSED},
		{"refused", "default/none", "no_endpoint", ap("10.96.0.9:80"), unix.ECONNREFUSED},
		{"dropped", "-", "unallocated_address", ap("10.96.0.77:80"), unix.EHOSTUNREACH},
	} {
		wantFailure(t, h.Namespace, "tcp4", c.to, c.err)
		want = append(want, fmt.Sprintf("%s connect TCP %s %s invalid AddrPort %s %s %d", c.kind, c.to, c.service, c.reason, mine, h.Cookie()))
	}
	for i, e := range all.events(t) {
		got := fmt.Sprintf("%s %s %s %s %s %s %s %d %d", e.Kind, e.Hook, e.Protocol, e.ServiceAddress, e.Service, e.Backend, e.Reason, e.PID, e.Netns)
		if got != want[i] || e.Command == "" || (e.DurationSeconds != nil) != (e.Kind == inspect.EventEnded) {
			t.Errorf("event %d: told %s, by %q, %v s; want %s", i, got, e.Command, e.DurationSeconds, want[i])
		}
	}
	refused.ended.Wait()
	line := refused.out.String()
	if strings.Count(line, "\n") != 1 || !strings.Contains(line, fmt.Sprintf("refused    TCP %s[%s] -> 10.96.0.9:80 (default/none) no_endpoint: no endpoint of the Service", commandOf(t), mine)) {
		t.Errorf("told to the second listener:\n%s", line)
	}
	if maps := openMaps(t, h); listening(maps) != 0 {
		t.Errorf("%d listen when all have ended", listening(maps))
	}
}

// commandOf returns the name of this process as the kernel has it.
func commandOf(t *testing.T) string {
	t.Helper()
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(name))
}

// listen begins to listen. Who ends gives its place back a little after the programs tell it no more.
func listen(t *testing.T, maps *bpfmap.Maps, o monitor.Options) *monitor.Listener {
	t.Helper()
	var l *monitor.Listener
	lab.Eventually(t, "a place to listen at is free", func() bool {
		var err error
		l, err = monitor.Listen(maps, o)
		if err != nil && !errors.Is(err, monitor.ErrBusy) {
			t.Fatal(err)
		}
		return err == nil
	})
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// TestMonitorPlaces: as many listen as there are places, and another one is told so. A listener
// that is gone without a word is forgotten by the next event; its place goes to another, and
// it is told so when it was only standing still.
func TestMonitorPlaces(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges})
	a.Apply(dual)
	maps := openMaps(t, h)
	listeners := make([]*monitor.Listener, monitor.Max)
	for i := range listeners {
		listeners[i] = listen(t, maps, monitor.Options{Rate: 10})
	}
	var errs bytes.Buffer
	if code := cli.Run(t.Context(), cli.Env{Out: &errs, Err: &errs, Now: time.Now}, "--bpffs", h.BPFFS, "monitor"); code != cli.ExitFailure || !strings.Contains(errs.String(), "4 listen to events already") {
		t.Errorf("a fifth listener: exit code %d, %s", code, &errs)
	}
	if _, err := monitor.Listen(maps, monitor.Options{}); !errors.Is(err, monitor.ErrBusy) {
		t.Errorf("a fifth listener: %v", err)
	}
	// As its process leaves it when it is suspended for long.
	until := &maps.Entries.Monitor.Listener[1].Until
	lab.Eventually(t, "the second listener loses its place", func() bool {
		atomic.StoreUint64(until, 1) // it may be about to renew it
		wantFailure(t, h.Namespace, "tcp4", dualTCP4, unix.ECONNREFUSED)
		return atomic.LoadUint64(&maps.Entries.Monitor.Listening) == 0b1101
	})
	listen(t, maps, monitor.Options{Rate: 10})
	lab.Eventually(t, "the second listener is told", func() bool {
		listeners[1].SetDeadline(time.Now().Add(time.Second))
		_, err := listeners[1].Read()
		return errors.Is(err, monitor.ErrLost)
	})
	if bits := atomic.LoadUint64(&maps.Entries.Monitor.Listening); bits != 0b1111 {
		t.Errorf("those who listen: %b", bits)
	}
}

// TestMonitorStalled: a command whose output nobody reads gives up its place, and ends when somebody does.
func TestMonitorStalled(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges})
	a.Apply(dual)
	maps := openMaps(t, h)
	out, in := io.Pipe()
	var errs bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- cli.Run(t.Context(), cli.Env{Out: in, Err: &errs, Now: time.Now, Stall: time.Second}, "--bpffs", h.BPFFS, "monitor")
		in.Close()
	}()
	lab.Eventually(t, "the command listens", func() bool { return listening(maps) == 1 })
	for range monitor.Max - 1 {
		listen(t, maps, monitor.Options{Rate: 10})
	}
	wantFailure(t, h.Namespace, "tcp4", dualTCP4, unix.ECONNREFUSED) // an event, which it cannot write
	listen(t, maps, monitor.Options{Rate: 1})
	for range 50 { // of which some are left out, at the place that was its own
		wantFailure(t, h.Namespace, "tcp4", dualTCP4, unix.ECONNREFUSED)
	}
	text, err := io.ReadAll(out)
	if err != nil || strings.Count(string(text), "\n") != 1 {
		t.Errorf("it has printed %q, %v, want the event alone", text, err)
	}
	if got := <-code; got != cli.ExitFailure || !strings.Contains(errs.String(), monitor.ErrStalled.Error()) {
		t.Errorf("when it can write again: exit code %d, said %q", got, &errs)
	}
	if n := listening(maps); n != monitor.Max {
		t.Errorf("%d listen, want the %d others", n, monitor.Max)
	}
}

// TestMonitorLimit: of many events no more than the limit are told, and of all others how many
// they are; a burst below the limit is told.
func TestMonitorLimit(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges})
	a.Apply(dual)
	maps := openMaps(t, h)
	const sent = 1000
	limited := listen(t, maps, monitor.Options{Rate: 20, Kinds: []bpf.SockBlEventKind{bpf.SockBlEventKindBL_EVENT_REFUSED}})
	burst := listen(t, maps, monitor.Options{Rate: sent})
	none := listen(t, maps, monitor.Options{Rate: 1_000_000, Kinds: []bpf.SockBlEventKind{bpf.SockBlEventKindBL_EVENT_DROPPED}})
	small := listen(t, maps, monitor.Options{Rate: 1_000_000, Buffer: 1})
	// A listener of a former version leaves there what another one has chosen.
	former := &maps.Entries.Monitor.Listener[1]
	former.Filtered, former.Reasons = former.Filtered+1, 1<<bpf.SockBlReasonBL_REASON_SOURCE_RANGE
	start := time.Now()
	for range sent {
		wantFailure(t, h.Namespace, "tcp4", dualTCP4, unix.ECONNREFUSED)
	}
	took := time.Since(start)
	cpus := uint64(runtime.NumCPU())
	// Twenty events in each slice of 2^30 ns, begun or whole; CPUs that begin one at once take more.
	most := (uint64(took>>30) + 2) * (20 + cpus)
	if n := told(t, limited); n == 0 || n > most || n+leftOut(t, limited) != sent {
		t.Errorf("a limit of 20 a second, for %v: %d told, %d left out, want at most %d told, %d in all", took, n, leftOut(t, limited), most, sent)
	}
	if n := told(t, burst); n != sent || leftOut(t, burst) != 0 {
		t.Errorf("a limit as high as the burst: %d told, %d left out", n, leftOut(t, burst))
	}
	if n := told(t, none); n != 0 || leftOut(t, none) != 0 {
		t.Errorf("another kind: %d told, %d left out", n, leftOut(t, none))
	}
	if n := told(t, small); n == 0 || n > uint64(os.Getpagesize())/100 || n+leftOut(t, small) != sent {
		t.Errorf("a page of events: %d told, %d left out", n, leftOut(t, small))
	}
}

// told reads what a listener has been told, and returns how many events those are.
func told(t *testing.T, l *monitor.Listener) (n uint64) {
	t.Helper()
	for l.SetDeadline(time.Now()); ; n++ {
		if _, err := l.Read(); errors.Is(err, os.ErrDeadlineExceeded) {
			return n
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func leftOut(t *testing.T, l *monitor.Listener) uint64 {
	t.Helper()
	n, err := l.LeftOut()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestMonitorFull: one whose limit is reached takes nothing from another, and when all have reached theirs each event
// is still counted for those that want its kind. Who begins then has a limit of its own.
func TestMonitorFull(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges})
	a.Apply(append(monitoredPort("web", netip.MustParseAddr("10.96.0.20"), 30081), dual)...)
	maps := openMaps(t, h)
	const flood, limit, reached = 200, 3, 20
	refuse := func() {
		t.Helper()
		for range flood {
			wantFailure(t, h.Namespace, "tcp4", dualTCP4, unix.ECONNREFUSED)
		}
	}
	all := listen(t, maps, monitor.Options{Rate: limit})
	refusals := listen(t, maps, monitor.Options{Rate: limit, Kinds: []bpf.SockBlEventKind{bpf.SockBlEventKindBL_EVENT_REFUSED}})
	chosen, err := monitor.Listen(maps, monitor.Options{
		Rate: 1_000_000, Filter: monitor.Filter{Reasons: []bpf.SockBlReason{bpf.SockBlReasonBL_REASON_NO_ENDPOINT}},
	})
	if err != nil {
		t.Fatal(err)
	}
	refuse()
	if n := told(t, chosen); n != flood {
		t.Errorf("%d of %d events were told to one who is far from its limit", n, flood)
	}
	if err := chosen.Close(); err != nil {
		t.Fatal(err)
	}
	refuse()
	for range reached {
		s := h.Socket("tcp4")
		if err := s.Connect(ap("10.96.0.20:80")); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	late := listen(t, maps, monitor.Options{Rate: limit})
	refuse()
	if n := told(t, late); n < limit || n+leftOut(t, late) != flood {
		t.Errorf("who begins while others are at their limit: %d told, %d left out, want at least %d told, %d in all", n, leftOut(t, late), limit, flood)
	}
	if n := told(t, refusals); n < limit || n+leftOut(t, refusals) != 3*flood {
		t.Errorf("refused connections: %d told, %d left out, want at least %d told, %d in all", n, leftOut(t, refusals), limit, 3*flood)
	}
	// A connection begins and ends.
	if n := told(t, all); n < limit || n+leftOut(t, all) != 3*flood+2*reached {
		t.Errorf("all events: %d told, %d left out, want at least %d told, %d in all", n, leftOut(t, all), limit, 3*flood+2*reached)
	}
}

// monitoredPort is a NodePort with endpoints on the node.
func monitoredPort(name string, clusterIP netip.Addr, port uint16) []string {
	return []string{
		lab.Service(name, fmt.Sprintf("{type: NodePort, clusterIP: %s, ports: [{name: a, port: 80, nodePort: %d}]}", clusterIP, port)),
		lab.Slice(name, "a:8080/TCP", backends4(1)...),
	}
}

// monitoredClient is a client of the Service of monitoredPort, by a socket of the node or by packets.
type monitoredClient struct {
	name string
	from *lab.Namespace
	to   netip.AddrPort
}

func monitoredClients(h *lab.Host) []monitoredClient {
	return []monitoredClient{
		{"sockets", h.Namespace, ap("10.96.0.10:80")},
		{"packets", h.Outside, netip.AddrPortFrom(lab.Node4, 30080)},
	}
}

// TestMonitorSample: of a sample, all of a connection is told or nothing, of sockets and of packets.
func TestMonitorSample(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges, Devices: []string{lab.Uplink}})
	a.Apply(monitoredPort("web", netip.MustParseAddr("10.96.0.10"), 30080)...)
	maps := openMaps(t, h)
	for _, c := range monitoredClients(h) {
		sampled := listen(t, maps, monitor.Options{Rate: 1_000_000, Sample: 4})
		const made = 200
		for range made {
			mustReach(t, c.from, "tcp4", c.to)
		}
		begun, ended, history := 0, 0, monitor.NewHistory()
		lab.Eventually(t, "the ends of all connections are told", func() bool {
			for sampled.SetDeadline(time.Now()); ; {
				e, err := sampled.Read()
				if errors.Is(err, os.ErrDeadlineExceeded) {
					return ended == begun
				}
				if err != nil {
					t.Fatal(err)
				}
				past := history.Note(e)
				switch bpf.SockBlEventKind(e.Kind) {
				case bpf.SockBlEventKindBL_EVENT_CONNECTION:
					begun++
				case bpf.SockBlEventKindBL_EVENT_ENDED:
					ended++
					if past == nil {
						t.Fatalf("%s: the end of a connection is told, and not its beginning", c.name)
					}
				}
			}
		})
		if begun < made/16 || begun > made/2 {
			t.Errorf("%s: one of four is %d of %d", c.name, begun, made)
		}
	}
}

// TestMonitorFilters: what a listener did not ask for takes nothing from its limit, whatever Service, reason, client or
// backend it is of, and four that ask for different things are told each its own.
func TestMonitorFilters(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges, Devices: []string{lab.Uplink}})
	a.Apply(monitoredPort("busy", netip.MustParseAddr("10.96.0.20"), 30081)...)
	a.Apply(lab.Service("quiet", "{type: NodePort, clusterIP: 10.96.0.10, ports: [{name: a, port: 80, nodePort: 30080}]}"),
		lab.Slice("quiet", "a:8080/TCP", backends4(2)[1:]...),
		lab.Service("none", "{type: NodePort, clusterIPs: [10.96.0.9, 'fd96::9'], ports: [{port: 80, nodePort: 30082}]}"))
	clients := monitoredClients(h) // of quiet
	none, busy := ap("10.96.0.9:80"), ap("10.96.0.20:80")
	const rounds, flood = 3, 20
	listeners := []struct {
		args   []string
		events int    // in a round
		also   int    // of kind established, which are counted and not shown
		told   string // what all of them name
	}{
		{[]string{"--service", "default/quiet"}, 5, 1, "(default/quiet"},
		{[]string{"--backend", "10.77.0.2/31"}, 4, 1, "-> 10.77.0.2:8080"},
		{[]string{"--reason", "unallocated_address,undeclared_port"}, 2, 0, "10.96.0."},
		{[]string{"--drops", "--client", lab.Outside6.String() + "/63"}, 1, 0, lab.Outside6.String()},
	}
	var running []*monitored
	for _, l := range listeners {
		running = append(running, startMonitor(t, h, append(l.args, "--rate", fmt.Sprint(rounds*(l.events+l.also)), "--count", fmt.Sprint(rounds*l.events))...))
	}
	for round := range rounds {
		for range flood {
			wantFailure(t, h.Namespace, "tcp4", none, unix.ECONNREFUSED)
			s := h.Socket("tcp4")
			if err := s.Connect(busy); err != nil {
				t.Fatal(err)
			}
			s.Close()
		}
		for _, c := range clients {
			mustReach(t, c.from, "tcp4", c.to)
		}
		wantFailure(t, h.Namespace, "tcp4", ap("10.96.0.10:81"), unix.ECONNREFUSED)
		wantFailure(t, h.Namespace, "tcp4", ap("10.96.0.77:80"), unix.EHOSTUNREACH)
		wantFailure(t, h.Outside, "tcp4", netip.AddrPortFrom(lab.Node4, 30082), unix.ECONNREFUSED)
		wantFailure(t, h.Outside, "tcp6", netip.AddrPortFrom(lab.Node6, 30082), unix.ECONNREFUSED)
		for i, l := range listeners {
			lab.Eventually(t, "a listener is told what it asked for: "+strings.Join(l.args, " "), func() bool {
				return running[i].out.lines.Load() >= int64((round+1)*l.events)
			})
		}
	}
	for i, l := range listeners {
		running[i].ended.Wait()
		out := running[i].out.String()
		if lines := rounds * l.events; strings.Count(out, "\n") != lines || strings.Count(out, l.told) != lines {
			t.Errorf("%s: told, %d lines with %q expected:\n%s", strings.Join(l.args, " "), lines, l.told, out)
		}
	}
}

// TestMonitorReused: the end of a connection does not name the Service that has got the id of its own meanwhile.
func TestMonitorReused(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges, Devices: []string{lab.Uplink}})
	idOf := func(name string) uint32 {
		d, err := inspect.Open(h.BPFFS)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		s, err := d.Service(model.Name{Namespace: "default", Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return s.Ports[0].ID
	}
	for i, c := range monitoredClients(h) {
		a.Apply(monitoredPort("web", netip.MustParseAddr("10.96.0.10"), 30080)...)
		id := idOf("web")
		m := startMonitor(t, h, "-o", "json", "--kind", "connection,ended", "--count", "2")
		s := c.from.Socket("tcp4")
		if err := s.Connect(c.to); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Receive(); err != nil {
			t.Fatal(err)
		}
		lab.Eventually(t, "the connection is told", func() bool { return m.out.lines.Load() == 1 })
		a.DeleteService("web")
		var thieves []string
		lab.Eventually(t, "another Service gets the id", func() bool {
			name := fmt.Sprintf("thief%d-%d", i, len(thieves))
			a.Apply(monitoredPort(name, netip.AddrFrom4([4]byte{10, 96, byte(i + 1), byte(len(thieves) + 1)}), uint16(31000+100*i+len(thieves)))...)
			thieves = append(thieves, name)
			return idOf(name) == id
		})
		s.Close()
		events := m.events(t)
		begun, ended := events[0], events[1]
		if begun.Service.Service != "web" || begun.Service.ID != id {
			t.Errorf("%s: the connection is told of %s", c.name, begun.Service)
		}
		if ended.Kind != inspect.EventEnded || ended.ServiceAddress != c.to || ended.Service != (inspect.PortName{}) {
			t.Errorf("%s: its end is told of %s: %+v", c.name, ended.Service, ended)
		}
		a.DeleteService(thieves...)
	}
}

// TestMonitorEnd: who ends listening learns how many events were not told since the last time.
func TestMonitorEnd(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges})
	a.Apply(dual)
	m, err := inspect.Listen(h.BPFFS, inspect.EventOptions{Rate: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	const sent = 200
	for range sent {
		wantFailure(t, h.Namespace, "tcp4", dualTCP4, unix.ECONNREFUSED)
	}
	m.Interrupt()
	if e, err := m.LeftOut(); err != nil || e == nil || e.Kind != inspect.EventLeftOut || e.LeftOut == 0 || e.LeftOut >= sent {
		t.Errorf("of %d events at a rate of one: %+v, %v", sent, e, err)
	}
	if e, err := m.LeftOut(); e != nil || err != nil {
		t.Errorf("asked again: %+v, %v", e, err)
	}
}

// TestMonitorFollowsMaps: who listens learns the names of Services for which the tables have grown
// since, and of ports that the Service chosen gets, and goes on listening when the maps were removed and
// others are pinned.
func TestMonitorFollowsMaps(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges})
	a.Apply(dual)
	one := []string{"-o", "json", "--service", "default/late", "--count", "1"}
	m := startMonitor(t, h, one...)
	// More than there are in one chunk of the table.
	many := make([]string, 0, 5000)
	for i := range cap(many) {
		many = append(many, lab.Service(fmt.Sprintf("many-%d", i), fmt.Sprintf("{clusterIP: 10.96.%d.%d, ports: [{port: 80}]}", 16+i/250, i%250)))
	}
	a.Apply(many...)
	late := []string{lab.Service("late", "{clusterIP: 10.96.0.9, ports: [{port: 80}]}")}
	a.Apply(late...)
	refused := func(m *monitored, to netip.AddrPort) {
		t.Helper()
		lab.Eventually(t, "the refused connection is told with its Service", func() bool {
			wantFailure(t, h.Namespace, "tcp4", to, unix.ECONNREFUSED)
			return m.out.lines.Load() > 0 || m.done.Load()
		})
		for _, e := range m.events(t) {
			if e.Service.Service != "late" || e.Reason != "no_endpoint" {
				t.Errorf("told: %+v", e)
			}
		}
	}
	refused(m, ap("10.96.0.9:80"))

	m = startMonitor(t, h, one...)
	a.Apply(lab.Service("late", "{clusterIP: 10.96.0.9, ports: [{name: a, port: 80}, {name: b, port: 81}]}"))
	refused(m, ap("10.96.0.9:81"))

	m = startMonitor(t, h, one...)
	a.Stop()
	if _, err := datapath.Cleanup(t.Context(), h.BPFFS); err != nil {
		t.Fatal(err)
	}
	h.Serve(lab.AgentOptions{ServiceRanges: serviceRanges, Manifests: late})
	refused(m, ap("10.96.0.9:80"))
}
