package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/pkg/verify"
)

const verifyLong = `Compare what the cluster wants with what the kernel of this node has:

  tables    what the agent would write if it were started now, with the source and
            the configuration of the last one: entries that are missing, changed or
            of no Service
  programs  links that somebody has removed, programs of others that run before
            Beeline's, devices that are to be served and are not
  machine   settings of the kernel, what a kube-proxy has left, the tunnel's MTU,
            connection tracking

It changes nothing. While an agent runs, a difference has to last for --settle with no
change of the source or of the agent that may explain it. Run it where the agent runs,
on the node or in the agent's pod: it reads the same files and asks the same API
server.

Exit codes: 0 nothing found, 1 something found, 2 wrong usage, 3 no datapath, 4 nothing
found, but something could not be checked or changed all the time.`

// errFindings says that something is not as it should be. It is told in full already.
type errFindings int

func (e errFindings) Error() string { return inspect.Amount(int(e), "finding") }

func (c *command) verifyCommand() *cobra.Command {
	var (
		watch    bool
		interval time.Duration
		settle   time.Duration
		timeout  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare what the cluster wants with what the kernel has",
		Long:  verifyLong,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			checker, err := verify.Open(verify.Options{BPFFS: c.bpffs, Settle: settle, SourceTimeout: timeout})
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
				_, err := read(c, func(*inspect.Datapath) (struct{}, error) { return struct{}{}, nil }) // says what to do
				return err
			}
			if err != nil {
				return err
			}
			if watch {
				err = c.watchVerify(cmd.Context(), checker, interval)
			} else {
				err = c.verifyOnce(cmd.Context(), checker)
			}
			return errors.Join(err, checker.Close())
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "check again and again, and print what has changed")
	cmd.Flags().DurationVar(&interval, "interval", 10*time.Second, "pause between two checks of --watch")
	cmd.Flags().DurationVar(&settle, "settle", verify.DefaultSettle, "how long a difference has to last while an agent runs")
	cmd.Flags().DurationVar(&timeout, "timeout", verify.DefaultSourceTimeout, "how long to wait for all Services of the source")
	return cmd
}

// verifyOnce checks once. The error says what the exit code is to be.
func (c *command) verifyOnce(ctx context.Context, checker *verify.Checker) error {
	r, err := c.check(ctx, checker)
	if err != nil {
		return err
	}
	if err := c.print(r, func(wide bool) string { return nodeVerifyText(r, wide) }); err != nil {
		return err
	}
	switch {
	case len(r.Findings) > 0:
		return errFindings(len(r.Findings))
	case len(r.Unchecked) > 0:
		return fmt.Errorf("not all could be checked: %s", r.Unchecked[0].Reason)
	case len(r.Unsettled) > 0:
		return fmt.Errorf("not all could be judged: %s changed all the time", r.Unsettled[0])
	}
	return nil
}

// watchVerify checks until ctx ends and prints what differs from the last check. Maps that are not there for a
// while, as between a clean-up and the start of an agent, end nothing, nor do those of which a part is there
// while pins are made or removed.
func (c *command) watchVerify(ctx context.Context, checker *verify.Checker, interval time.Duration) error {
	var last *verify.Report
	var other time.Time // since when maps are missing, or of another version
	absent := false
	for {
		r, err := c.check(ctx, checker)
		switch {
		case !errors.Is(err, bpfmap.ErrOtherVersion):
			other = time.Time{}
		case other.IsZero():
			other = time.Now()
		}
		switch {
		case errors.Is(err, fs.ErrNotExist), !other.IsZero() && time.Since(other) <= cmp.Or(c.Renewal, inspect.DefaultRenewal):
			if !absent {
				fmt.Fprintf(c.Err, "beeline: %s, checking again\n", escape(err.Error()))
			}
			absent = true
		case err != nil:
			return err
		case last == nil || absent || !sameFindings(r, last):
			last, absent = r, false
			if err := c.print(r, func(wide bool) string { return r.Time.UTC().Format(time.RFC3339) + " " + nodeVerifyText(r, wide) }); err != nil {
				return err
			}
		}
		if !pause.For(ctx, interval) {
			return nil
		}
	}
}

// sameFindings reports whether two checks have had the same results, those that the text of not wide
// output leaves out among them.
func sameFindings(a, b *verify.Report) bool {
	return a.Agent == b.Agent && slices.Equal(a.Findings, b.Findings) && slices.Equal(a.Unchecked, b.Unchecked) && slices.Equal(a.Unsettled, b.Unsettled)
}

// check makes a check, whose text names flags.
func (c *command) check(ctx context.Context, checker *verify.Checker) (*verify.Report, error) {
	r, err := checker.Check(ctx)
	if err != nil {
		return nil, err
	}
	for i := range r.Findings {
		if f := &r.Findings[i]; f.Kind == "kube-proxy" {
			f.Fix = "make sure that kube-proxy does not run on this node, then remove what it has left: beeline-agent --cleanup-kube-proxy"
		}
	}
	return r, nil
}

// mostOfAKind is how many findings of one kind are shown unless all are asked for.
const mostOfAKind = 10

// nodeVerifyText shows what was found on this node, and whether an agent goes on from there.
func nodeVerifyText(r *verify.Report, wide bool) string {
	text := verifyText(r, wide)
	if !r.Agent {
		text += "\nNo agent runs: what changes from now on is not served until one is started.\n"
	}
	return text
}

// verifyText shows findings, those of a kind together.
func verifyText(r *verify.Report, wide bool) string {
	var out strings.Builder
	if len(r.Findings) == 0 {
		out.WriteString("Nothing found.\n")
	} else {
		fmt.Fprintf(&out, "%s.\n", inspect.Amount(len(r.Findings), "finding"))
	}
	for _, kind := range kinds(r.Findings) {
		fmt.Fprintf(&out, "\n%s: %s\n", kind[0].Part, kind[0].Kind)
		for i, f := range kind {
			if i == mostOfAKind && !wide {
				fmt.Fprintf(&out, "  and %d more, see -o wide\n", len(kind)-i)
				break
			}
			fmt.Fprintf(&out, "  %s\n", f.What)
		}
		fmt.Fprintf(&out, "  Why it matters: %s.\n  To mend it: %s.\n", kind[0].Why, kind[0].Fix)
	}
	if len(r.Unsettled) > 0 {
		fmt.Fprintf(&out, "\nNot judged, as it changed all the time: %s\n", list(r.Unsettled, wide))
	}
	for _, u := range r.Unchecked {
		fmt.Fprintf(&out, "\nNot checked: %s: %s\n", u.Part, u.Reason)
	}
	return out.String()
}

// kinds returns the findings by kind, in the order in which the first of each comes.
func kinds(findings []verify.Finding) (list [][]verify.Finding) {
	for _, f := range findings {
		at := slices.IndexFunc(list, func(of []verify.Finding) bool { return of[0].Part == f.Part && of[0].Kind == f.Kind })
		if at < 0 {
			list = append(list, []verify.Finding{f})
		} else {
			list[at] = append(list[at], f)
		}
	}
	return list
}
