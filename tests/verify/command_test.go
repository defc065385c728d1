package verify_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/verify"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/wait"
)

// beeline runs the command on the node.
func (n *node) beeline(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	check(t, n.Host.Run(func() error {
		code = cli.Run(t.Context(), cli.Env{Out: &stdout, Err: &stderr, Now: time.Now}, append([]string{"--bpffs", n.BPFFS}, args...)...)
		return nil
	}))
	return code, stdout.String(), stderr.String()
}

// TestCommand: what the command prints and which exit code it has.
func TestCommand(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if code, out, errs := n.beeline(t, "verify"); code != cli.ExitOK || out != "Nothing found.\n" || errs != "" {
		t.Errorf("on a healthy node: exit code %d, %q, %q", code, out, errs)
	}
	n.hang(t)
	n.end()
	if code, out, errs := n.beeline(t, "verify"); code != cli.ExitOK || !contains(out, "Nothing found.\n", "No agent runs: ") || errs != "" {
		t.Errorf("without an agent: exit code %d, %q, %q", code, out, errs)
	}
	if _, out, _ := n.beeline(t, "top", "--interval", "500ms"); !strings.HasPrefix(out, "NO AGENT RUNS: ") {
		t.Errorf("top without an agent: %q", out)
	}
	n.detach(t, "link_bl_connect4")
	code, out, errs := n.beeline(t, "verify")
	if code != 1 || errs != "beeline: 1 finding\n" || !contains(out, "1 finding.\n", "\nprograms: link-detached\n  the link of bl_connect4",
		"\n  Why it matters: ", "\n  To mend it: ") {
		t.Errorf("with a finding: exit code %d, %q, %q", code, out, errs)
	}
	code, out, _ = n.beeline(t, "verify", "-o", "json")
	var r verify.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 1 || len(r.Findings) != 1 || r.Findings[0].Kind != "link-detached" || r.Agent {
		t.Errorf("as JSON: exit code %d, %v\n%s", code, err, out)
	}
	n.mend()
	check(t, os.Rename(n.Manifests, n.Manifests+"-away"))
	code, out, errs = n.beeline(t, "verify", "--timeout", "1s")
	if code != cli.ExitFailure || !contains(out, "Nothing found.", "Not checked: tables: ", "has not listed all Services") || !contains(errs, "not all could be checked") {
		t.Errorf("without the source: exit code %d, %q, %q", code, out, errs)
	}
	check(t, os.Rename(n.Manifests+"-away", n.Manifests))
	check(t, statusmap.New(n.maps()).SetConfig(nil))
	code, out, _ = n.beeline(t, "verify")
	if code != cli.ExitFailure || !contains(out, "the agent has not noted its configuration") {
		t.Errorf("without a configuration: exit code %d, %q", code, out)
	}
	code = cli.Run(t.Context(), cli.Env{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}, Now: time.Now}, "--bpffs", t.TempDir(), "verify")
	if code != cli.ExitNoDatapath {
		t.Errorf("without a datapath: exit code %d", code)
	}
}

// hang stops the agent in the middle of a change, which verify and status have to tell, and lets it
// go on.
func (n *node) hang(t *testing.T) {
	t.Helper()
	n.Signal(unix.SIGSTOP)
	table := statusmap.New(n.maps())
	table.SetWaiting(time.Now().Add(-time.Hour))
	// What the agent knows of no file explains no difference.
	if code, out, _ := n.beeline(t, "verify", "--settle", "100ms"); code != 1 || !contains(out, "1 finding.\n", "tables: agent-waiting", "restart it") {
		t.Errorf("while the agent hangs: exit code %d, %q", code, out)
	}
	if _, out, _ := n.beeline(t, "status"); !contains(out, ", changes wait for ") {
		t.Errorf("status while the agent hangs:\n%s", out)
	}
	table.SetWaiting(time.Time{})
	n.Signal(unix.SIGCONT)
}

// TestWatch: verify --watch prints what it finds, again when that changes, and nothing in between.
func TestWatch(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.end()
	w := n.watch(t, wait.Limit)
	w.want(" Nothing found.")
	n.detach(t, "link_bl_connect4")
	w.want("the link of bl_connect4")
	n.detach(t, "link_bl_connect6")
	w.want("the link of bl_connect6")
	w.closed.Store(true)
	n.detach(t, "link_bl_sendmsg4")
	select {
	case <-w.ended:
	case <-time.After(wait.Limit):
		t.Fatal("it does not end when it cannot print")
	}
	if len(w.printed) > 0 {
		t.Errorf("printed %q, too", <-w.printed)
	}
}

