package cli

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/pkg/inspect"
)

func (c *command) flowCommand() *cobra.Command {
	group := c.group("flow", "Connections of clients outside of the node", "flows", "fl")
	group.AddCommand(c.flowList(), c.flowShow(), c.flowDelete())
	return group
}

// flowFlags are the filters on a command line.
type flowFlags struct {
	filter  inspect.FlowFilter
	service string
}

func (c *command) addFlowFlags(cmd *cobra.Command) *flowFlags {
	f := new(flowFlags)
	flags := cmd.Flags()
	addConnectionFlags(flags, &f.filter.ConnectionFilter, "those")
	states := append(flowmap.StateNames[:], flowmap.Replied)
	flags.Func("state", "only those in this `STATE`: "+strings.Join(states, ", "), func(s string) error {
		f.filter.State = s
		return oneOf(s, states)
	})
	flags.StringVar(&f.service, "service", "", "only those to this Service, `NAMESPACE/NAME`")
	must(cmd.RegisterFlagCompletionFunc("service", c.completeServices))
	completeProtocols(cmd)
	must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp)))
	return f
}

// parse returns the filter.
func (f *flowFlags) parse(c *command, cmd *cobra.Command) (inspect.FlowFilter, error) {
	if f.service == "" {
		return f.filter, nil
	}
	var err error
	if f.filter.Service, err = c.serviceName(f.service); err != nil {
		return f.filter, &usageError{err, cmd.CommandPath()}
	}
	return f.filter, nil
}

// listedFlows is how many connections are listed unless it is said: all of a large table take more
// memory than the pod may have left.
const listedFlows = 10_000

func (c *command) flowList() *cobra.Command {
	var filters *flowFlags
	var limit uint32
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List connections of clients outside of the node, both directions in one line",
		Long: `List connections of clients outside of the node, both directions in one line.

The client sends to the Service address; the backend sees the connection come from
VIA, or from the client itself where that is "-". With a node there, by its name or else
its address, packets go to that node in a tunnel, and it answers the client. Connections
of this node's own sockets are not among them: those are translated once and not followed.`,
		Example: `  beeline flow list --service shop/web --state established
  beeline flow list --client 192.0.2.0/24 --protocol UDP -o wide`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := filters.parse(c, cmd)
			if err != nil {
				return err
			}
			filter.Namespace = c.namespace
			list, err := read(c, func(d *inspect.Datapath) (inspect.FlowList, error) { return d.Flows(filter, int(limit)) })
			if err != nil {
				return err
			}
			if left := list.All - len(list.Flows); left > 0 {
				fmt.Fprintf(c.Err, "beeline: left out: %s of %d, by --limit %d\n", inspect.Amount(left, "connection"), list.All, limit)
			}
			return c.print(list.Flows, func(wide bool) string { return flowTable(list.Flows, wide) })
		},
	}
	filters = c.addFlowFlags(cmd)
	c.addNamespaceFlag(cmd, "list this namespace only")
	cmd.Flags().Uint32Var(&limit, "limit", listedFlows, "list no more than these, the first by Service and client; 0: all, some 2 KiB of memory each")
	return cmd
}

func flowTable(flows []inspect.Flow, wide bool) string {
	heading := []string{"PROTOCOL", "CLIENT", "SERVICE-ADDRESS", "BACKEND", "VIA", "STATE", "IDLE", "SERVICE"}
	if wide {
		heading = append(heading, "DEVICE", "SERVICE-PORT", "SERVICE-ID", "BACKEND-ID")
	}
	t := newTable(heading...)
	for _, f := range flows {
		via := ""
		if f.Tunnel == "out" {
			via = node(f)
		} else if f.Source != f.Client {
			via = source(f)
		}
		row := []string{
			f.Protocol, f.Client.String(), f.ServiceAddress.String(), f.Backend.String(), via,
			f.State, age(f.IdleSeconds), f.Service.String(),
		}
		if wide {
			row = append(row, f.Device, servicePort(f.Service), serviceID(f.Service), backendID(f))
		}
		t.add(row...)
	}
	return t.String()
}

// source returns what the backend sees as the client.
func source(f inspect.Flow) string {
	if !f.Source.IsValid() {
		return fmt.Sprintf("no-address:%d", f.Source.Port())
	}
	return f.Source.String()
}

