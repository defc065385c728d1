package cli

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/verify"
)

func (p *plugin) verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare what the cluster wants with what the kernels of all nodes have",
		Long: `Run beeline verify on the nodes. What is found on several nodes is shown once, with
their names. It changes nothing.

Exit codes: 0 nothing found, 1 something found, 3 no datapath on a node, 4 something
could not be checked or changed all the time, or a node has not answered; the highest of
all nodes.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			answers, err := askNodes[verify.Report](cmd.Context(), p, "verify")
			if err != nil {
				return err
			}
			return merge(p, answers, func(answers []answer[verify.Report], wide bool) string {
				return inspect.Amount(len(answers), "node") + " checked: " + verifyText(mergeReports(answers, wide), wide)
			})
		},
	}
	p.addNodeFlags(cmd, time.Minute)
	return cmd
}

// mergeReports returns one report with what the nodes have found, each thing once with the names of
// its nodes.
func mergeReports(answers []answer[verify.Report], wide bool) *verify.Report {
	var findings onNodes[verify.Finding]
	var unchecked onNodes[verify.Unchecked]
	var unsettled onNodes[string]
	for _, a := range answers {
		findings.add(a.node, a.value.Findings)
		unchecked.add(a.node, a.value.Unchecked)
		unsettled.add(a.node, a.value.Unsettled)
	}
	merged := new(verify.Report)
	for _, f := range findings.list {
		f.What += findings.on(f, wide)
		merged.Findings = append(merged.Findings, f)
	}
	for _, u := range unchecked.list {
		u.Reason += unchecked.on(u, wide)
		merged.Unchecked = append(merged.Unchecked, u)
	}
	for _, u := range unsettled.list {
		merged.Unsettled = append(merged.Unsettled, u+unsettled.on(u, wide))
	}
	return merged
}

// onNodes are things with the nodes that say them, in the order of the first.
type onNodes[T comparable] struct {
	list  []T
	nodes map[T][]string
}

func (o *onNodes[T]) add(node string, things []T) {
	if o.nodes == nil {
		o.nodes = make(map[T][]string)
	}
	for _, t := range things {
		if o.nodes[t] == nil {
			o.list = append(o.list, t)
		}
		if !slices.Contains(o.nodes[t], node) {
			o.nodes[t] = append(o.nodes[t], node)
		}
	}
}

// on names the nodes of a thing.
func (o *onNodes[T]) on(thing T, wide bool) string {
	return fmt.Sprintf(" (on %s)", list(o.nodes[thing], wide))
}