// TestWatchFollows: tables that grow, and an agent that is started with other sizes and another
// configuration, are no findings of verify --watch, which compares with what is pinned now.
func TestWatchFollows(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	w := n.watch(t, wait.Limit, "--settle", "1m") // an agent on a busy machine may take long between two writes
	w.want(" Nothing found.")
	more := make([]string, 0, 4500) // more than there are in a chunk of the tables
	for i := range cap(more) {
		more = append(more, lab.Service(fmt.Sprintf("more-%d", i), fmt.Sprintf("{clusterIP: 10.96.%d.%d, ports: [{port: 80}]}", 16+i/250, i%250)))
	}
	n.Write("more.yaml", more...)
	lab.Eventually(t, "the agent serves them", func() bool {
		status, err := inspect.Read(n.BPFFS, (*inspect.Datapath).Status)
		return err == nil && status.Served.Services >= len(more)
	})
	n.end()
	_, err := datapath.Cleanup(t.Context(), n.BPFFS)
	check(t, err)
	n.flags = []string{"--max-frontends=20000", "--nodeport-addresses=192.0.2.0/24"}
	n.mend()
	// The last of all that is found, without what was found before.
	n.detach(t, "link_bl_connect4")
	for last := ""; !strings.Contains(last, "the link of bl_connect4"); {
		select {
		case last = <-w.printed:
		case <-w.ended:
			t.Fatalf("it has ended: %v", w.err)
		case <-time.After(wait.Limit):
			t.Fatal("nothing is printed of a link that is detached")
		}
		if strings.Contains(last, "tables: frontend") || strings.Contains(last, "tables: service") || strings.Contains(last, "tables: node-address") {
			t.Errorf("printed %q", last)
		}
	}
}

// TestWatchPins: verify --watch goes on while a part of the maps is pinned, as it is while an agent starts or
// a clean-up is made, and ends when that lasts.
func TestWatchPins(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.end()
	w := n.watch(t, wait.Limit)
	w.want(" Nothing found.")
	pin, aside := filepath.Join(datapath.Dir(n.BPFFS), bpfmap.PinName("bl_node")), filepath.Join(n.BPFFS, "aside")
	check(t, os.Rename(pin, aside))
	w.want("bl_node: pinned by another version, which has no such map, checking again")
	check(t, os.Rename(aside, pin))
	w.want(" Nothing found.")
	w = n.watch(t, time.Nanosecond)
	w.want(" Nothing found.")
	check(t, os.Rename(pin, aside))
	select {
	case <-w.ended:
	case <-time.After(wait.Limit):
		t.Fatal("it does not end while a map is missing")
	}
	if w.err == nil || !strings.Contains(w.err.Error(), fmt.Sprintf("exit code %d: ", cli.ExitFailure)) || !strings.Contains(w.err.Error(), "bl_node: pinned by another version, which has no such map") {
		t.Errorf("ended with %v", w.err)
	}
	check(t, os.Rename(aside, pin)) // it is removed with the others
}

// watching is a verify --watch that goes on.
type watching struct {
	t       *testing.T
	printed chan string
	closed  atomic.Bool   // what it prints to, which ends it
	ended   chan struct{} // closed when it has ended
	err     error         // with which it has
}

