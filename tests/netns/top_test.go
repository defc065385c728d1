package netns_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/cli"
	"github.com/beeline-lb/beeline/pkg/monitor"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// topOf runs beeline top of default/dual with more arguments, until ctx ends, and returns the exit code.
func topOf(ctx context.Context, h *lab.Host, stall time.Duration, out, errs io.Writer, args ...string) int {
	return cli.Run(ctx, cli.Env{Out: out, Err: errs, Now: time.Now, Stall: stall}, append([]string{"--bpffs", h.BPFFS, "top", "default/dual", "--interval", "100ms"}, args...)...)
}

// watchTop runs beeline top of default/dual in JSON until stop is called, and returns the maps that it reads and what it
// prints.
func watchTop(t *testing.T, stall time.Duration, errs io.Writer) (h *lab.Host, maps *bpfmap.Maps, read io.Reader, stop func()) {
	t.Helper()
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	ctx, stop := context.WithCancel(t.Context())
	read, out := io.Pipe()
	go func() {
		topOf(ctx, h, stall, out, errs, "--count", "1000000", "-o", "json")
		out.Close()
	}()
	return h, openMaps(t, h), read, stop
}

// TestTopNew: of a Service of the default algorithm beeline top shows which backends new connections of sockets go to,
// of processes and of pods. It listens while it runs, and not of all Services.
func TestTopNew(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	var errs bytes.Buffer
	h, maps, read, stop := watchTop(t, 0, &errs)
	readings := json.NewDecoder(read)
	next := func() (top inspect.Top) {
		t.Helper()
		if err := readings.Decode(&top); err != nil {
			t.Fatal(err, &errs)
		}
		return top
	}
	first := next()
	if first.New == nil || first.New.NotHeard != "" || listening(maps) != 1 {
		t.Errorf("while it runs, %d listen: %+v", listening(maps), first.New)
	}
	const each = 20
	reached := make(map[netip.AddrPort]int)
	for range each {
		reached[mustReach(t, h.Namespace, "tcp4", dualTCP4)]++
		reached[mustReach(t, h.Pod, "tcp4", dualTCP4)]++
		mustReach(t, h.Pod, "udp6", dualUDP6)
	}
	var last inspect.Top
	lab.Eventually(t, "all new connections are counted", func() bool {
		last = next()
		seen := 0
		for _, p := range last.Services[0].Ports {
			for _, b := range p.Backends {
				if b.New != nil {
					seen += *b.New
				}
			}
		}
		return seen == 3*each
	})
	for _, p := range last.Services[0].Ports {
		for _, b := range p.Backends {
			if p.Port != 80 || p.Family != "IPv4" {
				continue
			}
			if n := reached[b.Address]; b.New == nil || *b.New != n || *b.NewShare != float64(n)/(2*each) || b.Connections != 0 {
				t.Errorf("%s answered %d of %d connections, shown: %+v", b.Address, n, 2*each, b)
			}
		}
	}
	stop()
	_, _ = io.Copy(io.Discard, read)
	if n := listening(maps); n != 0 {
		t.Errorf("%d listen when it has ended", n)
	}
}

// TestTopNewBusy: where as many listen as may, beeline top shows the rest and says what is missing.
func TestTopNewBusy(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyDual(a)
	maps := openMaps(t, h)
	for range monitor.Max {
		listen(t, maps, monitor.Options{Rate: 10})
	}
	var out, errs bytes.Buffer
	code := topOf(t.Context(), h, 0, &out, &errs)
	if code != cli.ExitOK || errs.Len() > 0 || !strings.Contains(out.String(), lab.Backend4(1).String()+":8080") ||
		!strings.Contains(out.String(), "4 listen to events already") {
		t.Errorf("exit code %d, said %q, printed\n%s", code, &errs, &out)
	}
}

// TestTopNewStalled: beeline top whose output nobody reads gives up its place, and takes one again when somebody does.
func TestTopNewStalled(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	_, maps, read, stop := watchTop(t, time.Second, io.Discard)
	lab.Eventually(t, "it listens", func() bool { return listening(maps) == 1 })
	lab.Eventually(t, "it has given up its place", func() bool { return listening(maps) == 0 })
	var ended sync.WaitGroup
	ended.Go(func() { _, _ = io.Copy(io.Discard, read) })
	lab.Eventually(t, "it listens again", func() bool { return listening(maps) == 1 })
	stop()
	ended.Wait()
}
