package cli

import (
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
nodes; ON-NODE says that a backend is on one of them.

-o json and yaml have what beeline top prints on each node.`

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
			words := append([]string{"top", "--count=1", "--interval=" + o.interval.String(), "--"}, args...)
			p.timeout += o.interval
			answers, err := askNodes[inspect.Top](cmd.Context(), p, words...)
			if err != nil {
				return err
			}
			return merge(p, answers, func(answers []answer[inspect.Top], _ bool) string {
				top := sumTop(answers)
				o.warn(p.Err, top.Services)
				if group == byNode {
					return topNodes(answers, o.sort)
				}
				o.sort.Sort(top.Services)
				return topText(top, o)
			})
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&o.interval, "interval", 2*time.Second, "time that rates are of")
	flags.Var(&o.sort, "sort", "what comes first: "+strings.Join(topSorts, ", "))
	flags.Var(&group, "by", "what the figures are summed by: "+strings.Join(topGroups, ", "))
	p.addNodeFlags(cmd, 20*time.Second)
	return cmd
}

// sumTop returns what has happened on all nodes.
func sumTop(answers []answer[inspect.Top]) *inspect.Top {
	top := new(inspect.Top)
	for _, a := range answers {
		top.Add(&a.value)
	}
	return top
}

// topNodes shows the sums of each node.
func topNodes(answers []answer[inspect.Top], by topSort) string {
	var nodes []inspect.TopService
	tops := make(map[string]*inspect.Top)
	for _, a := range answers {
		nodes = append(nodes, inspect.TopService{Name: a.node, Rates: a.value.Sum()})
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
		row := []string{n.Name, perSecond(n.ConnectionsPerSecond), perSecond(n.RefusedPerSecond), number(n.Flows), number(len(top.Services))}
		if counted {
			row = append(row, trafficColumns(n.Traffic)...)
		}
		t.add(append(row, perSecond(top.EvictedPerSecond), fullestMaps(top.Maps, 2))...)
	}
	return t.String()
}
