// Package cli is the beeline command: it prints what pkg/inspect reads.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/inspect"
)

// The exit codes.
const (
	ExitOK         = 0
	ExitNotFound   = 1 // the object does not exist, or a check has found something
	ExitUsage      = 2 // unknown command or flag, wrong argument
	ExitNoDatapath = 3 // nothing is pinned where the maps were looked for
	ExitFailure    = 4 // anything else: missing rights, a failed read or write
	ExitRefused    = 5 // explain: the connection would be refused
	ExitDropped    = 6 // explain: it would get no answer
)

// Env is the command's environment: streams and clock.
type Env struct {
	In  io.Reader // read where a flag asks for it only
	Out io.Writer
	Err io.Writer
	Now func() time.Time
	// Pause is how it waits until it looks for a lost node again; nil is [pause.For].
	Pause func(context.Context, time.Duration) bool
	// Renewal is for how long commands that go on may find some of the maps missing; 0 is
	// [inspect.DefaultRenewal].
	Renewal time.Duration
	// Stall is how long an event may take to be written; 0 is a minute.
	Stall time.Duration
}

// Run runs the command with the arguments that follow its name, and returns the
// exit code. The end of ctx ends a command that goes on, as an interrupt does.
func Run(ctx context.Context, env Env, args ...string) int {
	return finish(env, "beeline", execute(ctx, env, args))
}

// finish prints the error of a program and returns its exit code. That nobody reads the output is no news to who began it.
func finish(env Env, program string, err error) int {
	var verdict errVerdict
	if err != nil && !errors.As(err, &verdict) && !errors.Is(err, unix.EPIPE) {
		fmt.Fprintf(env.Err, "%s: %s\n", program, escape(err.Error()))
	}
	return exitCode(err)
}

// execute runs the command and returns its error, which is not printed.
func execute(ctx context.Context, env Env, args []string) error {
	c := &command{Env: env, format: formatTable}
	return c.execute(ctx, c.root(), args)
}

// execute runs what the arguments name.
func (c *command) execute(ctx context.Context, root *cobra.Command, args []string) error {
	root.SetArgs(args)
	root.SetOut(c.Out)
	root.SetErr(c.Err)
	return root.ExecuteContext(ctx)
}

// untilSignal returns a context that ends with ctx, or with a signal to end. A second signal kills, for who reads the
// output may stall.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	signals := []os.Signal{os.Interrupt, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) { // by nohup
		signals = append(signals, unix.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(ctx, signals...)
	context.AfterFunc(ctx, stop)
	// When nobody reads the output any more, writing it fails, and does not kill. The signal itself says nothing: it
	// comes of connections, too.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, unix.SIGPIPE)
	return ctx, func() {
		stop()
		signal.Stop(broken)
	}
}

// usageError is a command line that is wrong.
type usageError struct {
	err  error
	path string // of the command whose help says how
}

// Error says where to read on.
func (e *usageError) Error() string {
	return fmt.Sprintf("%v (see %s --help)", e.err, e.path)
}

func exitCode(err error) int {
	var usage *usageError
	var findings errFindings
	var verdict errVerdict
	var nodes *errNodes
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &usage):
		return ExitUsage
	case errors.As(err, &nodes):
		return nodes.code
	case errors.As(err, &verdict):
		return map[errVerdict]int{
			inspect.VerdictNoService: ExitNotFound, inspect.VerdictRefused: ExitRefused, inspect.VerdictDropped: ExitDropped,
		}[verdict]
	case errors.Is(err, inspect.ErrNotFound), errors.As(err, &findings):
		return ExitNotFound
	case errors.Is(err, inspect.ErrNoDatapath):
		return ExitNoDatapath
	}
	return ExitFailure
}

// command is one run of beeline.
type command struct {
	Env

	bpffs     string
	format    format
	namespace string
	// toldUnread is set once tables that cannot be read were named.
	toldUnread bool
}

