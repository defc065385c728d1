package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/pause"
)

const topLong = `Show which Services get connections now: those a second for which a backend was chosen, those that
were refused or dropped, and the active flows of clients outside of the node; with trafficSampling in
the agent's configuration, the packets and bytes of these, and of the node's own TCP sockets when their
connections end. Of one Service, show its backends: the share of active connections that each has, that of
the new connections seen since the command looks at it, and the one that its algorithm intends.

At a terminal the view is live:

  up, down    choose a Service; enter shows its backends, esc goes back
  c r f n     sort by connections, refused, flows or name
  p b         sort by packets or bytes, where they are counted
  /           show only Services whose name contains what is typed; enter keeps it, esc ends it
  space       pause the view, and go on
  q           quit

Else, or with --count or -o json or yaml, it prints: once, or --count times.

Connections of this node's processes and pods are counted at connect() and are in no flow: CONNECTIONS
has them only where the algorithm counts active connections (lc, wlc, sed, nq, lblc, lblcr, ewma),
or the Service has zone spill-over. NEW has them always: it is what the programs tell of new connections
while the command looks at one Service, as one of the four who can listen (beeline monitor). Of more
than 1000 in 1.07 s NEW is a sample, and its shares are those of the sample.`

// minTopInterval bounds what reading all tables again and again takes.
const minTopInterval = 100 * time.Millisecond

// topOptions are the flags of beeline top.
type topOptions struct {
	interval time.Duration
	count    int
	sort     topSort
	service  model.Name // the zero value is all
	detail   topDetail
}

func (c *command) topCommand() *cobra.Command {
	o := topOptions{sort: topSort{inspect.ByConnections}, detail: topDetail{inspect.DetailBackends}}
	cmd := &cobra.Command{
		Use:               "top [NAMESPACE/NAME]",
		Short:             "Show which Services and backends get connections now",
		Long:              topLong,
		ValidArgsFunction: c.completeServices,
		Args:              oneServiceAtMost,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.parse(c, args); err != nil {
				return &usageError{err, cmd.CommandPath()}
			}
			if out, ok := c.terminal(); ok && o.count == 0 && (c.format == formatTable || c.format == formatWide) {
				return c.topScreen(cmd.Context(), out, o)
			}
			o.count = max(o.count, 1)
			if o.service == (model.Name{}) {
				return c.printTop(cmd.Context(), o)
			}
			ctx, stop := untilSignal(cmd.Context()) // it is not to leave a listener
			defer stop()
			if err := c.printTop(ctx, o); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&o.interval, "interval", 2*time.Second, "time that rates are of")
	flags.IntVar(&o.count, "count", 0, "print so often, also at a terminal")
	flags.Var(&o.sort, "sort", "what comes first: "+strings.Join(topSorts, ", "))
	flags.Var(&o.detail, "detail", "what -o json and yaml have: "+strings.Join(topDetails, ", "))
	must(cmd.RegisterFlagCompletionFunc("detail", cobra.FixedCompletions(topDetails, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(topSorts, cobra.ShellCompDirectiveNoFileComp)))
	c.addNamespaceFlag(cmd, "show this namespace only")
	return cmd
}

// oneServiceAtMost refuses more arguments than one.
func oneServiceAtMost(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return &usageError{fmt.Errorf("name one service, not %d", len(args)), cmd.CommandPath()}
	}
	return nil
}

// parse checks the command line.
func (o *topOptions) parse(c *command, args []string) (err error) {
	if err := checkInterval(o.interval); err != nil {
		return err
	}
	if o.count < 0 {
		return fmt.Errorf("--count %d is negative", o.count)
	}
	if len(args) > 0 {
		o.service, err = c.serviceName(args[0])
	}
	return err
}

// checkInterval checks the time between two readings.
func checkInterval(interval time.Duration) error {
	if interval < minTopInterval {
		return fmt.Errorf("--interval %v is too short, the least is %v", interval, minTopInterval)
	}
	return nil
}

// terminal returns the terminal that the command writes to and reads keys from.
func (c *command) terminal() (*os.File, bool) {
	out, ok := c.Out.(*os.File)
	return out, ok && term.IsTerminal(int(out.Fd())) && term.IsTerminal(int(os.Stdin.Fd()))
}

// topSince returns what has happened in the namespace asked for, or in all.
func (c *command) topSince(sample, earlier *inspect.Sample) *inspect.Top {
	top := sample.Since(earlier)
	top.Services = inNamespace(c, top.Services, func(s inspect.TopService) string { return s.Namespace })
	return top
}

