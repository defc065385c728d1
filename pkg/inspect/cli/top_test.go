package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/vt"
	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/tests/wait"
)

// counted sets what a Service port of the fixture has counted, as the programs do.
func counted(t *testing.T, bpffs string, id uint32, connections, refused uint64) {
	t.Helper()
	// Closed at once, for traffic calls this until the test has ended.
	stats, err := ebpf.LoadPinnedMap(filepath.Join(datapath.Dir(bpffs), bpfmap.PinName(bpf.SockMapBlServiceStat)), nil)
	check(t, err)
	defer stats.Close()
	var chunk *ebpf.Map
	check(t, stats.Lookup(uint32(0), &chunk))
	defer chunk.Close()
	perCPU := make([]bpf.SockBlServiceStatEntry, cpus(t))
	perCPU[0] = bpf.SockBlServiceStatEntry{Connections: connections, Refused: refused}
	check(t, chunk.Put(id, perCPU))
}

func sample(t *testing.T, bpffs string) *inspect.Sample {
	t.Helper()
	d, err := inspect.Open(bpffs)
	check(t, err)
	defer d.Close()
	s, err := d.Sample()
	check(t, err)
	return s
}

// services returns those of a reading by name.
func services(top *inspect.Top) map[string]inspect.TopService {
	byName := make(map[string]inspect.TopService)
	for _, s := range top.Services {
		byName[s.Namespace+"/"+s.Name] = s
	}
	return byName
}

// TestTopRates: a rate is what was counted between two readings, also after a counter has begun anew.
func TestTopRates(t *testing.T) {
	bpffs := newDatapath(t)
	first := sample(t, bpffs)
	counted(t, bpffs, webID, 1260, 5)
	second := sample(t, bpffs)
	counted(t, bpffs, webID, 30, 0)
	third := sample(t, bpffs)

	for _, c := range []struct {
		what                 string
		top                  *inspect.Top
		connections, refused float64
	}{
		{"the first reading", first.Since(nil), 0, 0},
		{"between two", second.Since(first), 60, 2},
		{"over a counter that begins anew", third.Since(second), 30, 0},
	} {
		web := services(c.top)["shop/web"]
		connections, refused := web.ConnectionsPerSecond*c.top.Seconds, web.RefusedPerSecond*c.top.Seconds
		if math.Round(connections) != c.connections || math.Round(refused) != c.refused {
			t.Errorf("%s: %v connections and %v refused, want %v and %v", c.what, connections, refused, c.connections, c.refused)
		}
	}
	if len(first.Since(nil).Maps) == 0 || len(first.Since(nil).Services) != 8 {
		t.Errorf("read: %+v", first.Since(nil))
	}
}

// TestTopBackends: the connections of each backend beside what the algorithm intends.
func TestTopBackends(t *testing.T) {
	top := sample(t, newDatapath(t)).Since(nil)
	for service, want := range map[string]string{
		// Sockets count where the algorithm counts them: 7 and 2.
		"kube-system/busy": "IPv4 10.0.1.7:8080 7 77.8% of 50.0%, 10.0.2.7:8080 2 22.2% of 50.0%; 0 flows",
		// Clients of the cluster and others get different sets: nothing is intended for both. Two of
		// the flows have lost their backend.
		"shop/web":   "IPv4 10.0.1.2:8080 1 50.0% of -, 10.0.2.1:8080 1 50.0% of -, 10.0.3.1:8080 0 0.0% of -; 4 flows; IPv6 [fd00:1::1]:8080 1 100.0% of -; 1 flows",
		"shop/agent": "IPv4 10.0.2.9:8126 0 - of 0.0%; 0 flows",
		"shop/empty": "IPv4 ; 0 flows",
	} {
		var got []string
		for _, p := range services(top)[service].Ports {
			var backends []string
			for _, b := range p.Backends {
				backends = append(backends, fmt.Sprintf("%s %d %s of %s", b.Address, b.Connections, share(b.Share), share(b.Intended)))
			}
			got = append(got, fmt.Sprintf("%s %s; %d flows", p.Family, strings.Join(backends, ", "), p.Flows))
		}
		if got := strings.Join(got, "; "); got != want {
			t.Errorf("%s:\n got %s\nwant %s", service, got, want)
		}
	}
}

