package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/pkg/inspect/kubectl"
)

// PluginName is the name by which kubectl finds its plugin: beeline is that when it is called so.
const PluginName = "kubectl-beeline"

const pluginLong = `Ask the agents of all nodes, or of some, how Services are served.

It runs beeline in each agent's pod, as kubectl exec does, and merges what the nodes
answer. Nodes that do not answer, and nodes without an agent's pod, are named on standard
error, with the reason. -o json and yaml print an object by node, which has those that
have answered; monitor prints one for each event, with its node.

It takes the rights to list pods in the agents' namespace and to create pods/exec there;
explain also that to get the pod that it is asked about. Nodes without an agent's pod are
named with the rights to list nodes, and DaemonSets in the agents' namespace.

Exit codes: those of beeline on a node, the highest of all nodes:
  0  done
  1  verify: something is not as it should be; the Service asked for is not served;
     explain: no Service, or no frontend of it for the client
  2  wrong usage: unknown command or flag, bad argument
  3  no datapath on a node, or no agent's pod in the cluster
  4  any other failure; a node has not answered
  5  explain: the connection would be refused
  6  explain: the connection would be dropped`

// plugin is one run of kubectl beeline.
type plugin struct {
	*command
	options kubectl.Options
	nodes   []string
	timeout time.Duration
}

// RunPlugin runs kubectl's plugin with the arguments that follow its name, and returns the exit code.
func RunPlugin(ctx context.Context, env Env, args ...string) int {
	p := &plugin{command: &command{Env: env, format: formatTable}}
	return finish(env, "kubectl beeline", p.execute(ctx, p.root(), args))
}

func (p *plugin) root() *cobra.Command {
	root := p.program(PluginName, "Show how Services are served on the nodes of a cluster", pluginLong)
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl beeline"}
	flags := root.PersistentFlags()
	flags.StringVar(&p.options.Kubeconfig, "kubeconfig", "", "kubeconfig file, as for kubectl")
	flags.StringVar(&p.options.Context, "context", "", "context of the kubeconfig")
	flags.StringVarP(&p.options.Namespace, "namespace", "n", kubectl.DefaultNamespace, "namespace of the agents")
	flags.StringVarP(&p.options.Selector, "selector", "l", kubectl.DefaultSelector, "labels of the agents' pods")
	root.AddCommand(p.statusCommand(), p.topCommand(), p.monitorCommand(), p.explainCommand(), p.verifyCommand(), p.versionCommand())
	return root
}

// addNodeFlags adds the flags of commands that ask several nodes.
func (p *plugin) addNodeFlags(cmd *cobra.Command, timeout time.Duration) {
	cmd.Flags().StringArrayVar(&p.nodes, "node", nil, "ask this node only; may be repeated")
	must(cmd.RegisterFlagCompletionFunc("node", p.completeNodes))
	p.addTimeoutFlag(cmd, timeout)
}

func (p *plugin) addTimeoutFlag(cmd *cobra.Command, timeout time.Duration) {
	cmd.Flags().DurationVar(&p.timeout, "timeout", timeout, "how long to wait for a node")
}

// errNodes is the highest exit code of some nodes.
type errNodes struct {
	code  int
	nodes []string // that have it
}

// Error names the nodes. What each has to say is told already.
func (e *errNodes) Error() string {
	return fmt.Sprintf("exit code %d of %s", e.code, list(e.nodes, false))
}

// see notes the exit code of a node.
func (e *errNodes) see(node string, code int) {
	if code > e.code {
		*e = errNodes{code: code}
	}
	if code == e.code {
		e.nodes = append(e.nodes, node)
	}
}

// answer is what a node has answered.
type answer[T any] struct {
	node  string
	value T
	code  int   // exit code of the command there
	err   error // says why there is no value
}

// merge prints what the nodes have answered, as an object by node or as text, and names those that
// have not. The error says what the exit code is to be.
func merge[T any](p *plugin, answers []answer[T], text func(answers []answer[T], wide bool) string) error {
	var told []answer[T]
	byNode := make(map[string]T)
	worst := &errNodes{code: ExitOK}
	for _, a := range answers {
		worst.see(a.node, a.code)
		if a.err != nil {
			fmt.Fprintf(p.Err, "%s: %s\n", a.node, escape(a.err.Error()))
			continue
		}
		told = append(told, a)
		byNode[a.node] = a.value
	}
	if len(told) > 0 || p.format == formatJSON || p.format == formatYAML {
		if err := p.print(byNode, func(wide bool) string { return text(told, wide) }); err != nil {
			return err
		}
	}
	if worst.code == ExitOK {
		return nil
	}
	return worst
}

// failed returns the answer of a node that has none, with the exit code that stands for it.
func failed[T any](node string, err error) answer[T] {
	code := ExitFailure
	var exit *kubectl.ExitError
	if errors.As(err, &exit) && (exit.Code == ExitNotFound || exit.Code == ExitNoDatapath) {
		code = exit.Code
	}
	return answer[T]{node: node, code: code, err: err}
}
