// Package verify compares what the cluster wants with what the kernel of this node has: the tables
// with what a sync of the agent would make of them, the programs with where they are to run, and
// the machine with what serving Services takes. It changes nothing, and the agent need not run.
package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/pkg/setup"
	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/pkg/statusmap"
)

// Part is what a finding is about.
type Part string

// The parts, in the order in which their findings are told.
const (
	Tables   Part = "tables"
	Programs Part = "programs"
	Machine  Part = "machine"
)

// Finding is something that is not as it should be.
type Finding struct {
	Part Part `json:"part"`
	// Kind is one word for each kind of finding, for scripts.
	Kind string `json:"kind"`
	// Service is that of which clients are affected, "" where that is not one alone.
	Service string `json:"service,omitempty"`
	What    string `json:"what"`
	Why     string `json:"why"` // it matters
	Fix     string `json:"fix"` // how to mend it

	service model.Name
	about   string // what of the machine
	// any says that a change of any Service may explain it for a moment.
	any bool
}

// Unchecked is something that could not be looked at.
type Unchecked struct {
	Part   Part   `json:"part"`
	Reason string `json:"reason"`
}

// Report is what one check has found. Its lists are never null.
type Report struct {
	Time     time.Time `json:"time"`
	Findings []Finding `json:"findings"`
	// Unchecked is what could not be looked at, which is no finding.
	Unchecked []Unchecked `json:"unchecked"`
	// Unsettled are the Services, and other parts of the tables, that changed faster than they
	// could be compared.
	Unsettled []string `json:"unsettled"`
	// Agent says that an agent runs, which mends its tables and programs by itself.
	Agent bool `json:"agent"`
}

// Options configure a [Checker].
type Options struct {
	// BPFFS is where the agent's pins are.
	BPFFS string
	// Settle is how long a difference has to last, while neither the source nor the agent has a
	// change that may explain it, until it is a finding; 0 is [DefaultSettle].
	Settle time.Duration
	// SourceTimeout is how long to wait for the source; 0 is
	// [DefaultSourceTimeout].
	SourceTimeout time.Duration
	// Only is the Service that [Checker.Candidates] is asked about: an API server need not list all
	// others then. Unless it is empty, there is nothing else to ask the checker.
	Only model.Name
}

// DefaultSettle is longer than a change takes from a source to the tables by far.
const DefaultSettle = 3 * time.Second

// DefaultSourceTimeout is longer than an API server takes to list what a large cluster has.
const DefaultSourceTimeout = 30 * time.Second

// Checker compares, again and again. Make one with [Open].
type Checker struct {
	opts Options
	maps *bpfmap.Maps
	// noted is the configuration that the agent has noted, settings what it says.
	noted    []byte
	settings *config.Settings
	// noSettings is why there are none.
	noSettings error
	source     setup.Services
	state      *source.State
	noSource   error
	// podsOfNodes are the ranges of all nodes' pods; nil: not known.
	podsOfNodes []netip.Prefix
	machine     MachineChecker
	stop        func()
}

// Open opens the maps that are pinned, and begins to follow the source that the agent has noted.
// The error is [fs.ErrNotExist] where nothing is pinned.
func Open(opts Options) (*Checker, error) {
	opts.Settle = cmp.Or(opts.Settle, DefaultSettle)
	opts.SourceTimeout = cmp.Or(opts.SourceTimeout, DefaultSourceTimeout)
	c := &Checker{opts: opts, stop: func() {}}
	if _, err := c.reopen(); err != nil {
		return nil, err
	}
	return c, nil
}

// reopen takes the maps that are pinned now: tables grow, and an agent that is started with another
// configuration replaces some, and may have another source. It reports whether the source is followed
// from now on.
func (c *Checker) reopen() (anew bool, err error) {
	maps, err := bpfmap.Open(datapath.Dir(c.opts.BPFFS))
	if err != nil {
		return false, err
	}
	text, former := statusmap.New(maps).Config(), c.maps
	c.maps, c.machine.Maps = maps, maps
	if former == nil {
		c.configure(text)
		return true, nil
	}
	if anew = !bytes.Equal(text, c.noted); anew {
		c.stop()
		c.configure(text)
	}
	return anew, former.Close()
}

// configure takes the configuration that the agent has noted, and begins to follow its source.
func (c *Checker) configure(text []byte) {
	c.noted, c.state, c.stop, c.podsOfNodes = text, source.NewState(), func() {}, nil
	c.machine.Settings, c.machine.ClockAhead, c.machine.NodeMissing = nil, nil, nil
	if c.settings, c.noSettings = decode(text); c.noSettings != nil {
		c.noSource = c.noSettings
		return
	}
	c.machine.Settings = c.settings
	if c.source, c.noSource = setup.Reader(c.settings, c.state, c.opts.Only); c.noSource == nil {
		c.machine.ClockAhead, c.machine.NodeMissing = c.source.ClockAhead, c.source.NodeMissing
		c.follow()
	}
}

// decode returns the settings that the agent was started with.
func decode(text []byte) (*config.Settings, error) {
	if len(text) == 0 {
		return nil, errors.New("the agent has not noted its configuration: start one of this version")
	}
	noted, err := config.Decode("the configuration noted by the agent", text)
	if err != nil {
		return nil, err
	}
	return noted.Settings()
}

