package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/beeline-lb/beeline/tests/programs"
)

// variants are the kinds of clusters that results are told of, in the order of the
// columns: folder of the report → heading.
var variants = [][2]string{
	{"beeline", "Beeline"},
	{"beeline-vxlan", "Beeline, VXLAN"},
	{"beeline-flannel", "Beeline, flannel"},
	{"beeline-flannel-host-gw", "Beeline, flannel host-gw"},
	{"beeline-kube-router", "Beeline, kube-router"},
	{"beeline-kindnet", "Beeline, kindnet"},
	{"beeline-calico", "Beeline, Calico"},
	{"beeline-calico-cross-subnet", "Beeline, Calico without encapsulation"},
	{"beeline-calico-nftables", "Beeline, Calico nftables"},
	{"kube-proxy-nftables", "kube-proxy nftables"},
	{"kube-proxy-iptables", "kube-proxy iptables"},
	{"kube-proxy-nftables-flannel", "kube-proxy nftables, flannel"},
	{"kube-proxy-nftables-calico", "kube-proxy nftables, Calico"},
}

// reasonsText says why tests fail or are skipped: a line with a regular expression of
// names, " = " and the reason.
//
//go:embed reasons.txt
var reasonsText string

// column is one run of the suite.
type column struct {
	heading string
	results results
}

// newTable returns the command that writes RESULTS.md.
func newTable(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "table",
		Short: "Write the results of the last runs of upstream's tests, and of NetworkPolicies, to RESULTS.md",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			root, err := programs.Root()
			if err != nil {
				return err
			}
			reports, err := reportsFolder(s.Reports)
			if err != nil {
				return err
			}
			return writeTables(root, reports)
		},
	}
}

// writeTables writes the parts of RESULTS.md for which the reports have results.
func writeTables(root, reports string) error {
	columns, err := readColumns(reports)
	if err != nil {
		return err
	}
	why, err := parseReasons(reasonsText)
	if err != nil {
		return err
	}
	policies, err := policySection(reports, why)
	if err != nil {
		return err
	}
	if len(columns)+len(policies) == 0 {
		return fmt.Errorf("no results in %s: run make cluster-e2e or cluster-policy", reports)
	}
	var table []byte
	if len(columns) > 0 {
		if table, err = formatTable(columns); err != nil {
			return err
		}
	}
	return changeResults(root, func(p *resultParts) {
		if len(table) > 0 {
			p.upstream = table
		}
		if len(policies) > 0 {
			p.policy = policies
		}
	})
}

// readColumns returns the runs of upstream's tests that there are.
func readColumns(reports string) ([]column, error) {
	var columns []column
	for _, v := range variants {
		r, err := readRun(filepath.Join(reports, v[0]))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		heading, err := withVersion(v[1], filepath.Join(reports, v[0]))
		if err != nil {
			return nil, err
		}
		columns = append(columns, column{heading, r})
	}
	return columns, nil
}

// withVersion adds the version of an add-on that was built from a checkout to the heading of
// a run, of which the results are in dir.
func withVersion(heading, dir string) (string, error) {
	version, err := os.ReadFile(filepath.Join(dir, versionName))
	if errors.Is(err, fs.ErrNotExist) {
		return heading, nil
	}
	return fmt.Sprintf("%s (%s)", heading, strings.TrimSpace(string(version))), err
}