// watch starts verify --watch on the node, for which maps may be missing so long. Unless it ends before, it does
// with the test.
func (n *node) watch(t *testing.T, renewal time.Duration, flags ...string) *watching {
	t.Helper()
	w := &watching{t: t, printed: make(chan string, 64), ended: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	out := writer(func(text []byte) (int, error) {
		if w.closed.Load() {
			return 0, io.ErrClosedPipe
		}
		select {
		case w.printed <- string(text):
			return len(text), nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	})
	t.Cleanup(func() {
		stop()
		<-w.ended
	})
	go func() {
		defer close(w.ended)
		var errs bytes.Buffer
		env := cli.Env{Out: out, Now: time.Now, Renewal: renewal, Err: writer(func(text []byte) (int, error) {
			_, _ = out(text)
			return errs.Write(text)
		})}
		w.err = n.Host.Thread(func() error {
			if code := cli.Run(ctx, env, append([]string{"--bpffs", n.BPFFS, "verify", "--watch", "--interval", "10ms"}, flags...)...); code != cli.ExitOK {
				return fmt.Errorf("exit code %d: %s", code, errs.String())
			}
			return nil
		})
	}()
	return w
}

// want waits for a part of what is printed next.
func (w *watching) want(part string) {
	w.t.Helper()
	select {
	case got := <-w.printed:
		if !strings.Contains(got, part) {
			w.t.Errorf("printed %q, want %q", got, part)
		}
	case <-w.ended:
		w.t.Fatalf("it has ended: %v", w.err)
	case <-time.After(wait.Limit):
		w.t.Fatalf("nothing is printed, want %q", part)
	}
}

// writer is a function that is written to.
type writer func([]byte) (int, error)

func (w writer) Write(text []byte) (int, error) { return w(text) }

// TestExplainEndpoints: beeline explain names the endpoints that are in no set, by the source, with their
// reasons, and says so when the source does not answer.
func TestExplainEndpoints(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	endpoints := []string{"{addresses: [10.77.0.1]}", "{addresses: [10.77.1.200], conditions: {ready: false, serving: true, terminating: true}}"}
	for i := range 24 {
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [10.77.1.%d], conditions: {ready: false, serving: false}}", i+1))
	}
	n.Write("broken.yaml", lab.Service("typo", "{clusterIP: 10.96.9.1, ports: [{port: 80}]}"),
		lab.Service("starting", "{clusterIP: 10.96.9.2, ports: [{port: 80}]}"),
		lab.SliceOf("starting", "8080/TCP", "{addresses: [10.77.0.3], conditions: {ready: false, serving: false}}"),
		lab.Service("half", "{clusterIP: 10.96.9.3, ports: [{port: 80}]}"), lab.SliceOf("half", "8080/TCP", endpoints...))
	ports := func(ports string) {
		n.Write("ports.yaml", lab.Service("ports", "{clusterIP: 10.96.9.4, ports: ["+ports+"]}"), lab.SliceOf("ports", "b:8080/TCP", "{addresses: [10.77.0.4]}"))
	}
	ports("{name: a, port: 80}, {name: b, port: 81}")
	lab.Eventually(t, "the Services are served", func() bool {
		for _, service := range []string{"typo", "starting", "half", "ports"} {
			if code, _, _ := n.beeline(t, "service", "show", "default/"+service); code != cli.ExitOK {
				return false
			}
		}
		code, _, _ := n.beeline(t, "explain", "10.96.9.3:80")
		return code == cli.ExitOK
	})
	n.end()
	code, out, errs := n.beeline(t, "explain", "10.96.9.1:80")
	if code != cli.ExitRefused || errs != "" || !contains(out, "no EndpointSlice lists an endpoint for this port") {
		t.Errorf("without endpoints: exit code %d, %q\n%s", code, errs, out)
	}
	code, out, errs = n.beeline(t, "explain", "10.96.9.2:80")
	if code != cli.ExitRefused || errs != "" || !contains(out, "1 endpoint listed, 0 ready", "10.77.0.3:8080", "not ready") {
		t.Errorf("with one that is not ready: exit code %d, %q\n%s", code, errs, out)
	}

	code, out, errs = n.beeline(t, "explain", "10.96.9.3:80")
	if code != cli.ExitOK || errs != "" || !contains(out, "26 endpoints listed, 1 ready", "10.77.0.1:8080", "10.77.1.20:8080", "not ready", "and 5 more endpoints get no connections: see -o wide") ||
		strings.Contains(out, "10.77.1.21:8080") {
		t.Errorf("with 25 that are in no set: exit code %d, %q\n%s", code, errs, out)
	}
	code, out, _ = n.beeline(t, "explain", "-o", "wide", "10.96.9.3:80")
	if code != cli.ExitOK || !contains(out, "10.77.1.24:8080", "10.77.1.200:8080", "terminating, and others are ready") || strings.Contains(out, "see -o wide") {
		t.Errorf("all of them: exit code %d\n%s", code, out)
	}
	code, out, _ = n.beeline(t, "explain", "-o", "json", "10.96.9.3:80")
	var list []inspect.Explanation
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != cli.ExitOK || len(list) != 1 || len(list[0].Backends) != 26 {
		t.Errorf("as JSON: exit code %d, %v\n%s", code, err, out)
	}

	ports("{name: b, port: 81}")
	code, out, errs = n.beeline(t, "explain", "default/ports")
	if code != cli.ExitRefused || errs != "" || strings.Count(out, "the source has no port default/ports:a/TCP any more") != 1 || !contains(out, "1 endpoint listed, 1 ready") {
		t.Errorf("with a port that the source has no more: exit code %d, %q\n%s", code, errs, out)
	}

	const unknown = "not read, so endpoints in no set are not known: "
	check(t, os.Rename(n.Manifests, n.Manifests+"-away"))
	code, out, errs = n.beeline(t, "explain", "--timeout", "100ms", "10.96.9.3:80")
	if code != cli.ExitOK || errs != "" || !contains(out, "10.77.0.1:8080", unknown, "has not listed all Services within 100ms") {
		t.Errorf("without the source: exit code %d, %q\n%s", code, errs, out)
	}
	check(t, os.Rename(n.Manifests+"-away", n.Manifests))
	check(t, statusmap.New(n.maps()).SetConfig(nil))
	code, out, errs = n.beeline(t, "explain", "10.96.9.3:80")
	if code != cli.ExitOK || errs != "" || !contains(out, "10.77.0.1:8080", unknown, "the agent has not noted its configuration") {
		t.Errorf("without a configuration: exit code %d, %q\n%s", code, errs, out)
	}
}