// TestTopNodes: a backend's node has a name where direct server return makes it known.
func TestTopNodes(t *testing.T) {
	top := services(sample(t, newDatapath(t)).Since(nil))
	for service, want := range map[string]string{"kube-system/dns": "node-a node-b", "kube-system/busy": ""} {
		var nodes []string
		for _, b := range top[service].Ports[0].Backends {
			nodes = append(nodes, b.Node)
		}
		if got := strings.TrimSpace(strings.Join(nodes, " ")); got != want {
			t.Errorf("the backends of %s are on %q, want %q", service, got, want)
		}
	}
}

// TestTopReasons: each reason for which something can be refused or dropped is said in words, with what
// was counted between two readings; and a Service says why it has no backends.
func TestTopReasons(t *testing.T) {
	bpffs := newDatapath(t)
	first := sample(t, bpffs)
	refuse(t, bpffs, 6)
	top := sample(t, bpffs).Since(first)
	for _, r := range top.Reasons {
		want := 0.0
		if r.Reason == "no_endpoint" {
			want = 6
		}
		if got := math.Round(r.PerSecond * top.Seconds); got != want || r.Meaning == "" || r.Effect != "refused" && r.Effect != "dropped" {
			t.Errorf("%v of %+v, want %v", got, r, want)
		}
	}
	if len(top.Reasons) < 10 || top.Agent.Node != "node-a" {
		t.Errorf("%d reasons, agent %+v", len(top.Reasons), top.Agent)
	}
	for service, want := range map[string]string{
		"shop/empty": "cluster: no endpoint can be used",
		"shop/agent": "local: no endpoint on this node can be used",
		"shop/web":   "",
	} {
		if got := strings.Join(services(top)[service].Ports[0].NoBackends, "; "); got != want {
			t.Errorf("%s has no backends because %q, want %q", service, got, want)
		}
	}
}

func share(s *float64) string {
	if s == nil {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100**s)
}

// TestTopPrints: without a terminal it prints once, or so often as is asked, what is asked for.
func TestTopPrints(t *testing.T) {
	bpffs := newDatapath(t)
	top := func(args string) string {
		t.Helper()
		out, errs, code := run(strings.Fields("top --bpffs " + bpffs + " --interval 100ms " + args)...)
		if code != cli.ExitOK || errs != "" {
			t.Errorf("top %s: exit code %d, said %q", args, code, errs)
		}
		return out
	}
	for args, want := range map[string][]string{
		"":                         {"8 services, 0.0 connections/s", "NAMESPACE", "kube-system   busy", "shop          web"},
		"-n shop --sort name":      {"NAMESPACE", "agent", "empty", "many", "web"},
		"--sort flows":             {"NAMESPACE", "web", "kube-system   dns"},
		"kube-system/busy":         {"lc", "10.0.1.7:8080", "77.8 %", "50.0 %", "10.0.2.7:8080"},
		"web -n shop -o wide":      {"Port 80/TCP IPv4: random", "10.0.2.1:8080", "80/TCP IPv6"},
		"shop/empty --count 2":     {"80/TCP IPv4", "80/TCP IPv4"},
		"shop/empty -o json":       {`"name": "empty"`, `"connectionsPerSecond": 0`},
		"-n nowhere -o yaml":       {"services: []"},
		"--count 3 -n kube-system": {"busy", "busy", "busy"},
	} {
		rest := top(args)
		for _, w := range want {
			_, after, found := strings.Cut(rest, w)
			if !found {
				t.Errorf("top %s: no %q where it belongs:\n%s", args, w, top(args))
				break
			}
			rest = after
		}
	}
	var read inspect.Top
	check(t, json.Unmarshal([]byte(top("-o json")), &read))
	if len(read.Services) != 8 || read.Seconds < 0.1 {
		t.Errorf("read: %+v", read)
	}
}