// printTop prints the tables, each after an interval.
func (c *command) printTop(ctx context.Context, o topOptions) error {
	if o.service != (model.Name{}) {
		// Its error has the names that may have been meant.
		if _, err := read(c, func(d *inspect.Datapath) (*inspect.Service, error) { return d.Service(o.service) }); err != nil {
			return err
		}
	}
	watch := newWatch{command: c, interval: o.interval}
	defer watch.close()
	watch.follow(ctx, o.service)
	last, err := read(c, (*inspect.Datapath).Sample)
	if err != nil {
		return err
	}
	for i := range o.count {
		if !pause.For(ctx, o.interval) {
			return ctx.Err()
		}
		watch.follow(ctx, o.service)
		sample, err := read(c, (*inspect.Datapath).Sample)
		if err != nil {
			return err
		}
		top := c.topSince(sample, last)
		last = sample
		if o.service != (model.Name{}) {
			at := inspect.IndexOfService(top.Services, o.service)
			if at < 0 {
				return &inspect.NotFoundError{Name: o.service}
			}
			top.Services = top.Services[at : at+1]
			if i == o.count-1 {
				watch.finish()
			}
			watch.add(top)
		}
		if i == 0 {
			o.warn(c.Err, top.Services)
		}
		o.sort.Sort(top.Services)
		if err := c.printReading(top, o); err != nil {
			return err
		}
	}
	return nil
}

// printReading prints a reading: as JSON in a line, for there may be many, and large ones.
func (c *command) printReading(top *inspect.Top, o topOptions) error {
	if c.format == formatJSON || c.format == formatYAML {
		top.Keep(o.detail.TopDetail)
		return c.printItem(top, nil)
	}
	return c.print(top, func(bool) string { return agentDown(top) + topText(top, o) })
}

// warn says that nothing is there to sort by.
func (o *topOptions) warn(to io.Writer, services []inspect.TopService) {
	if (o.sort.TopOrder == inspect.ByPackets || o.sort.TopOrder == inspect.ByBytes) && len(services) > 0 && !countsTraffic(services) {
		fmt.Fprintf(to, "beeline: --sort %s: sorted by name, for traffic is not counted: see trafficSampling in the agent's configuration\n", &o.sort)
	}
}

// topText shows all Services, or the backends of the one asked for.
func topText(top *inspect.Top, o topOptions) string {
	text := topSummary(top) + "\n"
	if at := inspect.IndexOfService(top.Services, o.service); at >= 0 {
		return text + topService(top, at, 0) + "\n"
	}
	return text + topServices(top.Services).String() + "\n"
}

// agentDown says that no agent runs on the node, by which some of the figures are.
func agentDown(top *inspect.Top) string {
	if top.Agent.Running {
		return ""
	}
	return "NO AGENT RUNS: evictions are not counted, and changes are not served\n"
}

// topSummary are the sums, and the fullest maps.
func topSummary(top *inspect.Top) string {
	sum := top.Sum()
	text := fmt.Sprintf("%s  %s, %s connections/s, %s refused/s, %s",
		top.Time.Format(time.TimeOnly), inspect.Amount(len(top.Services), "service"),
		perSecond(sum.ConnectionsPerSecond), perSecond(sum.RefusedPerSecond), inspect.Amount(sum.Flows, "active flow"))
	if sum.Traffic != nil {
		text += fmt.Sprintf(", %s packets/s, %s bytes/s", short(sum.Traffic.Packets()), short(sum.Traffic.Bytes()))
	}
	if top.EvictedPerSecond > 0 {
		text += fmt.Sprintf(", %s ESTABLISHED FLOWS EVICTED/s", perSecond(top.EvictedPerSecond))
	}
	return text + "\nfullest maps: " + fullestMaps(top.Maps, 4) + "\n"
}

// fullestMaps names some maps, those with the least room.
func fullestMaps(maps []inspect.Map, most int) string {
	var parts []string
	for _, m := range inspect.FullestMaps(maps, most) {
		parts = append(parts, fmt.Sprintf("%s %.0f %%", m.Name, 100*m.Fill()))
	}
	return strings.Join(parts, ", ")
}

// short has three digits or more, and of large figures a unit: k, M, G, T.
func short(n float64) string {
	unit := 0
	for ; n >= 999.5 && unit < 4; unit++ {
		n /= 1000
	}
	digits := 0
	if unit > 0 && n < 99.95 {
		digits = 1
	}
	return strconv.FormatFloat(n, 'f', digits, 64) + []string{"", "k", "M", "G", "T"}[unit]
}

func perSecond(n float64) string { return fmt.Sprintf("%.1f", n) }

