package cli

import (
	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

func (c *command) nodeCommand() *cobra.Command {
	group := c.group("node", "Nodes of direct server return", "nodes", "no")
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List nodes and whether packets go to them in the tunnel, and why not",
		Long: `List nodes and whether packets go to them in the tunnel, and why not.

With direct server return, packets of clients outside of the node go to endpoints on
another node in a tunnel, if that node has said that it accepts them; else by SNAT.
There are nodes only while a Service, or the agent's configuration, asks for that.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			nodes, err := read(c, (*inspect.Datapath).Nodes)
			if err != nil {
				return err
			}
			return c.print(nodes, func(wide bool) string { return nodeTable(nodes, wide) })
		},
	}
	group.AddCommand(cmd)
	return group
}

func nodeTable(nodes []inspect.Node, wide bool) string {
	heading := []string{"NAME", "ADDRESS", "TUNNEL", "REASON"}
	if wide {
		heading = append(heading, "ID")
	}
	t := newTable(heading...)
	for _, n := range nodes {
		tunnel := yes(n.Tunnel)
		if n.Self {
			tunnel = ""
		}
		row := []string{n.Name, n.Address.String(), tunnel, n.Reason}
		if wide {
			row = append(row, number(n.ID))
		}
		t.add(row...)
	}
	return t.String()
}
