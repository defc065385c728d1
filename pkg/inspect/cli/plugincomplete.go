package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/pkg/inspect/kubectl"
)

// CompletionName is the name by which kubectl finds what completes command lines of its plugin:
// beeline is that when it is called so.
const CompletionName = "kubectl_complete-beeline"

// completionTimeout is how long somebody at a prompt is kept waiting.
const completionTimeout = 3 * time.Second

// RunPluginCompletion prints what the last argument may become, as kubectl reads it, and returns the
// exit code.
func RunPluginCompletion(ctx context.Context, env Env, args ...string) int {
	return RunPlugin(ctx, env, append([]string{cobra.ShellCompRequestCmd}, args...)...)
}

// offer completes what is typed from names that the cluster is asked for. Where they cannot be had,
// nothing is offered: the line that is typed is the shell's.
func (p *plugin) offer(typed string, names func(ctx context.Context, c *kubectl.Cluster) ([]string, error)) ([]cobra.Completion, cobra.ShellCompDirective) {
	cluster, err := kubectl.Open(p.options)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	list, err := names(ctx, cluster)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var offered []cobra.Completion
	for _, name := range list {
		if strings.HasPrefix(name, typed) {
			offered = append(offered, name)
		}
	}
	return offered, cobra.ShellCompDirectiveNoFileComp
}

// completeNodes offers the nodes of the agents.
func (p *plugin) completeNodes(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return p.offer(typed, func(ctx context.Context, c *kubectl.Cluster) (nodes []string, err error) {
		agents, err := c.Agents(ctx, nil)
		for _, a := range agents {
			nodes = append(nodes, a.Node)
		}
		return nodes, err
	})
}

// completeServices offers NAMESPACE/NAME.
func (p *plugin) completeServices(_ *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return p.offer(typed, func(ctx context.Context, c *kubectl.Cluster) ([]string, error) {
		namespace, _, both := strings.Cut(typed, "/")
		if !both {
			namespace = c.Namespace
		}
		return namesIn(ctx, c, "services", namespace, true)
	})
}

// completeExplain offers pods, then the Services that they may connect to: those of the namespace that
// is typed, else of the one that a name alone is in.
func (p *plugin) completeExplain(_ *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	resource, words := "pods", []string{typed}
	if len(args) == 1 {
		resource, words = "services", []string{typed, args[0]}
	}
	return p.offer(typed, func(ctx context.Context, c *kubectl.Cluster) ([]string, error) {
		for _, word := range words {
			if namespace, _, both := strings.Cut(word, "/"); both {
				return namesIn(ctx, c, resource, namespace, word == typed)
			}
		}
		return namesIn(ctx, c, resource, c.Namespace, false)
	})
}

// namesIn returns the names of a resource in a namespace, as NAMESPACE/NAME where asked for.
func namesIn(ctx context.Context, c *kubectl.Cluster, resource, namespace string, both bool) ([]string, error) {
	names, err := c.Names(ctx, resource, namespace)
	for i := range names {
		if both {
			names[i] = namespace + "/" + names[i]
		}
	}
	return names, err
}
