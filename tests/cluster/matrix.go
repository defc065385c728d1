package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/programs"
)

// The files, below the repository's root, that keep the outcomes of the last runs, and show them
// between two marks.
const (
	matrixFile  = "tests/cluster/matrix.json"
	matrixPage  = "docs/compatibility.md"
	matrixBegin = "<!-- make cluster-matrix writes this table. -->\n"
	matrixEnd   = "<!-- The end of that table. -->\n"
)

// matrixFocus are upstream's tests of what the network of pods may change for a proxy: those of Services and
// of the network of both IP families, and of load balancers' affinity and traffic policy.
const matrixFocus = `\[sig-network\] (NoSNAT|Services|Networking|LoadBalancers.*(ExternalTrafficPolicy|affinity)|` +
	`\[Feature:IPv6DualStack\].*(reach|Services))`

// matrixSkip are those that need a node's SSH, too.
const matrixSkip = defaultSkip + `|\[Disruptive\]`

// matrixCheck is a column: a task and what is said of it.
type matrixCheck struct{ task, heading string }

var matrixChecks = []matrixCheck{
	{"e2e", "upstream's tests"},
	{"migrate", "kube-proxy and back"},
	{"upgrade", "upgrade and back"},
	{"rollout", "rolling updates"},
	{"restart", "restarts of the add-on"},
	{policyTask, "NetworkPolicy"},
}

// matrixTasks are the tasks of all checks.
func matrixTasks() []string {
	var tasks []string
	for _, m := range matrixChecks {
		tasks = append(tasks, m.task)
	}
	return tasks
}

// applies reports whether a check means something for a fabric.
func (m matrixCheck) applies(fabric string) bool {
	switch m.task {
	case "restart":
		return hasAddon(fabric)
	case policyTask:
		return slices.Contains(enforcingFabrics, fabric)
	}
	return true
}

// outcomeUntried is that of a check that this command has never run.
const outcomeUntried = "not run"

// cell is the last run of a check with a network of pods.
type cell struct {
	Fabric  string `json:"fabric"`
	Check   string `json:"check"`
	Outcome string `json:"outcome"`
	// Counts is what the run has counted, in a line; Why says why it failed or was skipped.
	Counts  string `json:"counts,omitempty"`
	Why     string `json:"why,omitempty"`
	Version string `json:"version,omitempty"` // of the add-on
	Nodes   int    `json:"nodes"`
	Kernel  string `json:"kernel"`
	Date    string `json:"date"`
}

// newMatrix returns the command that runs checks with networks of pods.
func newMatrix(s *settings) *cobra.Command {
	var only, checks []string
	cmd := &cobra.Command{
		Use:   "matrix",
		Short: "Run checks with each network of pods, and write the table of outcomes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.Proxy = proxyBeeline
			return runMatrix(cmd.Context(), *s, only, checks)
		},
	}
	cmd.Flags().StringSliceVar(&only, "fabrics", fabrics, "networks of pods")
	cmd.Flags().StringSliceVar(&checks, "checks", matrixTasks(), "what to run with each")
	return cmd
}

// runMatrix runs the checks one after the other, each in a cluster of its own, and writes the table
// after each. A check that fails does not keep the others from running.
func runMatrix(ctx context.Context, s settings, only, names []string) error {
	for _, fabric := range only {
		if !slices.Contains(fabrics, fabric) {
			return fmt.Errorf("--fabrics=%s: want some of %q", fabric, fabrics)
		}
	}
	for _, name := range names {
		if !slices.Contains(matrixTasks(), name) {
			return fmt.Errorf("--checks=%s: want some of %q", name, matrixTasks())
		}
	}
	root, err := programs.Root()
	if err != nil {
		return err
	}
	var failed []error
	for _, fabric := range only {
		for _, m := range matrixChecks {
			if !slices.Contains(names, m.task) || !m.applies(fabric) {
				continue
			}
			one := s
			one.Task, one.Fabric, one.Focus, one.Skip = m.task, fabric, matrixFocus, matrixSkip
			if err := one.validate(); err != nil {
				return err
			}
			c, err := runCell(ctx, one)
			if err == nil {
				err = ctx.Err()
			}
			if err == nil {
				err = recordCell(root, c)
			}
			if err != nil {
				return errors.Join(append(failed, err)...)
			}
			if c.Outcome == outcomeFailed {
				failed = append(failed, fmt.Errorf("%s, %s: %s", fabric, m.task, c.Why))
			}
		}
	}
	return errors.Join(failed...)
}

