package cli

import (
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

func (c *command) frontendCommand() *cobra.Command {
	group := c.group("frontend", "Addresses and ports of Services", "frontends", "fe")
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List frontends with the Service that each leads to",
		Long: `List frontends with the Service that each leads to.

A NodePort shows the unspecified address; beeline status -o wide lists the node's
addresses that it answers on. The kind Address stands for all other ports of a
ClusterIP.

Flags:
  internal-local  clients inside the cluster reach endpoints of this node only
  external-local  clients outside the cluster reach endpoints of this node only
  source-ranges   only the Service's loadBalancerSourceRanges are let in
  refuse          ports that the Service does not have are refused`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			frontends, err := read(c, (*inspect.Datapath).Frontends)
			if err != nil {
				return err
			}
			frontends = inNamespace(c, frontends, func(f inspect.FrontendEntry) string { return f.Service.Namespace })
			return c.print(frontends, func(wide bool) string { return frontendTable(frontends, wide) })
		},
	}
	c.addNamespaceFlag(cmd, "list this namespace only")
	group.AddCommand(cmd)
	return group
}

func frontendTable(frontends []inspect.FrontendEntry, wide bool) string {
	heading := []string{"ADDRESS", "KIND", "SERVICE", "FLAGS"}
	if wide {
		heading = append(heading, "CLIENTS", "SERVICE-ID")
	}
	t := newTable(heading...)
	for _, f := range frontends {
		row := []string{frontendAddress(f.Frontend), f.Kind, f.Service.String(), list(frontendFlags(f.Frontend), true)}
		if wide {
			row = append(row, clients(f.Frontend, true), number(f.Service.ID))
		}
		t.add(row...)
	}
	return t.String()
}

// frontendAddress returns "10.0.0.1:80/TCP", or the address alone of a frontend
// that stands for no port.
func frontendAddress(f inspect.Frontend) string {
	if f.IsAddress() {
		return f.Address.String()
	}
	return netip.AddrPortFrom(f.Address, f.Port).String() + "/" + f.Protocol
}

func frontendFlags(f inspect.Frontend) []string {
	var flags []string
	if f.Internal == "local" {
		flags = append(flags, "internal-local")
	}
	if f.External == "local" {
		flags = append(flags, "external-local")
	}
	if f.Restricted {
		flags = append(flags, "source-ranges")
	}
	if f.RefuseOthers {
		flags = append(flags, "refuse")
	}
	return flags
}
