package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/monitor"
)

const monitorLong = `Show connections as they begin, end or fail.

One line an event: a connection with the backend that was chosen for it, by a socket of this
node or by packets of a client outside; one that was refused or dropped, and why; and one that
has ended, with how long it was open and, of TCP packets, its bytes each way: by sequence numbers,
so of more than 4 GiB what is left after whole 4 GiB (bytesModulo in JSON). A flow that has been
idle for too long ends when the agent removes it; that looks through the flow tables every ten
seconds, and tells of endpoints that have left their Service with open flows, and of evictions.
Endpoints that outlier detection ejects, or lets in again, are told by the agent, too.

Nothing is told and nothing is paid for while nobody listens. No more than --rate events are told
in each 1.07 seconds (2^30 ns), however many there are, and what was left out is counted. Filters
choose before that limit, but for --protocol and the ports of --client and --backend; with --client,
connections of this node's sockets count, and with --service, refusals at ports that no Service
declares. Of a connection, or of a socket, --sample shows all events or none, the end of an idle flow
like any other; left, evicted, ejected and admitted it always shows. The agent need not run, except
for what it finds itself.

Up to four can listen at once. In the agent's pod run it by kubectl exec -it: begun without -it it
goes on there after Ctrl+C, and keeps its place. One whose output is not read for a minute gives
up its place, and ends with an error when it can write again.

With -o json each event is one line.`

// monitoredKinds are the kinds that are shown unless others are asked for.
var monitoredKinds = []string{inspect.EventConnection, inspect.EventRefused, inspect.EventDropped, inspect.EventEnded, inspect.EventLeft, inspect.EventEvicted, inspect.EventEjected, inspect.EventAdmitted}

// monitorFlags are the flags of monitor.
type monitorFlags struct {
	options  inspect.EventOptions
	service  string
	drops    bool
	count    int
	untilEOF bool

	filters *pflag.FlagSet // those that say which events are meant
}

