package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/verify"
)

const explainLong = `Say what would happen to a new connection, step by step, and why.

The programs' own steps answer: they are run for the connection over the maps that
serve this node, without storing anything. The agent need not run. Run it in the
node's network namespace, as root. The agent's source is asked for the Service's
endpoints that are in no set; where it does not answer, the step slices says why.
Of endpoints that get no connections 20 are shown, with -o wide, json and yaml all.

Of NAMESPACE/SERVICE all frontends are explained, a NodePort at one address of the
node; the step node port names the others.

--from is the client: without it, a process in this network namespace; a network
namespace, as a path (/proc/PID/ns/net) or a name below /run/netns; an address of this
node, of a pod of this node, or of a host elsewhere, with a source port or without one.
Where no program sees the client's socket, as of SCTP, its packets are explained.
A pod is named by its address (kubectl get pods -o wide), for the node does not know its
name; kubectl beeline explain takes that, too.

Exit codes: 0 served, 1 no Service, no frontend of SERVICE for the client, or no program
sees the connection (it goes its way untouched), 2 wrong usage, 3 no datapath, 4 failure,
5 refused, 6 dropped. Of several frontends it is that of the first one that is not served.`

// errVerdict says that a connection would not be served. It is told in full already.
type errVerdict string

func (e errVerdict) Error() string { return string(e) }

func (c *command) explainCommand() *cobra.Command {
	var from string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "explain [--from ADDRESS|NETNS] ADDRESS:PORT[/PROTOCOL] | NAMESPACE/SERVICE",
		Short: "Say what would happen to a connection, and why",
		Long:  explainLong,
		Example: `  beeline explain 10.96.0.10:53/UDP
  beeline explain --from 10.244.1.7 shop/web
  beeline explain --from 203.0.113.9 192.0.2.10:30080`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return &usageError{fmt.Errorf("name one address and port, or one service, not %d", len(args)), cmd.CommandPath()}
			}
			return nil
		},
		ValidArgsFunction: c.completeServices,
		RunE: func(cmd *cobra.Command, args []string) error {
			ask, err := c.question(args[0], from)
			if err != nil {
				return &usageError{err, cmd.CommandPath()}
			}
			return c.explain(cmd.Context(), ask, timeout)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "the client: an address, with a port or without, or a network namespace")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for the source's endpoints")
	c.addNamespaceFlag(cmd, "namespace of a NAME given alone")
	return cmd
}

// question parses what is asked about.
func (c *command) question(arg, from string) (func(*inspect.Explainer) ([]*inspect.Explanation, error), error) {
	address, protocolName, given := strings.Cut(arg, "/")
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		if _, errAddr := netip.ParseAddr(address); errAddr == nil {
			return nil, fmt.Errorf("%q has no port: write ADDRESS:PORT", arg)
		}
		name, err := c.serviceName(arg)
		return func(e *inspect.Explainer) ([]*inspect.Explanation, error) { return e.ExplainService(name, from) }, err
	}
	protocol := model.TCP
	if given {
		if protocol, err = model.ParseProtocol(strings.ToUpper(protocolName)); err != nil {
			return nil, err
		}
	}
	o := inspect.ExplainOptions{From: from, To: netip.AddrPortFrom(to.Addr().Unmap(), to.Port()), Protocol: protocol}
	return func(e *inspect.Explainer) ([]*inspect.Explanation, error) {
		x, err := e.Explain(o)
		return []*inspect.Explanation{x}, err
	}, nil
}

// explain asks and prints. The error says what the exit code is to be.
func (c *command) explain(ctx context.Context, ask func(*inspect.Explainer) ([]*inspect.Explanation, error), timeout time.Duration) error {
	list, err := read(c, func(d *inspect.Datapath) ([]*inspect.Explanation, error) {
		e := d.Explainer()
		list, err := ask(e)
		return list, errors.Join(err, e.Close())
	})
	if err != nil {
		return err
	}
	c.addCandidates(ctx, list, timeout)
	if err := c.print(list, func(wide bool) string { return explanationsText(list, wide) }); err != nil {
		return err
	}
	return firstVerdict(list)
}

// firstVerdict returns the verdict of the first connection that would not be served.
func firstVerdict(list []*inspect.Explanation) error {
	for _, x := range list {
		if x.Verdict != inspect.VerdictServed {
			return errVerdict(x.Verdict)
		}
	}
	return nil
}

// addCandidates asks the source for endpoints that are in no set, which the tables do not have.
func (c *command) addCandidates(ctx context.Context, list []*inspect.Explanation, timeout time.Duration) {
	byService := make(map[model.Name][]*inspect.Explanation) // mostly one: two may share an address
	for _, x := range list {
		if name, _, wants := x.Wants(); wants {
			byService[name.Service] = append(byService[name.Service], x)
		}
	}
	for service, list := range byService {
		c.addCandidatesOf(ctx, service, list, timeout)
	}
}

// addCandidatesOf is addCandidates for what one Service serves.
func (c *command) addCandidatesOf(ctx context.Context, service model.Name, list []*inspect.Explanation, timeout time.Duration) {
	checker, err := verify.Open(verify.Options{BPFFS: c.bpffs, SourceTimeout: timeout, Only: service})
	if err == nil {
		defer checker.Close()
		err = checker.AwaitSource(ctx)
	}
	for _, x := range list {
		if err != nil {
			x.AddCandidates(nil, err)
			continue
		}
		name, family, _ := x.Wants()
		x.AddCandidates(checker.Candidates(name, family))
	}
}

func explanationsText(list []*inspect.Explanation, wide bool) string {
	var texts []string
	for _, x := range list {
		texts = append(texts, explanationText(x, wide))
	}
	return strings.Join(texts, "\n")
}

// idleShown is how many endpoints that get no connections are shown unless all are asked for.
const idleShown = 20

func explanationText(x *inspect.Explanation, wide bool) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s/%s: %s\n", netip.AddrPortFrom(x.Address, x.Port), x.Protocol, verdictText(x))
	steps := &table{indent: "  "}
	for _, s := range x.Steps {
		steps.add(s.Step, s.Result)
	}
	out.WriteString(steps.String())
	if len(x.Backends) == 0 {
		return out.String()
	}
	t := newTable("ENDPOINT", "SHARE", "STATE", "ON-NODE", "WEIGHT", "WHY NOT")
	t.indent = "  "
	idle := 0
	for _, b := range x.Backends {
		if b.Share == 0 {
			idle++
		}
		if b.Share == 0 && idle > idleShown && !wide {
			continue
		}
		t.add(backendAddress(b.Backend), fmt.Sprintf("%.1f %%", 100*b.Share), backendState(b.Backend), yes(b.OnNode), number(b.Weight), b.Why)
	}
	out.WriteString("\n" + t.String())
	if more := idle - idleShown; more > 0 && !wide {
		fmt.Fprintf(&out, "  and %s get no connections: see -o wide\n", inspect.Amount(more, "more endpoint"))
	}
	return out.String()
}

func verdictText(x *inspect.Explanation) string {
	switch {
	case x.Unseen:
		return "no program sees it, goes its way untouched"
	case x.Verdict == inspect.VerdictNoService:
		return "no Service, goes its way untouched"
	case x.Verdict == inspect.VerdictServed && x.Chosen != nil && x.Certain:
		return "served by " + backendAddress(*x.Chosen)
	case x.Verdict == inspect.VerdictServed:
		return "served, by one of the endpoints below"
	}
	return fmt.Sprintf("%s (%s)", x.Verdict, x.Reason)
}
