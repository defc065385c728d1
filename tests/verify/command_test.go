package verify_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
		code = cli.Run(cli.Env{Out: &stdout, Err: &stderr, Now: time.Now}, append([]string{"--bpffs", n.BPFFS}, args...)...)
		return nil
	}))
	return code, stdout.String(), stderr.String()
}

// TestCommand: what the command prints and which exit code it has.
func TestCommand(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.end()
	if code, out, errs := n.beeline(t, "verify"); code != cli.ExitOK || out != "Nothing found.\n" || errs != "" {
		t.Errorf("on a healthy node: exit code %d, %q, %q", code, out, errs)
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
	code = cli.Run(cli.Env{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}, Now: time.Now}, "--bpffs", t.TempDir(), "verify")
	if code != cli.ExitNoDatapath {
		t.Errorf("without a datapath: exit code %d", code)
	}
}

// TestWatch: verify --watch prints what it finds, again when that changes, and nothing in between.
func TestWatch(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.end()
	printed := make(chan string, 16)
	var closed atomic.Bool // which ends the command
	out := writer(func(text []byte) (int, error) {
		if closed.Load() {
			return 0, io.ErrClosedPipe
		}
		printed <- string(text)
		return len(text), nil
	})
	ended := make(chan error, 1)
	go func() {
		ended <- n.Host.Run(func() error {
			cli.Run(cli.Env{Out: out, Err: io.Discard, Now: time.Now}, "--bpffs", n.BPFFS, "verify", "--watch", "--interval", "10ms")
			return nil
		})
	}()
	want := func(part string) {
		t.Helper()
		select {
		case got := <-printed:
			if !strings.Contains(got, part) {
				t.Errorf("printed %q, want %q", got, part)
			}
		case <-time.After(wait.Limit):
			t.Fatalf("nothing is printed, want %q", part)
		}
	}
	want(" Nothing found.")
	n.detach(t, "link_bl_connect4")
	want("the link of bl_connect4")
	n.detach(t, "link_bl_connect6")
	want("the link of bl_connect6")
	closed.Store(true)
	n.detach(t, "link_bl_sendmsg4")
	select {
	case err := <-ended:
		check(t, err)
	case <-time.After(wait.Limit):
		t.Fatal("it does not end when it cannot print")
	}
	if len(printed) > 0 {
		t.Errorf("printed %q, too", <-printed)
	}
}

// writer is a function that is written to.
type writer func([]byte) (int, error)

func (w writer) Write(text []byte) (int, error) { return w(text) }

// TestExplainEndpoints: where a connection is not served, beeline explain names the endpoints that
// are in no set, by the source, with their reasons.
func TestExplainEndpoints(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Write("broken.yaml", lab.Service("typo", "{clusterIP: 10.96.9.1, ports: [{port: 80}]}"),
		lab.Service("starting", "{clusterIP: 10.96.9.2, ports: [{port: 80}]}"),
		lab.SliceOf("starting", "8080/TCP", "{addresses: [10.77.0.3], conditions: {ready: false, serving: false}}"))
	lab.Eventually(t, "the Services are served", func() bool {
		code, _, _ := n.beeline(t, "service", "show", "default/starting")
		other, _, _ := n.beeline(t, "service", "show", "default/typo")
		return code == cli.ExitOK && other == cli.ExitOK
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
}