func (c *command) monitorCommand() *cobra.Command {
	f := new(monitorFlags)
	cmd := &cobra.Command{
		Use:   "monitor",
		Short: "Show connections as they begin, end or fail",
		Long:  monitorLong,
		Example: `  beeline monitor --drops
  beeline monitor --service shop/web --client 192.0.2.0/24
  beeline monitor --reason no_endpoint -o json
  kubectl -n kube-system exec -it POD -- beeline monitor`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.parse(c); err != nil {
				return &usageError{err, cmd.CommandPath()}
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			if f.untilEOF {
				go func() {
					_, _ = io.Copy(io.Discard, c.In) // an input that cannot be read has ended, too
					stop()
				}()
			}
			return c.monitor(ctx, f)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.untilEOF, "until-eof", false, "print an empty line when it listens, and end when standard input ends")
	must(cmd.RegisterFlagCompletionFunc("service", c.completeServices))
	return cmd
}

// add adds the flags of monitor on a node and on all nodes.
func (f *monitorFlags) add(cmd *cobra.Command) {
	flags := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	flags.StringSliceVar(&f.options.Kinds, "kind", nil, "only events of these kinds: "+strings.Join(inspect.EventKinds, ", "))
	flags.BoolVar(&f.drops, "drops", false, "only what is not served: as --kind refused,dropped")
	flags.StringSliceVar(&f.options.Reasons, "reason", nil, "only what is not served for these reasons, as beeline status names them")
	flags.StringVar(&f.service, "service", "", "only events of this Service, `NAMESPACE/NAME`")
	addConnectionFlags(flags, &f.options.ConnectionFilter, "events")
	flags.IntVar(&f.options.Rate, "rate", 1000, "events per 1.07 s (2^30 ns) at most")
	flags.IntVar(&f.options.Sample, "sample", 1, "show one of so many connections, with all its events")
	f.filters = flags
	cmd.Flags().AddFlagSet(flags)
	cmd.Flags().IntVar(&f.count, "count", 0, "end after so many events; 0 is never")
	must(cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(inspect.EventKinds, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("reason", cobra.FixedCompletions(inspect.RefusalReasons(), cobra.ShellCompDirectiveNoFileComp)))
	completeProtocols(cmd)
}

// parse checks what the flags say together.
func (f *monitorFlags) parse(c *command) (err error) {
	o := &f.options
	switch {
	case f.drops && len(o.Kinds) > 0:
		return errors.New("--drops and --kind: give one of them")
	case f.drops, len(o.Kinds) == 0 && len(o.Reasons) > 0: // no other kinds have one
		o.Kinds = inspect.NotServed
	case len(o.Kinds) == 0:
		o.Kinds = monitoredKinds
	}
	for _, k := range o.Kinds {
		if err := oneOf(k, inspect.EventKinds); err != nil {
			return fmt.Errorf("--kind %q %w", k, err)
		}
	}
	for _, r := range o.Reasons {
		if err := oneOf(r, inspect.RefusalReasons()); err != nil {
			return fmt.Errorf("--reason %q %w", r, err)
		}
	}
	if o.Rate < 1 || o.Sample < 1 || f.count < 0 {
		return errors.New("--rate and --sample must be at least 1, --count at least 0")
	}
	if f.service != "" && !strings.Contains(f.service, "/") {
		return fmt.Errorf("--service %q: write NAMESPACE/NAME", f.service)
	}
	if f.service != "" {
		o.Service, err = c.serviceName(f.service)
	}
	return err
}

// monitor prints events until ctx ends.
func (c *command) monitor(ctx context.Context, f *monitorFlags) error {
	if f.options.Service != (model.Name{}) {
		// It may be made while somebody listens.
		_, err := read(c, func(d *inspect.Datapath) (*inspect.Service, error) { return d.Service(f.options.Service) })
		switch {
		case errors.Is(err, inspect.ErrNotFound):
			fmt.Fprintf(c.Err, "beeline: no events yet: %s\n", escape(err.Error()))
		case err != nil:
			return err
		}
	}
	f.options.Renewal, f.options.Stall = c.Renewal, c.Stall
	begun := func() error {
		if !f.untilEOF {
			return nil
		}
		_, err := fmt.Fprintln(c.Out)
		return err
	}
	return c.listen(ctx, f.options, f.count, begun, func(e *inspect.Event) error {
		return c.printItem(e, func(wide bool) string { return eventText(e, wide) })
	})
}

// listen calls begun when it listens, and show with so many events, or with 0 all until ctx ends.
func (c *command) listen(ctx context.Context, o inspect.EventOptions, count int, begun func() error, show func(*inspect.Event) error) (err error) {
	m, err := inspect.Listen(c.bpffs, o)
	if err != nil {
		return c.withFlag(err)
	}
	stopped := context.AfterFunc(ctx, m.Interrupt)
	defer func() {
		stopped()
		err = errors.Join(err, m.Close())
	}()
	if err := begun(); err != nil {
		return err
	}
	for shown := 0; count == 0 || shown < count; {
		e, err := m.Next()
		ended := errors.Is(err, monitor.ErrClosed)
		if ended {
			e, err = m.LeftOut()
		}
		if err == nil && e != nil {
			err = show(e)
		}
		if ended || err != nil {
			return err
		}
		if e.Kind != inspect.EventLeftOut {
			shown++
		}
	}
	return nil
}

// eventText returns an event as a line.
func eventText(e *inspect.Event, wide bool) string {
	at := e.Time.Local().Format("15:04:05.000000")
	if e.Kind == inspect.EventLeftOut {
		return fmt.Sprintf("%s %s more: see --rate", at, inspect.Amount(int(e.LeftOut), "event"))
	}
	words := []string{at, fmt.Sprintf("%-10s", e.Kind)}
	switch e.Kind {
	case inspect.EventEvicted:
		return strings.Join(append(words, inspect.Amount(int(e.Flows), "established flow"), "or more: the flow table is full"), " ")
	case inspect.EventEjected:
		return strings.Join(append(words, e.Protocol, eventEndpoint(e), "for", age(int64(e.EjectedSeconds))+":", inspect.Amount(int(e.Failures), "connection"), "failed"), " ")
	case inspect.EventAdmitted:
		return strings.Join(append(words, e.Protocol, eventEndpoint(e), "gets connections again"), " ")
	case inspect.EventLeft:
		words = append(words, e.Protocol, "every client")
	default:
		words = append(words, e.Protocol, eventClient(e))
	}
	words = append(words, "->", e.ServiceAddress.String())
	if e.Service.Service != "" {
		words = append(words, "("+e.Service.String()+")")
	}
	if e.Backend.IsValid() {
		words = append(words, "->", e.Backend.String())
	}
	words = append(words, eventDetails(e)...)
	if wide {
		words = append(words, eventPlace(e)...)
	}
	return strings.Join(words, " ")
}

// eventEndpoint names the endpoint that an event is about.
func eventEndpoint(e *inspect.Event) string {
	if e.Service.Service == "" {
		return e.Backend.String()
	}
	return fmt.Sprintf("%s of %s", e.Backend, e.Service)
}

// eventClient names the client: its address, its process, or both.
func eventClient(e *inspect.Event) string {
	var words []string
	if e.Client.IsValid() {
		words = append(words, e.Client.String())
	}
	if e.PID != 0 {
		words = append(words, fmt.Sprintf("%s[%d]", e.Command, e.PID))
	}
	if len(words) == 0 {
		return "a socket"
	}
	return strings.Join(words, " ")
}

// eventDetails are what is said of some events only.
func eventDetails(e *inspect.Event) (words []string) {
	switch {
	case e.TunnelNode != "":
		words = append(words, "in the tunnel to "+e.TunnelNode)
	case e.Source.IsValid():
		words = append(words, "from "+e.Source.String())
	}
	if e.DurationSeconds != nil {
		words = append(words, "after "+time.Duration(*e.DurationSeconds*float64(time.Second)).Round(time.Microsecond).String())
	}
	if e.Bytes != nil {
		words = append(words, fmt.Sprintf("%d bytes to the backend, %d to the client", e.Bytes.FromClient, e.Bytes.FromBackend))
	}
	if e.Packets != nil {
		words = append(words, fmt.Sprintf("in %d and %d packets", e.Packets.FromClient, e.Packets.FromBackend))
	}
	if e.Flows != 0 {
		words = append(words, "has left with "+inspect.Amount(int(e.Flows), "open flow"))
	}
	if e.Explanation != "" {
		words = append(words, e.Reason+": "+e.Explanation)
	}
	return words
}

// eventPlace are the words for where an event was seen.
func eventPlace(e *inspect.Event) []string {
	words := []string{"at " + e.Hook}
	if e.Device != "" {
		words = append(words, "of "+e.Device)
	}
	if e.Netns != 0 {
		words = append(words, fmt.Sprintf("netns %d", e.Netns))
	}
	return slices.Clip(words)
}