// formatTable returns the page. A test that fails or is skipped anywhere needs a
// reason.
func formatTable(columns []column) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(`# Kubernetes' own tests of the network

Upstream's e2e.test of Kubernetes v1.36.3 against a real cluster of three nodes in three
zones, dual-stack, made by ` + "`make cluster-e2e`" + ` (with ` + "`PROXY=kube-proxy`" + ` or ` + "`FABRIC=`" + ` for the other
columns). "2nd run" is one of what had not passed, by ` + "`AGAIN=1 NODES=6`" + `: some tests
need two nodes in each zone. ` + "`go run ./tests/cluster table`" + ` writes this page, with
[NetworkPolicies](#networkpolicy), ` + "`make soak`" + ` its [end](#soak).

`)
	row(&b, "", headings(columns)...)
	row(&b, "---", slices.Repeat([]string{"---"}, len(columns))...)
	for _, outcome := range []string{outcomePassed, outcomeAgain, outcomeFailed, outcomeSkipped} {
		var counts []string
		for _, c := range columns {
			counts = append(counts, fmt.Sprint(c.results.count(outcome)))
		}
		row(&b, outcome, counts...)
	}
	names, why, err := explain(columns)
	if err != nil {
		return nil, err
	}
	if len(why) > 0 {
		b.WriteString("\n## What failed or was skipped, and why\n\n")
		row(&b, "test", append(headings(columns), "why")...)
		row(&b, "---", slices.Repeat([]string{"---"}, len(columns)+1)...)
		for _, w := range why {
			row(&b, w.name, append(outcomes(columns, w.name), w.reason)...)
		}
	}
	b.WriteString("\n## All tests\n\n")
	row(&b, "test", headings(columns)...)
	row(&b, "---", slices.Repeat([]string{"---"}, len(columns))...)
	for _, name := range names {
		row(&b, name, outcomes(columns, name)...)
	}
	return b.Bytes(), nil
}

// explained is a test that did not pass everywhere.
type explained struct{ name, reason string }

// explain returns the names of all tests, and those that did not pass wherever they ran. The
// error names the ones without a reason.
func explain(columns []column) (names []string, why []explained, err error) {
	reasons, err := parseReasons(reasonsText)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range columns {
		for _, r := range c.results {
			names = append(names, r.name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	var unexplained []error
	for _, name := range names {
		passed := !slices.ContainsFunc(outcomes(columns, name), func(o string) bool { return o != outcomePassed && o != outcomeNone })
		if passed {
			continue
		}
		reason := reasons.of(name)
		if reason == "" {
			unexplained = append(unexplained, fmt.Errorf("tests/cluster/reasons.txt does not say why %q did not pass", name))
		}
		why = append(why, explained{name, reason})
	}
	return names, why, errors.Join(unexplained...)
}

// outcomes returns a test's outcome in each column.
func outcomes(columns []column, name string) []string {
	var all []string
	for _, c := range columns {
		i := slices.IndexFunc(c.results, func(r result) bool { return r.name == name })
		if i < 0 {
			all = append(all, outcomeNone)
			continue
		}
		all = append(all, c.results[i].outcome)
	}
	return all
}

func headings(columns []column) []string {
	var all []string
	for _, c := range columns {
		all = append(all, c.heading)
	}
	return all
}

func row(b *bytes.Buffer, first string, cells ...string) {
	escape := strings.NewReplacer("|", `\|`)
	fmt.Fprintf(b, "| %s |", escape.Replace(first))
	for _, c := range cells {
		fmt.Fprintf(b, " %s |", escape.Replace(c))
	}
	b.WriteString("\n")
}

// reasons are patterns of names and what is said of the tests that match.
type reasons []struct {
	pattern *regexp.Regexp
	reason  string
}

func (r reasons) of(name string) string {
	for _, one := range r {
		if one.pattern.MatchString(name) {
			return one.reason
		}
	}
	return ""
}

func parseReasons(text string) (reasons, error) {
	var all reasons
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, reason, ok := strings.Cut(line, " = ")
		if !ok {
			return nil, fmt.Errorf("reasons.txt: %q has no \" = \"", line)
		}
		compiled, err := regexp.Compile(pattern)
		if err != nil {
			return nil, fmt.Errorf("reasons.txt: %w", err)
		}
		all = append(all, struct {
			pattern *regexp.Regexp
			reason  string
		}{compiled, reason})
	}
	return all, nil
}