// node returns the node that packets go to in the tunnel, by its name if that is known.
func node(f inspect.Flow) string {
	if !f.Node.IsValid() {
		return "a node that is gone"
	}
	return "node " + cmp.Or(f.NodeName, f.Node.String())
}

func serviceID(p inspect.PortName) string {
	if p.Service == "" {
		return ""
	}
	return number(p.ID)
}

func backendID(f inspect.Flow) string {
	if f.BackendID == nil {
		return ""
	}
	return number(*f.BackendID)
}

func (c *command) flowShow() *cobra.Command {
	return &cobra.Command{
		Use:   "show CLIENT:PORT",
		Short: "Show the connections from one port of a client",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := netip.ParseAddrPort(strings.Join(args, " "))
			if err != nil {
				err := errors.New("name one client, as ADDRESS:PORT or [ADDRESS]:PORT")
				return &usageError{err, cmd.CommandPath()}
			}
			flows, err := read(c, func(d *inspect.Datapath) ([]inspect.Flow, error) { return d.FlowsOf(client) })
			if err != nil {
				return err
			}
			return c.print(flows, func(bool) string { return flowText(flows) })
		},
	}
}

func flowText(flows []inspect.Flow) string {
	texts := make([]string, len(flows))
	for i, f := range flows {
		t := newTable("Flow", fmt.Sprintf("%s, %s, idle for %s", f.Protocol, f.State, age(f.IdleSeconds)))
		t.add("Client", f.Client.String())
		t.add("Service", flowService(f.Service))
		t.add("Service address", f.ServiceAddress.String())
		t.add("Backend", withID(f.Backend.String(), backendID(f)))
		t.add("Backend sees", sourceText(f))
		if f.Tunnel == "in" {
			t.add("Comes by", "the tunnel, from the node that has chosen the backend")
		}
		t.add("Leaves by", leavesBy(f))
		texts[i] = t.String()
	}
	return strings.Join(texts, "\n")
}

func flowService(p inspect.PortName) string {
	if p.Service == "" {
		return ""
	}
	return withID(p.String()+" "+servicePort(p), serviceID(p))
}

// withID adds the index in a table, where there is one.
func withID(text, id string) string {
	if id == "" {
		return text
	}
	return text + " (id " + id + ")"
}

func leavesBy(f inspect.Flow) string {
	if f.Tunnel == "out" {
		return f.Device + ", in the tunnel to " + node(f)
	}
	if f.Device == flowmap.MasqueradeDevice {
		return "the host's stack, with another source then"
	}
	return cmp.Or(f.Device, "the host's stack")
}

func sourceText(f inspect.Flow) string {
	switch {
	case f.Tunnel == "out":
		return f.Client.Addr().String() + " (the client)"
	case f.SNAT:
		return source(f) + " (this node, SNAT)"
	case f.Source != f.Client:
		return source(f) + " (the client, with another port)"
	}
	return source(f) + " (the client)"
}

// deletion is the output of flow delete.
type deletion struct {
	Deleted int `json:"deleted"`
}

func (c *command) flowDelete() *cobra.Command {
	var filters *flowFlags
	var all bool
	cmd := &cobra.Command{
		Use:     "delete",
		Aliases: []string{"del", "rm"},
		Short:   "Delete connections from the flow table: those that match the filters, or all",
		Long: `Delete connections from the flow table: those that match the filters, or all.

The next packet of a UDP client is taken for a new connection and gets a backend
anew. A TCP connection that is forgotten is broken; its client must connect again.
It is no error when no connection is meant.`,
		Example: `  beeline flow delete --backend 10.0.1.2
  beeline flow delete --service kube-system/dns --protocol UDP`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := filters.parse(c, cmd)
			if err != nil {
				return err
			}
			if all == (filter != inspect.FlowFilter{}) {
				err := errors.New("say which connections: give filters, or else --all")
				return &usageError{err, cmd.CommandPath()}
			}
			deleted, err := read(c, func(d *inspect.Datapath) (int, error) { return d.DeleteFlows(filter) })
			if err != nil {
				return fmt.Errorf("after %s: %w", inspect.Amount(deleted, "deleted flow"), err)
			}
			return c.print(deletion{deleted}, func(bool) string { return "deleted " + inspect.Amount(deleted, "flow") + "\n" })
		},
	}
	filters = c.addFlowFlags(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "delete every connection")
	return cmd
}
