package netns_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/pkg/monitor"
	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/targz"
	"github.com/beeline-lb/beeline/tests/tier"
)

// reportEvents makes a report of a host and returns the events in it, its index and what was said.
func reportEvents(t *testing.T, h *lab.Host, flags ...string) (events []inspect.Event, index, errs string) {
	t.Helper()
	var out, said bytes.Buffer
	args := append([]string{"--bpffs", h.BPFFS, "report", "-o", "-"}, flags...)
	if code := cli.Run(t.Context(), cli.Env{Out: &out, Err: &said, Now: time.Now}, args...); code != cli.ExitOK {
		t.Fatalf("exit code %d: %s", code, &said)
	}
	for name, content := range targz.Files(t, &out) {
		switch path.Base(name) {
		case "index.txt":
			index = content
		case "events.jsonl":
			if strings.ContainsFunc(content, func(r rune) bool { return unicode.IsControl(r) && r != '\n' }) {
				t.Errorf("the report's events have control characters: %q", content)
			}
			for line := range strings.Lines(content) {
				var e inspect.Event
				if err := json.Unmarshal([]byte(line), &e); err != nil {
					t.Fatalf("%v in %q", err, line)
				}
				events = append(events, e)
			}
		}
	}
	return events, index, said.String()
}

// attempts are connections of a socket that is bound to an address, of which one address takes
// them and the other refuses them, made again and again.
type attempts struct {
	heard int // while somebody listened
	stop  func()
}

// refusing is an address that refuses all: the Service does not have the port.
var refusing = ap("10.96.0.1:81")

// obeyed is the name of a process, which a terminal would obey.
const obeyed = "a\u009b2J\x7f"

// named calls fn on a thread of that name, which ends then. It is not the first one, whose name is the
// process's.
func named(name string, fn func()) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread()
			err = named(name, fn)
			return
		}
		if err = os.WriteFile("/proc/thread-self/comm", []byte(name), 0); err == nil {
			fn()
		}
	}()
	<-done
	return err
}

// startAttempts makes attempts until they are stopped.
func startAttempts(t *testing.T, h *lab.Host) *attempts {
	maps, a := openMaps(t, h), new(attempts)
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	a.stop = func() { cancel(); all.Wait() }
	t.Cleanup(a.stop)
	attempt := func() {
		for i := 0; ctx.Err() == nil; i++ {
			if i%3 == 0 {
				pause.For(ctx, time.Millisecond) // else it takes a whole processor
			}
			before := listening(maps)
			for _, to := range []netip.AddrPort{dualTCP4, refusing} {
				if err := connectBound(h, to); err != nil && (to != refusing || err != unix.ECONNREFUSED) {
					t.Errorf("%s: %v", to, err)
				}
			}
			if before > 0 && listening(maps) > 0 {
				a.heard++
			}
		}
	}
	all.Go(func() {
		if err := named(obeyed, attempt); err != nil {
			t.Error(err)
		}
	})
	return a
}

// connectBound connects a socket that is bound to an address of the host.
func connectBound(h *lab.Host, to netip.AddrPort) error {
	s := h.Socket("tcp4")
	defer s.Close()
	if err := s.Bind(netip.AddrPortFrom(lab.Node4, 0)); err != nil {
		return err
	}
	return s.Connect(to)
}

// TestReportEvents: a report has the connections that are made and refused meanwhile, and how many
// it leaves out; clients are named when that is asked for. Names of processes do nothing to a terminal.
func TestReportEvents(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges})
	a.Apply(dual, lab.Slice("dual", "web:8080/TCP", backends4(1)...))
	for _, flags := range [][]string{nil, {"--clients"}} {
		var made *attempts
		var events []inspect.Event
		var index string
		for made == nil || made.heard == 0 { // a slow machine makes none in two seconds
			made = startAttempts(t, h)
			events, index, _ = reportEvents(t, h, flags...)
			made.stop()
		}
		leftOut, seen := uint64(0), make(map[string]int)
		for _, e := range events {
			leftOut += e.LeftOut
			if e.Kind == inspect.EventLeftOut || e.Kind == inspect.EventEnded {
				continue // of what has ended the beginning may have been before
			}
			if clients := len(flags) > 0; e.PID != uint32(os.Getpid()) || e.Command != obeyed || clients != (e.Client.Addr() == lab.Node4) {
				t.Errorf("with %v, an event is of %q[%d] at %s", flags, e.Command, e.PID, e.Client)
			}
			seen[fmt.Sprintf("%s %s %s %s", e.Kind, e.ServiceAddress, e.Service, e.Reason)]++
		}
		if seen["connection "+dualTCP4.String()+" default/dual:web "] == 0 || seen["refused "+refusing.String()+" default/dual undeclared_port"] == 0 {
			t.Errorf("of %d connections made and as many refused, the report has %v\n%s", made.heard, seen, index)
		}
		// Each attempt has three events; no more than some 2,000 are told.
		if made.heard > 1500 && leftOut == 0 {
			t.Errorf("of %d connections made and as many refused, %v are told and none is left out", made.heard, seen)
		}
		t.Logf("%d attempts heard, %d events, %d left out", made.heard, len(events), leftOut)
	}
}

// TestReportBusy: a report goes on without events when as many listen as may.
func TestReportBusy(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{ServiceRanges: serviceRanges})
	a.Apply(dual)
	maps := openMaps(t, h)
	for range monitor.Max {
		listen(t, maps, monitor.Options{Rate: 10})
	}
	events, index, errs := reportEvents(t, h)
	const reason = "4 listen to events already, which is as many as may"
	if len(events) > 0 || !strings.Contains(errs, "events.jsonl: "+reason) || !strings.Contains(index, "FAILED: "+reason) {
		t.Errorf("%d events; said %q; the index:\n%s", len(events), errs, index)
	}
}