// follow has the source tell of what there is.
func (c *Checker) follow() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.source.Run(ctx); err != nil {
			c.state.Synced() // the looks tell that nothing is there
		}
	}()
	c.stop = func() {
		cancel()
		<-done
	}
}

// Close gives up what was opened.
func (c *Checker) Close() error {
	c.stop()
	return c.maps.Close()
}

// Check looks at everything and returns what it has found. Network namespace and cgroups are
// those of the calling thread. The error is that of ctx.
func (c *Checker) Check(ctx context.Context) (*Report, error) {
	r := &Report{Time: time.Now(), Findings: []Finding{}, Unchecked: []Unchecked{}, Unsettled: []string{}}
	unchecked := func(part Part, err error) {
		if err != nil {
			r.Unchecked = append(r.Unchecked, Unchecked{part, err.Error()})
		}
	}
	var began time.Time
	held := holding{settle: c.opts.Settle, changed: c.changed, since: make(map[Finding]time.Time)}
	var below []Finding
	var noSource error
	for first := true; ; first = false {
		ran := c.agentRuns() // else its last changes are half of what is seen
		anew, err := c.reopen()
		if err != nil {
			return nil, err
		}
		if first || anew {
			noSource = c.AwaitSource(ctx)
		}
		start := time.Now()
		if first {
			began = start
			// Once: no agent changes it, and pods that come and go change its text.
			below, err = c.lookBelow()
			unchecked(Programs, err)
		}
		found, failed := c.look(ctx, noSource == nil)
		found = append(found, below...)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r.Agent = c.agentRuns()
		held.see(found, start)
		waiting := statusmap.New(c.maps).Waiting()
		confirmed, open := held.judge(start, ran || r.Agent, waiting)
		if len(open) == 0 || start.Sub(began) > 4*c.opts.Settle {
			unchecked(Tables, noSource)
			for part, err := range failed {
				unchecked(part, err)
			}
			if r.Agent {
				confirmed = append(confirmed, c.hangs(waiting)...)
			}
			r.Findings, r.Unsettled = confirmed, unsettled(open)
			break
		}
		if !pause.For(ctx, c.opts.Settle/20) {
			return nil, ctx.Err()
		}
	}
	c.complete(r)
	return r, nil
}

// hangs is the finding of an agent that does not write what it knows, where waiting is since when it knows
// of a change. One that has just been started waits for its source.
func (c *Checker) hangs(waiting time.Time) []Finding {
	limit := 4 * c.opts.Settle
	if c.settings != nil {
		limit += 2 * c.settings.MinSyncPeriod
	}
	told := statusmap.New(c.maps).Agent()
	if waiting.IsZero() || time.Since(waiting) <= limit || told.Syncs == 0 {
		return nil
	}
	return []Finding{{Part: Tables, Kind: "agent-waiting",
		What: fmt.Sprintf("the agent has not written changes to the tables that it has known since %s", waiting.UTC().Format(time.RFC3339))}}
}

// AwaitSource returns why the source has not told of everything; nil when it has.
func (c *Checker) AwaitSource(ctx context.Context) error {
	if c.noSource != nil {
		return fmt.Errorf("no source to compare with: %w", c.noSource)
	}
	select {
	case <-c.state.Complete():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(c.opts.SourceTimeout):
		return fmt.Errorf("%s has not listed all Services within %s", statusmap.New(c.maps).Agent().Source, c.opts.SourceTimeout)
	}
}

// look looks once at everything. What could not be looked at is in failed.
func (c *Checker) look(ctx context.Context, source bool) (found []Finding, failed map[Part]error) {
	failed = make(map[Part]error)
	note := func(part Part, list []Finding, err error) {
		found = append(found, list...)
		if err != nil {
			failed[part] = errors.Join(failed[part], err)
		}
	}
	if source {
		list, err := c.lookAtTables(ctx)
		note(Tables, list, err)
	}
	list, err := c.lookAtDerived()
	note(Tables, list, err)
	list, err = c.lookAtPrograms()
	note(Programs, list, err)
	list, err = c.machine.look()
	note(Machine, list, err)
	return found, failed
}

// changed returns when the source last changed what may explain a finding.
func (c *Checker) changed(f Finding) time.Time {
	switch {
	case f.Part != Tables:
		return time.Time{}
	case f.any:
		return c.state.Latest()
	}
	return c.state.Changed(f.service)
}

// agentRuns reports whether an agent runs.
func (c *Checker) agentRuns() bool {
	_, running, err := datapath.Running(c.opts.BPFFS)
	return err == nil && running
}

// complete says why findings matter and how to mend them, and orders them and what could not be looked at.
func (c *Checker) complete(r *Report) {
	for i := range r.Findings {
		r.Findings[i].explain(r.Agent)
	}
	slices.SortFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(a.Part.compare(b.Part), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.What, b.What))
	})
	slices.SortFunc(r.Unchecked, func(a, b Unchecked) int {
		return cmp.Or(a.Part.compare(b.Part), cmp.Compare(a.Reason, b.Reason))
	})
}

// compare compares the places of parts in their order.
func (p Part) compare(other Part) int {
	order := []Part{Tables, Programs, Machine}
	return cmp.Compare(slices.Index(order, p), slices.Index(order, other))
}
