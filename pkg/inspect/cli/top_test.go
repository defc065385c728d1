package cli_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/terminal"
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
		"shop/empty -o json":       {`"name":"empty"`, `"connectionsPerSecond":0`, `"backends":[]`, "\n"},
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
	const nothing = "beeline: --sort bytes: sorted by name, for traffic is not counted: see trafficSampling in the agent's configuration\n"
	if out, errs, _ := run("top", "--bpffs", bpffs, "--interval", "100ms", "--count", "2", "--sort", "bytes"); errs != nothing || !strings.Contains(out, "busy") {
		t.Errorf("sorted by what is not counted: said %q, printed\n%s", errs, out)
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
	s := terminal.Start(t, 80, 14, asCommand("top", "--bpffs", bpffs, "--interval", "100ms"))

	s.Shows("the Services", "kube-system   busy", "shop          web", "q: quit")
	s.Selected("the cursor is on the first", "default")
	stop := traffic(t, bpffs)
	s.Shows("Services with connections come first", "CONNECTIONS/S", "web", "busy")
	s.Press("n")
	s.Shows("sorted by name", "by name")
	s.Press("\x1b[B\x1b[B") // down
	s.Selected("the cursor has moved", "dns")
	s.Press("\x1b[A")
	s.Selected("and back", "busy")
	s.Press("\r")
	s.Shows("the backends of the chosen one", "10.0.1.7:8080", "77.8 %", "50.0 %", "esc: all Services")
	s.Press("\x1b")
	s.Shows("all Services again", "NAMESPACE", "shop          many")
	s.Press("/shop/w")
	s.Shows("only those of the filter", "shop", "web", "/shop/w_")
	s.Lacks("those are gone", "kube-system")
	s.Press("\x7f\x7f\r")
	s.Shows("a filter of one letter less", "shop        agent", `5 services with "shop"`)
	s.Press("\x1b")
	s.Shows("no filter", "kube-system   busy")
	s.Press(" ")
	s.Shows("paused", "PAUSED")
	paused, _, _ := strings.Cut(s.Text(), "\n")
	stop()
	// Errors are shown also while the view is paused: they tell that the maps have been read again.
	dir, away := datapath.Dir(bpffs), filepath.Join(bpffs, "away")
	check(t, os.Rename(dir, away))
	s.Shows("an error", "PAUSED  NOT READ")
	check(t, os.Rename(away, dir))
	s.Lacks("the error is gone", "NOT READ")
	s.Press("c")
	s.Shows("paused, and sorted", "PAUSED  by connections")
	if !strings.HasPrefix(s.Text(), paused) {
		t.Errorf("the view went on while paused, from %q to:\n%s", paused, s.Text())
	}
	s.Press(" ")
	s.Shows("traffic has ended", " 0.0 connections/s")
	s.Resize(60, 8)
	s.Shows("a small terminal", "maps", "web", "by connections")
	s.Press("n\x1b[F") // end
	s.Selected("the last line is seen", "web")
	s.Press("q")
	s.Ended(0)
}

// TestTopScreenFits: however long the names of some Services are and however narrow the terminal is, the
// figures of all are seen, and how to end; names that are not seen take no room.
func TestTopScreenFits(t *testing.T) {
	services := fixture()
	long := strings.Repeat("n", 63) + "/" + strings.Repeat("w", 61) + "-9"
	services = append(services, served{&model.Service{
		Name: name(long), Type: "ClusterIP", ClusterIPs: addrs("10.96.0.50"),
		Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}},
	}, []*model.Slice{slice(long, "", model.TCP, 80, ready("10.0.2.50", "node-b"))}})
	bpffs, maps := pinned(t, services)
	fillFlows(t, maps, datapath.Dir(bpffs))
	s := terminal.Start(t, 80, 20, asCommand("top", "--bpffs", bpffs, "--interval", "100ms", "--sort", "name"))
	const names, narrow = `n+…n+ {3}w+…w+-9`, `n+…n+ w+…w+-9`
	for width, row := range map[int]string{
		120: names + ` {3}0\.0 {13}0\.0 {9}0 {7}1 *\n`,
		80:  names + ` {3}0\.0 {13}0\.0 {9}0 {7}1 *\n`,
		60:  narrow + ` 0\.0 {4}0\.0 {7}0 {5}1 *\n`,
		40:  narrow + ` 0\.0 {4}0\.0 {7}0 *\n`,
	} {
		s.Resize(width, 20)
		s.Matches(fmt.Sprintf("the figures at %d columns", width), row)
		s.Matches("those of the others, too", `shop +web +0\.0 +0\.0 +5`)
		s.Shows("how to end", "q: quit")
	}
	s.Resize(80, 8)
	s.Shows("names that are not seen take no room", "kube-system   busy ")
	s.Resize(20, 8)
	s.Shows("how to end, at least", "q: quit")
	s.Press("q")
	s.Ended(0)
}

// TestTopScreenErrors: what is wrong at the start is said at the shell, what comes later in the view.
func TestTopScreenErrors(t *testing.T) {
	nothing := t.TempDir()
	s := terminal.Start(t, 200, 10, asCommand("top", "--bpffs", nothing))
	s.Ended(cli.ExitNoDatapath)
	if text := s.Text(); !strings.Contains(text, "no datapath") || s.IsAltScreen() {
		t.Errorf("said:\n%s", text)
	}

	bpffs := newDatapath(t)
	s = terminal.Start(t, 200, 10, asCommand("top", "--bpffs", bpffs, "--interval", "100ms", "shop/gone"))
	s.Shows("of a Service that is not there", "Service shop/gone is not served")
	check(t, os.RemoveAll(datapath.Dir(bpffs)))
	s.Shows("the maps are gone", "NOT READ: no datapath")
	s.Press("\x03")
	s.Ended(0)
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
