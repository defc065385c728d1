package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/kubectl"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/pause"
)

const pluginMonitorLong = `Show connections on all nodes, or on some, as they begin, end or fail.

It runs beeline monitor in the agents' pods; each line begins with the name of its node, and with
-o json and yaml each event has the field node. Events are shown as they come, with the times of
the nodes' clocks.

--rate and --sample are for each node, --count is for all together. --timeout is how long to wait
until a node listens. A node that does not answer, or whose stream ends, is named on standard
error with the reason, and the others go on. One whose agent's pod restarts is followed again
when it runs, within 10 minutes, and what happens meanwhile is not shown. It is waited for no
longer when the node is deleted, when exec is forbidden, when its stream has ended five times
in a row, each within two minutes, or when its events are not shown for a minute, as while a pager
waits.

It ends with --count events, with Ctrl+C (exit code 0), or when no node is left. What it runs in
the pods ends with it, also when it is killed.`

func (p *plugin) monitorCommand() *cobra.Command {
	f := new(monitorFlags)
	cmd := &cobra.Command{
		Use:   "monitor",
		Short: "Show connections on all nodes as they begin, end or fail",
		Long:  pluginMonitorLong,
		Example: `  kubectl beeline monitor --drops
  kubectl beeline monitor --service shop/web --node node-1 --node node-2
  kubectl beeline monitor --reason no_endpoint -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(p.command); err != nil {
				return &usageError{err, cmd.CommandPath()}
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			err := p.monitor(ctx, f)
			if ctx.Err() != nil {
				return nil
			}
			return err
		},
	}
	f.add(cmd)
	cmd.Flags().Lookup("rate").Usage = "events of each node per 1.07 s (2^30 ns) at most"
	must(cmd.RegisterFlagCompletionFunc("service", p.completeServices))
	p.addNodeFlags(cmd, 20*time.Second)
	return cmd
}

// nodeEvent is an event with the node that has seen it.
type nodeEvent struct {
	Node string `json:"node"`
	inspect.Event
}

// monitor prints the events of the nodes until ctx ends, so many are printed as are asked for, or no
// node is left.
func (p *plugin) monitor(ctx context.Context, f *monitorFlags) error {
	cluster, agents, err := p.agents(ctx)
	if err != nil {
		return err
	}
	p.lookForService(ctx, cluster, f.options.Service)
	ctx, stop := context.WithCancel(ctx)
	m := &nodeMonitor{
		plugin: p, cluster: cluster, words: append([]string{"monitor", "--until-eof"}, given(f.filters)...),
		starts: make(chan struct{}, nodesAtOnce), events: make(chan told),
	}
	var nodes sync.WaitGroup
	defer nodes.Wait()
	defer stop()
	for _, agent := range agents {
		m.width = max(m.width, len(agent.Node))
		nodes.Go(func() { m.listen(ctx, agent) })
	}
	go func() {
		nodes.Wait()
		close(m.events)
	}()
	return m.print(f.count)
}

// lookForService says when the cluster has no Service of that name, unless it is empty. It may be made
// while somebody listens, and who may not read Services can listen.
func (p *plugin) lookForService(ctx context.Context, cluster *kubectl.Cluster, name model.Name) {
	if name == (model.Name{}) {
		return
	}
	ctx, stop := context.WithTimeout(ctx, p.timeout)
	defer stop()
	if has, err := cluster.HasService(ctx, name.Namespace, name.Name); err == nil && !has {
		fmt.Fprintf(p.Err, "kubectl beeline: no events yet: the cluster has no service %s\n", name)
	}
}

// nodeMonitor merges the events of nodes.
type nodeMonitor struct {
	*plugin
	cluster *kubectl.Cluster
	words   []string      // of the command line on a node
	starts  chan struct{} // has room for as many nodes as are begun with at the same time
	events  chan told
	width   int // of the longest name of a node
}

// told is an event of a node, something to say of it, or why there are no more events of it.
type told struct {
	nodeEvent
	note string
	err  error
}

// print prints so many events, or with 0 all until no node is left. The error has the nodes then.
func (m *nodeMonitor) print(count int) error {
	ended := &errNodes{code: ExitOK}
	for shown := 0; count == 0 || shown < count; {
		e, more := <-m.events
		if !more {
			slices.Sort(ended.nodes)
			return ended
		}
		if e.err != nil {
			ended.see(e.Node, failed[struct{}](e.Node, e.err).code)
			fmt.Fprintf(m.Err, "%s: %s\n", e.Node, escape(e.err.Error()))
			continue
		}
		if e.note != "" {
			fmt.Fprintf(m.Err, "%s: %s\n", e.Node, escape(e.note))
			continue
		}
		err := m.printItem(e.nodeEvent, func(wide bool) string {
			return fmt.Sprintf("%-*s   %s", m.width, e.Node, eventText(&e.Event, wide))
		})
		if err != nil {
			return err
		}
		if e.Kind != inspect.EventLeftOut {
			shown++
		}
	}
	return nil
}

// tell passes something on of a node. It fails when ctx has ended.
func (m *nodeMonitor) tell(ctx context.Context, node string, t told) error {
	t.Node = node
	select {
	case m.events <- t:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// listen tells the events of a node, and why there are no more of it, until ctx ends.
func (m *nodeMonitor) listen(ctx context.Context, agent kubectl.Agent) {
	var begun time.Time
	var again retries
	err := agent.Down
	if err == nil {
		begun, err = m.follow(ctx, agent, func() {})
	}
	for !begun.IsZero() && isLost(err) && ctx.Err() == nil {
		if !again.lost(time.Since(begun)) {
			err = fmt.Errorf("%w; given up: lost %d times, each within %s", err, mostLosses, longFollow)
			break
		}
		_ = m.tell(ctx, agent.Node, told{note: err.Error() + "; waiting for the agent"})
		begun, err = m.followAgain(ctx, agent.Node, &again)
	}
	if ctx.Err() == nil {
		_ = m.tell(ctx, agent.Node, told{err: err}) // unless it ends now
	}
}

// errMonitorEnded says that beeline monitor has ended without an error, which it does not do by itself:
// a connection that ends in order looks so, too.
var errMonitorEnded = errors.New("beeline monitor has ended")

// isLost reports whether a node may have events again.
func isLost(err error) bool {
	var lost *kubectl.LostError
	return errors.As(err, &lost) || errors.Is(err, errMonitorEnded)
}

// agentLimit is how long the agent of a node that was lost is waited for, longer than a pod that crashes again
// and again is kept from being started.
const agentLimit = 10 * time.Minute

// followAgain is follow for a node whose agent's container has ended, or whose connection: in the pod
// that it has then, once that runs. It tells why it waits.
func (m *nodeMonitor) followAgain(ctx context.Context, node string, again *retries) (begun time.Time, err error) {
	limit := time.Now().Add(agentLimit)
	reason := ""
	for {
		if !m.pause(ctx, again.next()) {
			return begun, ctx.Err()
		}
		agent, err := m.agentNow(ctx, node)
		if err == nil {
			begun, err = m.follow(ctx, agent, func() {
				_ = m.tell(ctx, node, told{note: fmt.Sprintf("pod %s: followed again", agent.Pod)}) // unless it ends now
			})
			if !begun.IsZero() || !mayBegin(err) {
				return begun, err
			}
		}
		if errors.Is(err, errNodeGone) || apierrors.IsForbidden(err) || time.Now().After(limit) {
			return begun, err
		}
		if err.Error() != reason {
			reason = err.Error()
			_ = m.tell(ctx, node, told{note: reason + "; waiting for the agent"}) // unless it ends now
		}
	}
}

// mayBegin reports whether a node where beeline monitor has not begun may have it later. An agent that has
// just started has not pinned its maps yet, or those of another version are still there.
func mayBegin(err error) bool {
	var exit *kubectl.ExitError
	return isLost(err) || errors.As(err, &exit) && exit.Code != ExitUsage
}

// pause waits as the environment says.
func (m *nodeMonitor) pause(ctx context.Context, d time.Duration) bool {
	if m.Pause != nil {
		return m.Pause(ctx, d)
	}
	return pause.For(ctx, d)
}

// errNodeGone says that no agent will run on a node.
var errNodeGone = errors.New("the cluster has no such node any more")

// agentNow returns the agent that a node has now, or why it has none that runs. Who may not list nodes is
// not told that one has gone.
func (m *nodeMonitor) agentNow(ctx context.Context, node string) (kubectl.Agent, error) {
	agents, err := m.cluster.Agents(ctx, []string{node})
	if err != nil {
		return kubectl.Agent{}, err
	}
	if agents[0].Down == nil {
		return agents[0], nil
	}
	if has, err := m.cluster.HasNode(ctx, node); err == nil && !has {
		return agents[0], errNodeGone
	}
	return agents[0], agents[0].Down
}

// follow runs beeline monitor on a node, calls listens when it does, and tells each event. It returns when it
// has begun to listen; zero: never. There is always an error.
func (m *nodeMonitor) follow(ctx context.Context, agent kubectl.Agent, listens func()) (begun time.Time, err error) {
	select {
	case m.starts <- struct{}{}:
	case <-ctx.Done():
		return begun, ctx.Err()
	}
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(m.timeout, func() { cancel(fmt.Errorf("no answer within %s (--timeout)", m.timeout)) })
	start := sync.OnceFunc(func() {
		late.Stop()
		<-m.starts
	})
	defer start()
	err = m.cluster.Follow(limited, agent, func(line []byte) error {
		if start(); begun.IsZero() {
			begun = time.Now()
			listens()
		}
		var e inspect.Event
		if len(bytes.TrimSpace(line)) == 0 { // it listens
			return nil
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("pod %s: an event cannot be read, it may be of another version: %w", agent.Pod, err)
		}
		return m.tell(ctx, agent.Node, told{nodeEvent: nodeEvent{Event: e}})
	}, invocation(agent, m.words)...)
	return begun, endOf(agent, err)
}

// endOf returns why beeline monitor has ended in a pod.
func endOf(agent kubectl.Agent, err error) error {
	var exit *kubectl.ExitError
	switch {
	case err == nil:
		return fmt.Errorf("pod %s: %w", agent.Pod, errMonitorEnded)
	case errors.As(err, &exit):
		return fmt.Errorf("pod %s: %w", agent.Pod, err)
	}
	return err
}

// given returns the flags that were given as they are written on a command line.
func given(flags *pflag.FlagSet) (words []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		value := f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok {
			value = strings.Join(list.GetSlice(), ",")
		}
		if f.Changed {
			words = append(words, "--"+f.Name+"="+value)
		}
	})
	return words
}