// runCell runs a check and returns its outcome. The error is of what is around it.
func runCell(ctx context.Context, s settings) (c cell, err error) {
	c = cell{
		Fabric: s.Fabric, Check: s.Task, Outcome: outcomePassed, Nodes: s.Nodes,
		Kernel: kernelRelease(), Date: time.Now().UTC().Format(time.DateOnly),
	}
	fmt.Printf("\n=== %s, %s\n", s.Fabric, s.Task)
	if a := addons[s.Fabric]; a.programs != nil {
		c.Version, err = a.programs.Version(ctx)
	}
	if errors.Is(err, programs.ErrNoCheckout) {
		c.Outcome, c.Why = outcomeSkipped, err.Error()
		return c, nil
	}
	if err != nil {
		return c, err
	}
	reports, err := reportsFolder(s.Reports)
	if err != nil {
		return c, err
	}
	counts, why := countsFile(reports, s.Task), whyFile(reports, s.Task)
	for _, file := range []string{counts, why} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return c, err
		}
	}
	failure := launch(ctx, s)
	if b, err := os.ReadFile(counts); err == nil {
		c.Counts = strings.TrimSpace(string(b))
	}
	if failure == nil {
		return c, nil
	}
	text := failure.Error()
	if b, err := os.ReadFile(why); err == nil {
		text = string(b)
	}
	first, _, _ := strings.Cut(text, "\n")
	c.Outcome, c.Why = outcomeFailed, strings.TrimSuffix(first, ":")
	return c, nil
}

// countsFile is where a task leaves what it has counted, in a line.
func countsFile(reports, task string) string { return filepath.Join(reports, task+".counts") }

// whyFile is where a cluster leaves why its task has failed.
func whyFile(reports, task string) string { return filepath.Join(reports, task+".why") }

// counted writes what this task has counted so far.
func (c *cluster) counted(counts string) error {
	return os.WriteFile(countsFile(c.Reports, c.Task), []byte(counts+"\n"), 0o644)
}

func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Release[:])
}

// recordCell takes the place of the former outcome and writes the table. What was skipped has no outcome: that
// of a former run stays.
func recordCell(root string, c cell) error {
	cells, err := readCells(root)
	if err != nil {
		return err
	}
	former := slices.IndexFunc(cells, func(o cell) bool { return o.Fabric == c.Fabric && o.Check == c.Check })
	switch {
	case former < 0:
		cells = append(cells, c)
	case c.Outcome != outcomeSkipped || cells[former].Outcome == outcomeSkipped:
		cells[former] = c
	}
	place := func(c cell) int {
		return slices.Index(fabrics, c.Fabric)*len(matrixChecks) + slices.Index(matrixTasks(), c.Check)
	}
	slices.SortFunc(cells, func(a, b cell) int { return place(a) - place(b) })
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "\t")
	if err := errors.Join(encoder.Encode(cells), os.WriteFile(filepath.Join(root, matrixFile), b.Bytes(), 0o644)); err != nil {
		return err
	}
	path := filepath.Join(root, matrixPage)
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if page, err = withMatrix(page, cells); err != nil {
		return err
	}
	return os.WriteFile(path, page, 0o644)
}

func readCells(root string) (cells []cell, err error) {
	b, err := os.ReadFile(filepath.Join(root, matrixFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &cells); err != nil {
		return nil, fmt.Errorf("%s: %w", matrixFile, err)
	}
	return cells, nil
}

// withMatrix returns a page with the table of the cells between its marks.
func withMatrix(page []byte, cells []cell) ([]byte, error) {
	before, rest, ok := bytes.Cut(page, []byte(matrixBegin))
	_, after, ends := bytes.Cut(rest, []byte(matrixEnd))
	if !ok || !ends {
		return nil, fmt.Errorf("%s: want a line %q, and after it %q", matrixPage, matrixBegin, matrixEnd)
	}
	return slices.Concat(before, []byte(matrixBegin), matrixTable(cells), []byte(matrixEnd), after), nil
}

// matrixTable returns the table: a network of pods is a row.
func matrixTable(cells []cell) []byte {
	var b bytes.Buffer
	b.WriteString("\n")
	headings := []string{"version"}
	for _, m := range matrixChecks {
		headings = append(headings, m.heading)
	}
	row(&b, "`FABRIC=`", headings...)
	row(&b, "---", slices.Repeat([]string{"---"}, len(headings))...)
	for _, fabric := range fabrics {
		version, texts := "", make([]string, len(matrixChecks))
		for i, m := range matrixChecks {
			texts[i] = outcomeUntried
			if !m.applies(fabric) {
				texts[i] = outcomeNone
			}
			for _, c := range cells {
				if c.Fabric == fabric && c.Check == m.task {
					version, texts[i] = c.Version, c.String()
				}
			}
		}
		row(&b, "`"+fabric+"`", append([]string{version}, texts...)...)
	}
	b.WriteString("\n")
	return b.Bytes()
}

func (c cell) String() string {
	text := c.Outcome
	for _, more := range []string{c.Counts, c.Why} {
		if more != "" {
			text += ": " + more
		}
	}
	return fmt.Sprintf("%s (%s)", text, c.Date)
}
