package cli

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
)

func (c *command) serviceCommand() *cobra.Command {
	group := c.group("service", "Services as this node serves them", "services", "svc")
	group.AddCommand(c.serviceList(), c.serviceShow())
	return group
}

func (c *command) serviceList() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List Services with their addresses and number of backends",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			services, err := read(c, (*inspect.Datapath).Services)
			if err != nil {
				return err
			}
			services = inNamespace(c, services, func(s inspect.Service) string { return s.Namespace })
			if c.format == formatIPVSAdm {
				_, err := io.WriteString(c.Out, virtualServers(services))
				return err
			}
			return c.print(services, func(wide bool) string { return serviceTable(services, wide) })
		},
	}
	c.addNamespaceFlag(cmd, "list this namespace only")
	cmd.Flags().VarP(serviceFormat{&c.format}, "output", "o", "how to print: "+strings.Join(serviceFormats, ", ")+
		" (as ipvsadm -Ln: - is what is not counted)")
	must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(serviceFormats, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func serviceTable(services []inspect.Service, wide bool) string {
	heading := []string{"NAMESPACE", "NAME", "TYPE", "FRONTENDS", "PORTS", "BACKENDS", "ON-NODE", "AFFINITY"}
	if wide {
		heading = append(heading, "INTERNAL", "EXTERNAL", "CONNECTIONS", "REFUSED", "DROPPED")
	}
	t := newTable(heading...)
	for _, s := range services {
		backends, onNode := backendCounts(s)
		row := []string{
			s.Namespace, s.Name, orDash(s.Type), list(addresses(s), wide), list(ports(s), wide),
			number(backends), number(onNode), affinityTimeout(s.AffinitySeconds),
		}
		if wide {
			row = append(row, s.InternalTrafficPolicy, s.ExternalTrafficPolicy,
				number(s.Connections), number(s.Refused), number(s.Dropped))
		}
		t.add(row...)
	}
	return t.String() + unappliedText(services)
}

// unappliedText names the Services that are not served in full.
func unappliedText(services []inspect.Service) string {
	var names []string
	for _, s := range services {
		if s.Unapplied != nil {
			names = append(names, s.Namespace+"/"+s.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("\nNot served in full, beeline service show says why: %s\n", strings.Join(names, ", "))
}

func backendCounts(s inspect.Service) (all, onNode int) {
	for _, p := range s.Ports {
		for _, b := range p.Backends {
			all++
			if b.OnNode {
				onNode++
			}
		}
	}
	return all, onNode
}

// addresses returns the addresses of a Service, each once. Those of the node are
// not among them: the ports tell of NodePorts.
func addresses(s inspect.Service) []string {
	var list []string
	seen := make(map[netip.Addr]bool)
	for _, p := range s.Ports {
		for _, f := range p.Frontends {
			if f.IsNodePort() || seen[f.Address] {
				continue
			}
			seen[f.Address] = true
			list = append(list, f.Address.String())
		}
	}
	return list
}

// ports returns the ports of a Service as kubectl shows them, each once.
func ports(s inspect.Service) []string {
	var list []string
	seen := make(map[string]bool)
	for _, p := range s.Ports {
		text := fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.NodePort != 0 {
			text = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
		if !seen[text] {
			seen[text] = true
			list = append(list, text)
		}
	}
	return list
}

func affinityTimeout(seconds uint32) string {
	if seconds == 0 {
		return ""
	}
	return age(int64(seconds))
}

// age returns seconds as kubectl shows ages.
func age(seconds int64) string {
	return duration.HumanDuration(time.Duration(seconds) * time.Second)
}

func (c *command) serviceShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "show NAMESPACE/NAME",
		Short:             "Show one Service: policies, frontends, sets and backends",
		Args:              oneService,
		ValidArgsFunction: c.completeServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := c.serviceName(args[0])
			if err != nil {
				return &usageError{err, cmd.CommandPath()}
			}
			service, err := read(c, func(d *inspect.Datapath) (*inspect.Service, error) { return d.Service(name) })
			if err != nil {
				return err
			}
			return c.print(service, func(wide bool) string { return serviceText(*service, c.Now(), wide) })
		},
	}
	c.addNamespaceFlag(cmd, "namespace of a NAME given alone")
	return cmd
}

// oneService wants one argument.
func oneService(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		err := fmt.Errorf("name one service, as NAMESPACE/NAME, not %d", len(args))
		return &usageError{err, cmd.CommandPath()}
	}
	return nil
}

// serviceName parses NAMESPACE/NAME, or NAME in the namespace of the flag.
func (c *command) serviceName(arg string) (model.Name, error) {
	namespace, name, both := strings.Cut(arg, "/")
	if !both {
		namespace, name = c.namespace, arg
	}
	switch {
	case namespace == "" || name == "" || strings.Contains(name, "/"):
		return model.Name{}, fmt.Errorf("%q names no service: write NAMESPACE/NAME, or NAME with --namespace", arg)
	case c.namespace != "" && namespace != c.namespace:
		return model.Name{}, errors.New("the service's namespace is not that of --namespace: give one of the two")
	}
	return model.Name{Namespace: namespace, Name: name}, nil
}

func serviceText(s inspect.Service, now time.Time, wide bool) string {
	affinity := "none"
	if s.AffinitySeconds != 0 {
		affinity = fmt.Sprintf("ClientIP, %d s", s.AffinitySeconds)
	}
	var out strings.Builder
	facts := newTable("Service", s.Namespace+"/"+s.Name)
	if len(s.Ports) > 0 {
		facts.add("Type", s.Type)
		facts.add("Policy", fmt.Sprintf("internal %s, external %s", s.InternalTrafficPolicy, s.ExternalTrafficPolicy))
		facts.add("Affinity", affinity)
		facts.add("Traffic", traffic(s.Counts))
	}
	if u := s.Unapplied; u != nil {
		facts.add("Sync", fmt.Sprintf("fails since %s, %s, next in %s: %s", at(u.Since, now),
			inspect.Amount(u.Tries, "attempt"), duration.HumanDuration(max(0, u.Next.Sub(now))), u.Error))
	}
	out.WriteString(facts.String())
	for _, p := range s.Ports {
		out.WriteString("\n" + portText(p, wide))
	}
	return out.String()
}

func traffic(c inspect.Counts) string {
	text := fmt.Sprintf("%s, %d refused", inspect.Amount(c.Connections, "connection"), c.Refused)
	if c.Dropped > 0 {
		text += fmt.Sprintf(", %d of them dropped", c.Dropped)
	}
	return text
}

func portText(p inspect.Port, wide bool) string {
	var out strings.Builder
	name := ""
	if p.PortName.PortName != "" {
		name = " " + p.PortName.PortName
	}
	mode := ""
	if p.Forwarding != "snat" {
		mode = ", " + p.Forwarding
	}
	fmt.Fprintf(&out, "Port%s %d/%s %s: id %d, %s%s, %s\n", name, p.Port, p.Protocol, p.Family, p.ID, p.Algorithm, mode+bounded(p), traffic(p.Counts))
	for _, what := range p.Cut {
		fmt.Fprintf(&out, "  The tables have no room for all of the Service: %s.\n", what)
	}
	for _, t := range []*table{frontendsOf(p), setsOf(p), backendsOf(p, wide)} {
		if len(t.rows) > 1 {
			t.indent = "  "
			out.WriteString("\n" + t.String())
		}
	}
	return out.String()
}

// bounded says what a port gets that asks for more slots than there is room for.
func bounded(p inspect.Port) string {
	switch p.Bound {
	case 0:
		return ""
	case 1:
		return " without ring and weights, for which there is no room"
	}
	return fmt.Sprintf(" with at most %d slots in a set, for there is no room for more", p.Bound)
}

func frontendsOf(p inspect.Port) *table {
	t := newTable("FRONTEND", "KIND", "FROM-CLUSTER", "FROM-OUTSIDE", "CLIENTS")
	for _, f := range p.Frontends {
		if f.IsAddress() {
			if f.RefuseOthers {
				t.add(frontendAddress(f)+" other ports", f.Kind, "refused", "refused", clients(f, true))
			}
			continue
		}
		t.add(frontendAddress(f), f.Kind, f.Internal+" set", f.External+" set", clients(f, true))
	}
	return t
}

// clients says who may use the frontend.
func clients(f inspect.Frontend, wide bool) string {
	if !f.Restricted {
		return "all"
	}
	ranges := make([]string, len(f.SourceRanges))
	for i, r := range f.SourceRanges {
		ranges[i] = r.String()
	}
	if len(ranges) == 0 {
		return "none"
	}
	return list(ranges, wide)
}

func setsOf(p inspect.Port) *table {
	t := newTable("SET", "LEADS TO", "USED")
	t.add("cluster", setText(p.Cluster), yes(p.Cluster.Used))
	t.add("local", setText(p.Local), yes(p.Local.Used))
	return t
}

// setText says what a client meets that gets the set.
func setText(s inspect.Set) string {
	if s.Reason != "" {
		return s.Kind + ": " + s.Reason
	}
	if s.Slots != uint32(len(s.Backends)) {
		return inspect.Amount(len(s.Backends), "backend") + " in " + inspect.Amount(s.Slots, "slot")
	}
	return inspect.Amount(len(s.Backends), "backend")
}

func backendsOf(p inspect.Port, wide bool) *table {
	counted := slices.ContainsFunc(p.Backends, func(b inspect.Backend) bool { return b.Active != nil })
	heading := []string{"BACKEND", "ID", "STATE", "ON-NODE", "WEIGHT", "SETS"}
	if counted {
		heading = append(heading, "ACTIVE")
	}
	timed := p.Algorithm == model.EWMA.String()
	if timed {
		heading = append(heading, "RTT")
	}
	if wide {
		heading = append(heading, "GENERATION")
	}
	t := newTable(heading...)
	for _, b := range p.Backends {
		row := []string{backendAddress(b), number(b.ID), backendState(b), yes(b.OnNode), number(b.Weight), backendSets(b)}
		if counted {
			row = append(row, active(b))
		}
		if timed {
			row = append(row, rtt(b))
		}
		if wide {
			row = append(row, number(b.Generation))
		}
		t.add(row...)
	}
	return t
}