const long = `Beeline shows how this node's Services are served.

It reads the maps that beeline-agent has pinned, so it works while the agent is
down. Reading them needs root. Of an agent of another version it names the tables
that it cannot read, and leaves them out.

Exit codes:
  0  done
  1  the Service asked for is not served, or there is no such flow; verify: something
     is not as it should be; explain: no Service, or no frontend of it for the client
  2  wrong usage: unknown command or flag, bad argument
  3  no datapath: nothing is pinned below --bpffs
  4  any other failure, such as missing rights
  5  explain: the connection would be refused
  6  explain: the connection would be dropped`

func (c *command) root() *cobra.Command {
	root := c.program("beeline", "Show how this node's Services are served", long)
	root.PersistentFlags().StringVar(&c.bpffs, "bpffs", datapath.DefaultBPFFS, "BPF file system that the agent pins to")
	must(root.MarkPersistentFlagDirname("bpffs"))
	root.AddCommand(c.serviceCommand(), c.backendCommand(), c.frontendCommand(), c.affinityCommand(),
		c.flowCommand(), c.nodeCommand(), c.statusCommand(), c.topCommand(), c.monitorCommand(), c.webCommand(), c.explainCommand(), c.verifyCommand(),
		c.reportCommand(), c.versionCommand(), c.completionCommand())
	return root
}

// program returns the command that has all others of a program, with the flag for their output.
func (c *command) program(name, short, long string) *cobra.Command {
	root := c.group(name, short)
	root.Long = long
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{err, cmd.CommandPath()}
	})
	root.PersistentFlags().VarP(&c.format, "output", "o", "how to print: "+strings.Join(formats, ", "))
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)))
	return root
}

// must panics on an error that only a fault of this program can cause.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// group returns a command that does nothing without one of its own.
func (c *command) group(name, short string, aliases ...string) *cobra.Command {
	return &cobra.Command{
		Use:     name,
		Short:   short,
		Aliases: aliases,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && !cmd.HasParent() {
				return cmd.Help()
			}
			return &usageError{wrongCommand(cmd, args), cmd.CommandPath()}
		},
	}
}

// wrongCommand says which commands there are.
func wrongCommand(cmd *cobra.Command, args []string) error {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	slices.Sort(names)
	if len(args) == 0 {
		return fmt.Errorf("%s needs a command: %s", cmd.CommandPath(), strings.Join(names, ", "))
	}
	return fmt.Errorf("%s has no command %q, only %s", cmd.CommandPath(), args[0], strings.Join(names, ", "))
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &usageError{fmt.Errorf("unexpected argument %q", args[0]), cmd.CommandPath()}
	}
	return nil
}

// addNamespaceFlag adds the flag that limits a list to one namespace.
func (c *command) addNamespaceFlag(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVarP(&c.namespace, "namespace", "n", "", usage)
	must(cmd.RegisterFlagCompletionFunc("namespace", c.completeNamespaces))
}

// inNamespace returns the items of the namespace asked for, or all.
func inNamespace[T any](c *command, items []T, namespace func(T) string) []T {
	if c.namespace == "" {
		return items
	}
	return slices.DeleteFunc(items, func(item T) bool { return namespace(item) != c.namespace })
}

// read opens the datapath for fn, and says once what it cannot read of another version's.
func read[T any](c *command, fn func(*inspect.Datapath) (T, error)) (T, error) {
	result, err := inspect.Read(c.bpffs, func(d *inspect.Datapath) (T, error) {
		result, err := fn(d)
		if err == nil {
			c.tellUnread(d)
		}
		return result, err
	})
	return result, c.withFlag(err)
}

// tellUnread names the tables that cannot be read, the first time.
func (c *command) tellUnread(d *inspect.Datapath) {
	if err := d.UnreadError(); err != nil && !c.toldUnread {
		c.toldUnread = true
		fmt.Fprintf(c.Err, "beeline: left out: %s\n", escape(err.Error()))
	}
}

// withFlag adds to an error that there is no datapath the flag that says where it is.
func (c *command) withFlag(err error) error {
	if errors.Is(err, inspect.ErrNoDatapath) {
		return fmt.Errorf("%w (--bpffs %s)", err, c.bpffs)
	}
	return err
}