func topServices(services []inspect.TopService) *table {
	heading := []string{"NAMESPACE", "NAME", "CONNECTIONS/S", "REFUSED/S", "FLOWS", "BACKENDS"}
	counted := countsTraffic(services)
	if counted {
		heading = append(heading, trafficHeading...)
	}
	t := newTable(heading...)
	for i := range services {
		s := &services[i]
		row := []string{s.Namespace, s.Name, perSecond(s.ConnectionsPerSecond), perSecond(s.RefusedPerSecond), number(s.Flows), number(s.BackendCount())}
		if counted {
			row = append(row, trafficColumns(s.Traffic)...)
		}
		t.add(row...)
	}
	return t
}

// countsTraffic reports whether packets and bytes of any are known.
func countsTraffic(list []inspect.TopService) bool {
	return slices.ContainsFunc(list, func(s inspect.TopService) bool { return s.Traffic != nil })
}

// trafficHeading is of trafficColumns, the traffic of both directions.
var trafficHeading = []string{"PACKETS/S", "BYTES/S"}

func trafficColumns(t *inspect.TrafficRates) []string {
	return []string{short(t.Packets()), short(t.Bytes())}
}

// topService shows the Service at a place: the backends of each port, in tables that fit a terminal of width columns;
// 0: there is room for all.
func topService(top *inspect.Top, at, width int) string {
	var out strings.Builder
	for i := range top.Services[at].Ports {
		p := &top.Services[at].Ports[i]
		fmt.Fprintf(&out, "Port %d/%s %s: %s, %s connections/s, %s refused/s, %s\n", p.Port, p.Protocol, p.Family, p.Algorithm,
			perSecond(p.ConnectionsPerSecond), perSecond(p.RefusedPerSecond), inspect.Amount(p.Flows, "active flow"))
		if len(p.Backends) > 0 {
			t := topBackends(p)
			if width > 0 {
				fitBackends(t, width)
			}
			out.WriteString(t.String())
		}
	}
	return out.String() + newMissing(top.New)
}

// topBackends shows the backends of a port; new connections where some were seen.
func topBackends(p *inspect.TopPort) *table {
	isNew := slices.ContainsFunc(p.Backends, func(b inspect.TopBackend) bool { return b.New != nil })
	heading := []string{"BACKEND", "ON-NODE", "CONNECTIONS", "SHARE"}
	if isNew {
		heading = append(heading, "NEW", "NEW-SHARE")
	}
	heading = append(heading, "INTENDED")
	if p.Traffic != nil {
		heading = append(heading, "PACKETS/S", "BYTES-IN/S", "BYTES-OUT/S")
	}
	t := newTable(heading...)
	t.indent = "  "
	for i := range p.Backends {
		b := &p.Backends[i]
		row := []string{b.Address.String(), yes(b.OnNode), number(b.Connections), percent(b.Share)}
		if isNew {
			row = append(row, number(b.NewCount()), percent(b.NewShare))
		}
		row = append(row, percent(b.Intended))
		if b.Traffic != nil {
			row = append(row, short(b.Traffic.Packets()), short(b.Traffic.ToBackend.BytesPerSecond), short(b.Traffic.ToClient.BytesPerSecond))
		}
		t.add(row...)
	}
	return t
}

func percent(share *float64) string {
	if share == nil {
		return ""
	}
	return fmt.Sprintf("%.1f %%", 100**share)
}

// topDetail is the flag of a detail.
type topDetail struct{ inspect.TopDetail }

var topDetails = namesOf(inspect.TopDetails)

// String is the flag's value.
func (d *topDetail) String() string { return string(d.TopDetail) }

// Set parses the flag.
func (d *topDetail) Set(value string) error {
	if err := oneOf(value, topDetails); err != nil {
		return err
	}
	d.TopDetail = inspect.TopDetail(value)
	return nil
}

// Type is shown in the help.
func (d *topDetail) Type() string { return "detail" }

// topSort is the flag of an order.
type topSort struct{ inspect.TopOrder }

var topSorts = namesOf(inspect.TopOrders)

func namesOf[T ~string](values []T) (names []string) {
	for _, v := range values {
		names = append(names, string(v))
	}
	return names
}

// String is the flag's value.
func (s *topSort) String() string { return string(s.TopOrder) }

// Set parses the flag.
func (s *topSort) Set(value string) error {
	if err := oneOf(value, topSorts); err != nil {
		return err
	}
	s.TopOrder = inspect.TopOrder(value)
	return nil
}

// Type is shown in the help.
func (s *topSort) Type() string { return "order" }
