package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/report"
	"github.com/beeline-lb/beeline/pkg/version"
)

const reportLong = `Write one archive (tar.gz) for a bug report, with the agent up or down:

  beeline   status, Services, backends, frontends and nodes as the other commands print
            them, what "beeline verify" finds, the number of flows and some of them,
            and what "beeline monitor" shows in two seconds
  agent     its version and configuration, health, metrics, and its log where systemd has it
  kernel    version, features, settings, log; all BPF programs and links, whoever made them
  network   devices, addresses, routes, tables of nftables, what a kube-proxy has left

FILE is made anew, whole or not at all, and is the user's alone; "-" is standard output,
and without -o it is beeline-report-NODE-TIME.tar.gz. The archive has the names and
addresses of the cluster, but no secrets: neither files with secrets nor the agent's
environment are read, and what looks like a secret in a log is taken out. Addresses of
clients are left out of flows and events unless --clients is given; logs may have some.
Events have the names of processes, never their arguments.

index.txt in the archive lists its parts, and says of each that could not be read why.
These are named on standard error as well, and the rest is written all the same.

Exit codes: 0 the archive is written, 2 wrong usage, 4 it is not.`

// reportOptions are the flags of beeline report.
type reportOptions struct {
	file    string
	clients bool
	timeout time.Duration
}

func (c *command) reportCommand() *cobra.Command {
	var o reportOptions
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Write an archive for a bug report",
		Long:  reportLong,
		Example: `  beeline report
  kubectl -n kube-system exec POD -- beeline report -o - >report.tar.gz`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return c.report(ctx, o)
		},
	}
	cmd.Flags().StringVarP(&o.file, "output", "o", "", `the file to write, "-" for standard output`)
	cmd.Flags().BoolVar(&o.clients, "clients", false, "name the clients of flows and events")
	cmd.Flags().DurationVar(&o.timeout, "timeout", report.DefaultTimeout, "how long to collect at most")
	return cmd
}

// report writes the archive to where it is to go, and prints what is missing.
func (c *command) report(ctx context.Context, o reportOptions) error {
	name, node := c.reportName()
	if o.file == "-" {
		return c.writeReport(ctx, c.Out, name, node, o)
	}
	path := cmp.Or(o.file, name+".tar.gz")
	if err := c.writeReportFile(ctx, path, name, node, o); err != nil {
		return err
	}
	_, err := fmt.Fprintln(c.Out, path)
	return err
}