// TestTopScreen drives the live view at a real terminal: it follows what is counted, and each key.
func TestTopScreen(t *testing.T) {
	bpffs := newDatapath(t)
	s := newTerminal(t, 80, 14, "top", "--bpffs", bpffs, "--interval", "100ms")

	s.shows("the Services", "kube-system   busy", "shop          web", "q: quit")
	s.line("the cursor is on the first", reversed, "default")
	stop := traffic(t, bpffs)
	s.shows("Services with connections come first", "CONNECTIONS/S", "web", "busy")
	s.press("n")
	s.shows("sorted by name", "by name")
	s.press("\x1b[B\x1b[B") // down
	s.line("the cursor has moved", reversed, "dns")
	s.press("\x1b[A")
	s.line("and back", reversed, "busy")
	s.press("\r")
	s.shows("the backends of the chosen one", "10.0.1.7:8080", "77.8 %", "50.0 %", "esc: all Services")
	s.press("\x1b")
	s.shows("all Services again", "NAMESPACE", "shop          many")
	s.press("/shop/w")
	s.shows("only those of the filter", "shop", "web", "/shop/w_")
	s.lacks("those are gone", "kube-system")
	s.press("\x7f\x7f\r")
	s.shows("a filter of one letter less", "shop        agent", `5 services with "shop"`)
	s.press("\x1b")
	s.shows("no filter", "kube-system   busy")
	s.press(" ")
	s.shows("paused", "PAUSED")
	paused, _, _ := strings.Cut(s.text(), "\n")
	stop()
	// Errors are shown also while the view is paused: they tell that the maps have been read again.
	dir, away := datapath.Dir(bpffs), filepath.Join(bpffs, "away")
	check(t, os.Rename(dir, away))
	s.shows("an error", "PAUSED  NOT READ")
	check(t, os.Rename(away, dir))
	s.lacks("the error is gone", "NOT READ")
	s.press("c")
	s.shows("paused, and sorted", "PAUSED  by connections")
	if !strings.HasPrefix(s.text(), paused) {
		t.Errorf("the view went on while paused, from %q to:\n%s", paused, s.text())
	}
	s.press(" ")
	s.shows("traffic has ended", " 0.0 connections/s")
	s.resize(60, 8)
	s.shows("a small terminal", "maps", "web", "by connections")
	s.press("n\x1b[F") // end
	s.line("the last line is seen", reversed, "web")
	s.press("q")
	s.ended(0)
}

// TestTopScreenErrors: what is wrong at the start is said at the shell, what comes later in the view.
func TestTopScreenErrors(t *testing.T) {
	nothing := t.TempDir()
	s := newTerminal(t, 200, 10, "top", "--bpffs", nothing)
	s.ended(cli.ExitNoDatapath)
	if text := s.text(); !strings.Contains(text, "no datapath") || s.emulator.IsAltScreen() {
		t.Errorf("said:\n%s", text)
	}

	bpffs := newDatapath(t)
	s = newTerminal(t, 200, 10, "top", "--bpffs", bpffs, "--interval", "100ms", "shop/gone")
	s.shows("of a Service that is not there", "Service shop/gone is not served")
	check(t, os.RemoveAll(datapath.Dir(bpffs)))
	s.shows("the maps are gone", "NOT READ: no datapath")
	s.press("\x03")
	s.ended(0)
}

// terminal is a terminal in which the command runs.
type terminal struct {
	t        *testing.T
	file     *os.File
	cmd      *exec.Cmd
	done     sync.WaitGroup
	mu       sync.Mutex // of emulator
	emulator *vt.Emulator
}

