package agent_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/killpoint"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/programs"
	"github.com/beeline-lb/beeline/tests/tier"
)

// killCase is what an agent is about to do when it is killed.
type killCase struct {
	name string
	// served is set when an agent served before.
	served bool
	// former is set when that was one of a version with other layouts.
	former bool
	change func(*lab.Standalone)
	flags  []string
}

var killCases = []killCase{
	{name: "start"},
	{name: "changes", served: true, change: func(s *lab.Standalone) {
		s.Write("first.yaml", web, webSlice, sticky, stickySlice,
			lab.Service("new", "{clusterIP: 10.96.0.9, ports: [{port: 80}]}"), lab.Slice("new", "8080/TCP", backends(3)...))
	}},
	{name: "sizes", served: true, flags: []string{
		"--max-services", "20000", "--max-backends", "50000", "--max-frontends", "20000",
		"--max-affinity-entries", "3000", "--max-udp-peers", "3000", "--max-flows", "20000", "--max-clients", "3000",
	}},
	{name: "layouts", served: true, former: true},
}

// gone is a Service that only the first agent knows.
var gone = lab.Service("gone", "{clusterIP: 10.96.0.8, ports: [{port: 80}]}")

// killed is a host at which agents of a case run.
type killed struct {
	killCase
	t     *testing.T
	h     *lab.Host
	s     *lab.Standalone
	flows *flows
}

func (c killCase) prepare(t *testing.T) *killed {
	t.Helper()
	k := &killed{killCase: c, t: t, h: lab.NewHost(t)}
	k.h.ServeBackends()
	k.s = k.h.NewStandalone(web, webSlice, sticky, stickySlice, gone, lab.Slice("gone", "8080/TCP", backends(2)...))
	if c.former {
		k.s.Former = lab.FormerAgent(t, programs.FormerLayouts["bl_service_stat"])
	}
	if c.served {
		k.s.Start()
		k.flows = openFlows(t, k.h)
		k.s.Signal(unix.SIGKILL)
		_ = k.s.Wait() // killed
		k.s.Former = ""
	}
	if c.change != nil {
		c.change(k.s)
	}
	return k
}

// check uses what is served all the time, if there is anything.
func (k *killed) check(when string) {
	k.t.Helper()
	if k.flows != nil {
		k.flows.check(k.t, k.h, when)
		mustReach(k.t, k.h, "tcp4", webTCP)
	}
}

// dump returns the tables' bytes, of whichever maps they are in. A backend that the next agent has
// to write anew has another generation, which is at its end.
func (k *killed) dump() map[string]string {
	k.t.Helper()
	entries := make(map[string]string)
	for key, value := range k.h.Dump(append(changing, "bl_source_share")...) { // a random seed
		if strings.HasPrefix(key, "bl_backend id") {
			value = value[:len(value)-8]
		}
		entries[mapID.ReplaceAllString(key, "")] = value
	}
	return entries
}

var mapID = regexp.MustCompile(` id \d+`)

// TestKilledAtWrite kills an agent at a system call that writes a map, a pin or a link: what was
// served is served, and the next agent ends with the bytes that it would have ended with.
func TestKilledAtWrite(t *testing.T) {
	t.Parallel()
	for _, c := range killCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, c.name == "changes")
			whole := c.prepare(t)
			w := whole.s.LaunchWatched(lab.BPFWrites, 0, c.flags...)
			if !whole.s.AwaitServing() {
				t.Fatalf("the agent ended: %v", w.Wait())
			}
			want := whole.dump()
			killpoint.Each(t, 2, w.Count(), func(t *testing.T, at int64) {
				k := c.prepare(t)
				if w := k.s.LaunchWatched(lab.BPFWrites, at, c.flags...); !w.Killed(at) {
					t.Fatalf("the agent ended after %d writes, before it was killed", w.Count())
				}
				k.check("after the agent was killed")
				k.s.Start(c.flags...)
				k.check("with the next agent")
				lab.CompareDumps(t, want, k.dump())
			})
		})
	}
}

// TestCleanupKilled kills a clean-up at a system call that removes something: the next one removes
// the rest.
func TestCleanupKilled(t *testing.T) {
	t.Parallel()
	tier.Slow(t, "starts many agents")
	cleanup := func(t *testing.T, kill int64) *lab.Writes {
		h, s := start(t)
		s.Signal(unix.SIGKILL)
		_ = s.Wait() // killed
		command := []string{"--cleanup", "--bpffs", h.BPFFS, "--cgroup-root", h.Cgroup}
		w := h.StartWatched(lab.BPFWrites, kill, lab.AgentBinary(t), command...)
		if killed := w.Killed(kill); killed != (kill > 0) {
			t.Fatalf("the clean-up ended after %d writes, was killed: %v", w.Count(), killed)
		}
		if kill > 0 {
			if err := h.Start(lab.AgentBinary(t), command...).Wait(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(filepath.Dir(datapath.Dir(h.BPFFS))); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("pins are left: %v", err)
		}
		if _, err := h.Reach("tcp4", webTCP); err == nil {
			t.Errorf("%s is still served", webTCP)
		}
		return w
	}
	killpoint.Each(t, 2, cleanup(t, 0).Count(), func(t *testing.T, at int64) { cleanup(t, at) })
}
