package cli

import (
	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

func (c *command) affinityCommand() *cobra.Command {
	group := c.group("affinity", "Clients with session affinity", "affinities", "aff")
	var all bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List clients with session affinity and their backend",
		Long: `List clients with session affinity and their backend.

The client is an address or, for sockets of this node, netns: and the cookie of
their network namespace: one pod is one client. A client of packets that has yet to
establish a connection is listed while its backend is valid.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			affinities, err := read(c, func(d *inspect.Datapath) ([]inspect.Affinity, error) { return d.Affinities(all) })
			if err != nil {
				return err
			}
			affinities = inNamespace(c, affinities, func(a inspect.Affinity) string { return a.Service.Namespace })
			return c.print(affinities, func(wide bool) string { return affinityTable(affinities, wide) })
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "list also what has expired or lost its backend")
	c.addNamespaceFlag(cmd, "list this namespace only")
	group.AddCommand(cmd)
	return group
}

func affinityTable(affinities []inspect.Affinity, wide bool) string {
	heading := []string{"CLIENT", "SERVICE", "BACKEND", "IDLE", "EXPIRES-IN", "STATE"}
	if wide {
		heading = append(heading, "SERVICE-PORT", "SERVICE-ID", "BACKEND-ID")
	}
	t := newTable(heading...)
	for _, a := range affinities {
		var backend, id, remaining string
		if a.Backend != nil {
			backend, id = backendAddress(*a.Backend), number(a.Backend.ID)
		}
		if a.State == inspect.AffinityValid {
			remaining = age(a.RemainingSeconds)
		}
		row := []string{a.Client, a.Service.String(), backend, age(a.IdleSeconds), remaining, a.State}
		if wide {
			row = append(row, servicePort(a.Service), number(a.Service.ID), id)
		}
		t.add(row...)
	}
	return t.String()
}