// newTerminal starts the command in a terminal of its own.
func newTerminal(t *testing.T, width, height int, args ...string) *terminal {
	t.Helper()
	file, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	check(t, err)
	fd := int(file.Fd())
	check(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	check(t, err)
	side, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	check(t, err)
	s := &terminal{t: t, file: file, emulator: vt.NewEmulator(width, height)}
	s.resize(width, height)
	s.cmd = exec.Command("/proc/self/exe", args...)
	s.cmd.Env = append(os.Environ(), asCommandVariable+"=1", "TERM=xterm-256color")
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = side, side, side
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	check(t, s.cmd.Start())
	check(t, side.Close())
	s.done.Go(func() {
		buffer := make([]byte, 4096)
		for {
			n, err := file.Read(buffer)
			s.mu.Lock()
			s.emulator.Write(buffer[:n])
			s.mu.Unlock()
			if err != nil {
				return // EIO: the command has ended
			}
		}
	})
	var replies sync.WaitGroup
	replies.Go(func() { io.Copy(file, s.emulator) }) // what the command asks the terminal
	t.Cleanup(func() {
		s.cmd.Process.Kill() // ended long ago, unless the test has failed
		s.cmd.Wait()
		s.done.Wait()
		check(t, s.emulator.InputPipe().(io.Closer).Close()) // Close of the emulator races with its Read
		replies.Wait()
		check(t, file.Close())
	})
	return s
}

func (s *terminal) resize(width, height int) {
	s.t.Helper()
	s.mu.Lock()
	s.emulator.Resize(width, height)
	s.mu.Unlock()
	check(s.t, unix.IoctlSetWinsize(int(s.file.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(height), Col: uint16(width)}))
}

// traffic has the counters of shop/web grow until the function that it returns is called.
func traffic(t *testing.T, bpffs string) (stop func()) {
	t.Helper()
	quit := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for n := uint64(1200); ; n += 7 {
			counted(t, bpffs, webID, n, 3)
			select {
			case <-tick.C:
			case <-quit:
				return
			}
		}
	})
	stop = sync.OnceFunc(func() { close(quit); done.Wait() })
	t.Cleanup(stop)
	return stop
}

func (s *terminal) press(keys string) {
	s.t.Helper()
	_, err := s.file.WriteString(keys)
	check(s.t, err)
}

// text returns what is on the screen.
func (s *terminal) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.emulator.String()
}

// shows waits until the screen has all parts, in this order.
func (s *terminal) shows(what string, parts ...string) {
	s.t.Helper()
	s.until(what, func() bool {
		rest := s.text()
		for _, p := range parts {
			var found bool
			if _, rest, found = strings.Cut(rest, p); !found {
				return false
			}
		}
		return true
	})
}

// lacks waits until a text is not on the screen.
func (s *terminal) lacks(what, part string) {
	s.t.Helper()
	s.until(what, func() bool { return !strings.Contains(s.text(), part) })
}

// reversed reports whether a line is in reverse video.
func reversed(s *terminal, y int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	cell := s.emulator.CellAt(0, y)
	return cell != nil && cell.Style.Attrs != 0
}

// line waits until the line of a kind has a text.
func (s *terminal) line(what string, is func(*terminal, int) bool, part string) {
	s.t.Helper()
	s.until(what, func() bool {
		for y, line := range strings.Split(s.text(), "\n") {
			if y > 2 && is(s, y) && strings.Contains(line, part) {
				return true
			}
		}
		return false
	})
}

func (s *terminal) until(what string, done func() bool) {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Logf("the screen of %q:\n%s", what, s.text())
		}
	}()
	wait.Until(s.t, what, done)
}

// ended waits until the command has ended.
func (s *terminal) ended(code int) {
	s.t.Helper()
	s.cmd.Wait()
	s.done.Wait()
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		s.t.Errorf("exit code %d, want %d", got, code)
	}
}
