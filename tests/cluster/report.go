package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// reportName is the file of a run's results.
const reportName = "junit.xml"

// versionName is the file with the version of an add-on that was built from a checkout.
const versionName = "version"

// againName is the folder, in that of a run, of a second run of what did not pass.
const againName = "again"

// The outcomes of a test.
const (
	outcomePassed  = "pass"
	outcomeAgain   = "pass (2nd run)"
	outcomeFailed  = "fail"
	outcomeSkipped = "skip"
	outcomeNone    = "-" // not run, with another focus
)

// result is what became of a test.
type result struct {
	name    string
	outcome string
	message string  // why it failed or was skipped, one line
	seconds float64 // that it took
}

type results []result

// junit is what is read of a report.
type junit struct {
	Cases []struct {
		Name    string  `xml:"name,attr"`
		Status  string  `xml:"status,attr"`
		Time    float64 `xml:"time,attr"`
		Skipped *struct {
			Message string `xml:"message,attr"`
		} `xml:"skipped"`
		Failure *struct {
			Message string `xml:"message,attr"`
		} `xml:"failure"`
		Error *struct {
			Message string `xml:"message,attr"`
		} `xml:"error"`
	} `xml:"testsuite>testcase"`
}

// readReport reads the tests that were to be run, in the order of their names. A
// test that the focus leaves out is not among them.
func readReport(path string) (results, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseReport(b)
}

func parseReport(b []byte) (results, error) {
	var report junit
	if err := xml.Unmarshal(b, &report); err != nil {
		return nil, fmt.Errorf("read the report: %w", err)
	}
	var all results
	for _, c := range report.Cases {
		name, ok := strings.CutPrefix(c.Name, "[It] ")
		if !ok {
			continue // of the suite itself
		}
		r := result{name: shorten(name), outcome: outcomePassed, seconds: c.Time}
		switch {
		case c.Failure != nil:
			r.outcome, r.message = outcomeFailed, firstLine(c.Failure.Message)
		case c.Error != nil:
			r.outcome, r.message = outcomeFailed, firstLine(c.Error.Message)
		case c.Skipped != nil:
			message, skippedItself := strings.CutPrefix(c.Skipped.Message, "skipped - ")
			if !skippedItself {
				continue // not in focus
			}
			r.outcome, r.message = outcomeSkipped, firstLine(message)
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(x, y result) int { return strings.Compare(x.name, y.name) })
	return all, nil
}

// readRun reads a run and, if there is one, the second run of what did not pass.
func readRun(dir string) (results, error) {
	first, err := readReport(filepath.Join(dir, reportName))
	if err != nil {
		return nil, err
	}
	second, err := readReport(filepath.Join(dir, againName, reportName))
	if errors.Is(err, fs.ErrNotExist) {
		return first, nil
	}
	if err != nil {
		return nil, err
	}
	for i, r := range first {
		passed := slices.ContainsFunc(second, func(s result) bool { return s.name == r.name && s.outcome == outcomePassed })
		if r.outcome != outcomePassed && passed {
			first[i].outcome = outcomeAgain
		}
	}
	return first, nil
}

// notPassedPattern returns a regular expression of the tests that failed or were
// skipped; empty when there is none.
func (r results) notPassedPattern() string {
	var names []string
	for _, one := range r {
		if one.outcome != outcomePassed {
			names = append(names, regexp.QuoteMeta(one.name))
		}
	}
	return strings.Join(names, "|")
}

// testLabels are what ginkgo puts behind a name.
var testLabels = regexp.MustCompile(`( \[[^\]]*\])+$`)

// providerLabel tells tests of one cloud provider from those of the same name.
var providerLabel = regexp.MustCompile(` \[Provider:[^\]]*\]`)

// shorten takes the group and the labels off a test's name, but for a provider.
func shorten(name string) string {
	name = strings.TrimPrefix(name, "[sig-network] ")
	return testLabels.ReplaceAllString(name, "") + providerLabel.FindString(name)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

func (r results) count(outcome string) int {
	n := 0
	for _, one := range r {
		if one.outcome == outcome {
			n++
		}
	}
	return n
}

// summary counts the outcomes.
func (r results) summary() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped",
		r.count(outcomePassed), r.count(outcomeFailed), r.count(outcomeSkipped))
}