// writeReportFile makes a file of the archive. It has another name beside its own until it is whole.
func (c *command) writeReportFile(ctx context.Context, path, name, node string, o reportOptions) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return cmp.Or(err, error(&fs.PathError{Op: "create", Path: path, Err: unix.EEXIST}))
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // its user's alone
	if err != nil {
		return err
	}
	err = errors.Join(c.writeReport(ctx, file, name, node, o), file.Close())
	if err == nil {
		err = renameNew(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

// renameNew renames a file. It fails where the new name is one already.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EINVAL): // as on NFS, which has links; VFAT has none
		if err := os.Link(from, to); err != nil {
			return err
		}
		return os.Remove(from)
	case err != nil:
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// reportName returns the name of the archive without its ending, and that of the node, which is the
// host's where no agent has told one.
func (c *command) reportName() (name, node string) {
	node, _ = os.Hostname() // without one the time is enough
	status, err := read(c, (*inspect.Datapath).Status)
	if err == nil && status.Agent.Node != "" {
		node = status.Agent.Node
	}
	node = strings.ReplaceAll(node, "/", "-")
	return fmt.Sprintf("beeline-report-%s-%s", node, c.Now().UTC().Format("20060102T150405Z")), node
}

// writeReport writes the archive, whose files are in the folder dir.
func (c *command) writeReport(ctx context.Context, to io.Writer, dir, node string, o reportOptions) error {
	missing, err := report.Write(ctx, to, dir, c.reportParts(o), report.Options{
		Title:   fmt.Sprintf("Report of beeline %s about node %s at %s.", version.String(), node, c.Now().UTC().Format(time.RFC3339)),
		Time:    c.Now(),
		Timeout: o.timeout,
	})
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	c.printMissing(missing)
	return nil
}

// printMissing names the parts that are missing, those with the same reason together.
func (c *command) printMissing(missing []report.Missing) {
	var reasons []string
	names := make(map[string][]string)
	for _, m := range missing {
		reason := m.Err.Error()
		if names[reason] == nil {
			reasons = append(reasons, reason)
		}
		names[reason] = append(names[reason], m.Name)
	}
	for _, reason := range reasons {
		fmt.Fprintf(c.Err, "beeline: not in the report, or not whole: %s: %s\n", strings.Join(names[reason], ", "), escape(reason))
	}
}

// reportParts lists what the archive holds, what is read fast and matters most first.
func (c *command) reportParts(o reportOptions) []report.Part {
	parts := []report.Part{
		{Name: "version.txt", Read: c.output("version")},
		{Name: "status.txt", Read: c.output("status", "-o", "wide")},
		{Name: "status.json", Read: c.output("status", "-o", "json")},
	}
	parts = append(parts, report.Machine()...)
	parts = append(parts, report.Agent(c.bpffs)...)
	parts = append(parts, report.Part{Name: "verify.txt", Read: c.verifyOutput})
	parts = append(parts,
		report.Part{Name: "flows.txt", Read: func(_ context.Context, to io.Writer) error { return c.flowSample(to, o.clients) }},
		report.Part{Name: "events.jsonl", Read: func(ctx context.Context, to io.Writer) error { return c.events(ctx, to, o.clients) }})
	for _, list := range []string{"node", "service", "backend", "frontend"} { // which may be large
		parts = append(parts, report.Part{Name: list + "s.txt", Read: c.output(list, "list", "-o", "wide")},
			report.Part{Name: list + "s.json", Read: c.output(list, "list", "-o", "json")})
	}
	return parts
}

// output writes what a command of beeline prints.
func (c *command) output(args ...string) func(context.Context, io.Writer) error {
	return func(ctx context.Context, to io.Writer) error {
		return execute(ctx, Env{Out: to, Err: io.Discard, Now: c.Now}, append([]string{"--bpffs", c.bpffs}, args...))
	}
}

// verifyOutput writes what "beeline verify" prints, in which is what could not be checked.
func (c *command) verifyOutput(ctx context.Context, to io.Writer) error {
	var out bytes.Buffer
	err := c.output("verify", "-o", "wide", "--timeout", "10s")(ctx, &out)
	if out.Len() > 0 {
		err = nil
	}
	_, _ = to.Write(out.Bytes())
	return err
}

// sampledFlows is how many flows are shown.
const sampledFlows = 200

// flowSample counts the flows by Service port and state, and shows some.
func (c *command) flowSample(to io.Writer, clients bool) error {
	s, err := read(c, func(d *inspect.Datapath) (*inspect.FlowSummary, error) { return d.FlowSummary(sampledFlows, clients) })
	if err != nil {
		return err
	}
	fmt.Fprintf(to, "%s.\n", inspect.Amount(s.Total, "flow"))
	if s.Total == 0 {
		return nil
	}
	t := newTable("SERVICE", "SERVICE-PORT", "STATE", "FLOWS")
	for _, n := range s.Counts {
		t.add(n.Service.String(), servicePort(n.Service), n.State, number(n.Count))
	}
	without := ""
	if !clients {
		without = ", without the clients' addresses"
	}
	_, err = fmt.Fprintf(to, "\n%s\n%d of them%s:\n\n%s", t, len(s.Sample), without, flowTable(s.Sample, true))
	return err
}

// What is heard for a report: two seconds of at most so many events a second.
const (
	heardTime = 2 * time.Second
	heardRate = 1000
)

// events writes what happens meanwhile, an object of JSON a line.
func (c *command) events(ctx context.Context, to io.Writer, clients bool) error {
	ctx, cancel := context.WithTimeout(ctx, heardTime)
	defer cancel()
	heard := false
	err := c.listen(ctx, inspect.EventOptions{Kinds: monitoredKinds, Rate: heardRate}, 0, func() error { return nil }, func(e *inspect.Event) error {
		if !clients {
			e.Client = netip.AddrPort{}
		}
		heard = true
		line, err := jsonLine(e)
		_, _ = to.Write(line)
		return err
	})
	if err == nil && !heard {
		err = fmt.Errorf("no connection began, failed or ended within the %v of listening", heardTime)
	}
	return err
}
