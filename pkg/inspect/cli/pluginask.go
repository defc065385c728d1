package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/inspect/kubectl"
)

// nodesAtOnce is how many nodes are asked at the same time.
const nodesAtOnce = 16

// agents returns the agents of the nodes asked for, of which there is one at least. Of all nodes, those
// that are to have an agent and have no pod of it are there, too.
func (p *plugin) agents(ctx context.Context) (*kubectl.Cluster, []kubectl.Agent, error) {
	cluster, err := kubectl.Open(p.options)
	if err != nil {
		return nil, nil, err
	}
	agents, err := cluster.Agents(ctx, p.nodes)
	switch {
	case err != nil:
		return nil, nil, err
	case len(agents) == 0:
		return nil, nil, fmt.Errorf("%w: no pod in namespace %s has the labels %s: see --namespace and --selector",
			inspect.ErrNoDatapath, p.options.Namespace, p.options.Selector)
	case len(p.nodes) > 0:
		return cluster, agents, nil
	}
	missing, err := cluster.Missing(ctx, agents)
	if apierrors.IsForbidden(err) {
		fmt.Fprintf(p.Err, "kubectl beeline: nodes without an agent's pod are not named: %s\n", escape(err.Error()))
		err = nil
	}
	agents = append(agents, missing...)
	slices.SortFunc(agents, kubectl.ByNode)
	return cluster, agents, err
}

// askNodes runs a command of beeline on the nodes asked for, and returns an answer for each.
func askNodes[T any](ctx context.Context, p *plugin, words ...string) ([]answer[T], error) {
	return askEach(ctx, p, func(*T) {}, words...)
}

// askEach is askNodes that has take change each answer as it comes, one at a time: those of many nodes
// may be too large together.
func askEach[T any](ctx context.Context, p *plugin, take func(*T), words ...string) ([]answer[T], error) {
	cluster, agents, err := p.agents(ctx)
	if err != nil {
		return nil, err
	}
	answers := make([]answer[T], len(agents))
	var group errgroup.Group
	group.SetLimit(nodesAtOnce)
	var taking sync.Mutex
	for i, agent := range agents {
		group.Go(func() error {
			a := ask[T](ctx, p, cluster, agent, words...)
			if a.err == nil {
				taking.Lock()
				defer taking.Unlock()
				take(&a.value)
			}
			answers[i] = a
			return nil
		})
	}
	return answers, group.Wait()
}

// ask runs a command of beeline in an agent's pod and reads what it prints.
func ask[T any](ctx context.Context, p *plugin, cluster *kubectl.Cluster, agent kubectl.Agent, words ...string) answer[T] {
	if agent.Down != nil {
		return failed[T](agent.Node, agent.Down)
	}
	limited, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	out, err := cluster.Exec(limited, agent, invocation(agent, words)...)
	var exit *kubectl.ExitError
	if errors.As(err, &exit) && exit.Code == ExitUsage && strings.Contains(exit.Text, "unknown flag: "+detailFlag) {
		words = slices.DeleteFunc(slices.Clone(words), func(w string) bool { return strings.HasPrefix(w, detailFlag+"=") })
		out, err = cluster.Exec(limited, agent, invocation(agent, words)...)
	}
	switch {
	case err == nil:
		exit = new(kubectl.ExitError)
	case limited.Err() != nil:
		return failed[T](agent.Node, fmt.Errorf("pod %s: no answer within %s (--timeout)", agent.Pod, p.timeout))
	case !errors.As(err, &exit):
		return failed[T](agent.Node, err)
	case len(out) == 0:
		return failed[T](agent.Node, fmt.Errorf("pod %s: %w", agent.Pod, err))
	}
	a := answer[T]{node: agent.Node, code: exit.Code}
	if err := json.Unmarshal(out, &a.value); err != nil {
		return failed[T](agent.Node, fmt.Errorf("pod %s: its answer cannot be read, it may be of another version: %w", agent.Pod, err))
	}
	return a
}

// invocation is the command line on a node: each word is one argument, whatever is in it.
func invocation(agent kubectl.Agent, words []string) []string {
	line := []string{"beeline", "--output=" + string(formatJSON)}
	for _, arg := range agent.Args {
		if strings.HasPrefix(arg, "--bpffs=") {
			line = append(line, arg)
		}
	}
	return append(line, words...)
}
