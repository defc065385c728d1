package cli

import (
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/pkg/inspect"
)

func (c *command) backendCommand() *cobra.Command {
	group := c.group("backend", "Endpoints of Services", "backends", "be")
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List backends with their Service and state",
		Long: `List backends with their Service and state.

A pod behind two Services, or two ports of one, is two backends. ACTIVE are its active
connections where the algorithm goes by them. A backend in no set (SETS none) has left
them and serves on: it keeps its connections and gets no new ones.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			backends, err := read(c, (*inspect.Datapath).Backends)
			if err != nil {
				return err
			}
			backends = inNamespace(c, backends, func(b inspect.BackendEntry) string { return b.Service.Namespace })
			return c.print(backends, func(wide bool) string { return backendTable(backends, wide) })
		},
	}
	c.addNamespaceFlag(cmd, "list this namespace only")
	group.AddCommand(cmd)
	return group
}

func backendTable(backends []inspect.BackendEntry, wide bool) string {
	heading := []string{"ID", "SERVICE", "ADDRESS", "STATE", "ON-NODE", "ACTIVE", "SETS"}
	if wide {
		heading = append(heading, "GENERATION", "SERVICE-PORT", "SERVICE-ID")
	}
	t := newTable(heading...)
	for _, b := range backends {
		row := []string{
			number(b.ID), b.Service.String(), backendAddress(b.Backend),
			backendState(b.Backend), yes(b.OnNode), active(b.Backend), backendSets(b.Backend),
		}
		if wide {
			row = append(row, number(b.Generation), servicePort(b.Service), number(b.Service.ID))
		}
		t.add(row...)
	}
	return t.String()
}

func backendAddress(b inspect.Backend) string {
	return netip.AddrPortFrom(b.Address, b.TargetPort).String()
}

// backendState names the endpoint's conditions. A Ready endpoint serves, so that
// is not said.
func backendState(b inspect.Backend) string {
	var conditions []string
	if b.Ready {
		conditions = append(conditions, "ready")
	} else if b.Serving {
		conditions = append(conditions, "serving")
	}
	if b.Terminating {
		conditions = append(conditions, "terminating")
	}
	switch {
	case b.Outlier == nil || !b.Outlier.Ejected:
	case b.Outlier.OnTrial:
		conditions = append(conditions, "on trial")
	default:
		conditions = append(conditions, "ejected for "+age(b.Outlier.EjectedSeconds))
	}
	return strings.Join(conditions, ",")
}

// backendSets names the sets of a backend. One in none keeps what goes to it.
func backendSets(b inspect.Backend) string {
	if len(b.Sets) == 0 {
		return "none"
	}
	return strings.Join(b.Sets, ",")
}

// active returns how many active connections a backend has, "-" where they are not counted.
func active(b inspect.Backend) string {
	if b.Active == nil {
		return "-"
	}
	return number(uint64(b.Active.Sockets) + uint64(b.Active.Flows))
}

// rtt returns the round-trip time of a backend by which ewma goes, "-" where it is not known.
func rtt(b inspect.Backend) string {
	if b.Active == nil || b.Active.RTTMicroseconds == nil {
		return "-"
	}
	return time.Duration(*b.Active.RTTMicroseconds * float64(time.Microsecond)).Round(time.Microsecond).String()
}

func servicePort(p inspect.PortName) string {
	if p.Service == "" {
		return ""
	}
	return number(p.Port) + "/" + p.Protocol
}
