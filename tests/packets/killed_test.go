package packets_test

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/killpoint"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/programs"
	"github.com/beeline-lb/beeline/tests/tier"
)

// killCase is an agent that takes over from another one, and is killed at a write.
type killCase struct {
	name   string
	flags  []string // of both
	resize []string // of the second one and, but for back, of those after it
	back   bool     // those after it have the first one's sizes
	// before and killed say which of the two is one of a version with other layouts.
	before, killed bool
	writes         lab.WatchedWrites
}

var otherSizes = []string{"--max-flows", "20000", "--max-clients", "3000"}

var killCases = []killCase{
	{name: "restart", writes: lab.BPFWrites},
	{name: "sizes", resize: otherSizes, writes: lab.BPFWrites},
	{name: "sizes and back", resize: otherSizes, back: true, writes: lab.BPFWrites},
	{name: "upgrade", before: true, writes: lab.BPFWrites},
	{name: "rollback", killed: true, writes: lab.BPFWrites},
	{name: "xdp", flags: []string{"--xdp", "generic"}, writes: lab.BPFWrites},
	{name: "clsact", flags: []string{"--tc-mode", "clsact"}, writes: lab.NetfilterWrites},
}

// takeOver has the agent of the case take over, killed at its write of that number, and one more after it;
// 0 is never. Connections go on all the time, and new ones are served in the end.
func (k killCase) takeOver(t *testing.T, kill int64) *lab.Writes {
	t.Helper()
	former := ""
	if k.before || k.killed {
		former = lab.FormerAgent(t, programs.FormerLayouts["bl_service_stat"])
	}
	c := newCluster(t, false)
	c.serveAll(t)
	manifests := append(c.service(1, "far", "", []endpoint{remote}), c.service(2, "near", "", []endpoint{local})...)
	a := newAgent(t, c.nodes[0], manifests, k.flags...)
	if k.before {
		a.former = former
	}
	a.start()
	type connection struct {
		socket *lab.Socket
		hello  greeting
	}
	open := make(map[string][]connection)
	for _, network := range networks {
		for i := 1; i <= 2; i++ {
			s, hello := connect(t, c.client, network, nodePort(network, i))
			open[network] = append(open[network], connection{s, hello})
		}
	}
	check := func(when string) {
		t.Helper()
		for network, list := range open {
			for _, k := range list {
				got, err := k.hello, error(nil)
				if strings.HasPrefix(network, "tcp") {
					err = echo(k.socket, when)
				} else {
					got, err = talkUDP(k.socket, "x")
				}
				if got != k.hello {
					t.Errorf("%s: %s: %v, was %v", when, network, got, k.hello)
				}
				if err != nil {
					t.Errorf("%s: %s: %v", when, network, err)
				}
			}
		}
	}
	a.Signal(unix.SIGKILL)
	_ = a.Wait() // killed
	a.Former = ""
	if k.killed {
		a.Former = former
	}
	first := a.flags
	a.flags = slices.Concat(first, k.resize)
	w := a.LaunchWatched(k.writes, kill, a.flags...)
	if kill == 0 {
		if !a.AwaitServing() {
			t.Fatalf("the agent ended: %v", w.Wait())
		}
		check("with the next agent")
		return w
	}
	if !w.Killed(kill) {
		t.Fatalf("the agent ended after %d writes, before it was killed", w.Count())
	}
	check("after the agent was killed")
	a.former = ""
	if k.back {
		a.flags = first
	}
	a.start()
	check("with the agent after it")
	for _, network := range networks {
		connect(t, c.client, network, nodePort(network, 1))
	}
	return w
}

// TestPacketsOfKilledAgent kills an agent that takes over from another one at a system call that writes
// a map, a pin, a link or, without tcx, a filter of a device: no packet of a connection is lost, and the next
// agent serves as ever.
func TestPacketsOfKilledAgent(t *testing.T) {
	t.Parallel()
	for _, k := range killCases {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			tier.Slow(t, "starts many agents")
			killpoint.Each(t, 2, k.takeOver(t, 0).Count(), func(t *testing.T, at int64) { k.takeOver(t, at) })
		})
	}
}
