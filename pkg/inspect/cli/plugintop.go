package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

const pluginTopLong = `Show which Services get connections now, or which nodes: one reading of --interval.

By Service the figures are the sums of all nodes: a connection is counted on the node
where its backend is chosen, that of the client or the one that a packet comes to first.
Of one Service, show its backends with their share of the active connections of all
nodes, and of the new ones that were seen during --interval (NEW); ON-NODE says that a
backend is on one of them.

-o json and yaml have by node what beeline top --detail services prints there, of one
Service what it prints without --detail, and with --by node the sums.`

// detailFlag asks a node for less than all. A beeline that does not know it is asked without.
const detailFlag = "--detail"

// What the figures are summed by.
const (
	byService = "service"
	byNode    = "node"
)

var topGroups = []string{byService, byNode}

// topGroup is what the figures are summed by.
type topGroup string

// String is the flag's value.
func (g *topGroup) String() string { return string(*g) }

// Set parses the flag.
func (g *topGroup) Set(value string) error {
	if err := oneOf(value, topGroups); err != nil {
		return err
	}
	*g = topGroup(value)
	return nil
}

// Type is shown in the help.
func (g *topGroup) Type() string { return "group" }

func (p *plugin) topCommand() *cobra.Command {
	o := topOptions{sort: topSort{inspect.ByConnections}, count: 1}
	group := topGroup(byService)
	cmd := &cobra.Command{
		Use:   "top [NAMESPACE/NAME]",
		Short: "Show which Services, or nodes, get connections now",
		Long:  pluginTopLong,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && !strings.Contains(args[0], "/") { // --namespace is the agents'
				return &usageError{fmt.Errorf("%q names no service: write NAMESPACE/NAME", args[0]), cmd.CommandPath()}
			}
			return oneServiceAtMost(cmd, args)
		},
		ValidArgsFunction: p.completeServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.parse(p.command, args); err != nil {
				return &usageError{err, cmd.CommandPath()}
			}
			return p.top(cmd.Context(), o, group, args)
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&o.interval, "interval", 2*time.Second, "time that rates are of")
	flags.Var(&o.sort, "sort", "what comes first: "+strings.Join(topSorts, ", "))
	flags.Var(&group, "by", "what the figures are summed by: "+strings.Join(topGroups, ", "))
	p.addNodeFlags(cmd, 20*time.Second)
	return cmd
}

// top asks the nodes for what is shown, and no more: large clusters have many Services, and all answers
// come through the API server. Of text, the Services of a node are added to those of the others as they
// come.
func (p *plugin) top(ctx context.Context, o topOptions, group topGroup, service []string) error {
	words := []string{"top", "--count=1", "--interval=" + o.interval.String()}
	detail := inspect.DetailBackends
	switch {
	case group == byNode:
		detail = inspect.DetailNode
	case len(service) == 0:
		detail = inspect.DetailServices
	}
	if detail != inspect.DetailBackends {
		words = append(words, detailFlag+"="+string(detail))
	}
	all := new(inspect.Top)
	take := func(top *inspect.Top) {
		top.Keep(detail) // an older beeline tells all
		if p.format == formatJSON || p.format == formatYAML {
			return
		}
		all.Add(top)
		top.Keep(inspect.DetailNode)
	}
	p.timeout += o.interval
	answers, err := askEach(ctx, p, take, append(append(words, "--"), service...)...)
	if err != nil {
		return err
	}
	return merge(p, answers, func(answers []answer[inspect.Top], _ bool) string {
		if group == byNode {
			nodes := nodeTops(answers)
			o.warn(p.Err, nodes)
			return topNodes(answers, nodes, o.sort)
		}
		o.warn(p.Err, all.Services)
		o.sort.Sort(all.Services)
		return topText(all, o)
	})
}

// nodeTops returns the sums of each node, as of a Service.
func nodeTops(answers []answer[inspect.Top]) (nodes []inspect.TopService) {
	for _, a := range answers {
		nodes = append(nodes, inspect.TopService{Name: a.node, Rates: a.value.Node().Rates})
	}
	return nodes
}

// topNodes shows the sums of each node.
func topNodes(answers []answer[inspect.Top], nodes []inspect.TopService, by topSort) string {
	tops := make(map[string]*inspect.Top)
	for _, a := range answers {
		tops[a.node] = &a.value
	}
	by.Sort(nodes)
	heading := []string{"NODE", "CONNECTIONS/S", "REFUSED/S", "FLOWS", "SERVICES"}
	counted := countsTraffic(nodes)
	if counted {
		heading = append(heading, trafficHeading...)
	}
	t := newTable(append(heading, "EVICTED/S", "FULLEST-MAPS")...)
	for _, n := range nodes {
		top := tops[n.Name]
		row := []string{n.Name, perSecond(n.ConnectionsPerSecond), perSecond(n.RefusedPerSecond), number(n.Flows), number(top.Node().Services)}
		if counted {
			row = append(row, trafficColumns(n.Traffic)...)
		}
		t.add(append(row, perSecond(top.EvictedPerSecond), fullestMaps(top.Maps, 2))...)
	}
	return t.String()
}
