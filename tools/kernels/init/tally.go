package main

import (
	"bytes"
	"io"
	"strings"

	"github.com/beeline-lb/beeline/tools/kernels/guest"
)

// tally passes the output of a verbose test binary on and counts the results of
// its top-level tests.
type tally struct {
	out    io.Writer
	result *guest.Result
	line   []byte
}

// Write never fails the test for the console's sake.
func (t *tally) Write(p []byte) (int, error) {
	t.out.Write(p)
	t.line = append(t.line, p...)
	for {
		line, rest, found := bytes.Cut(t.line, []byte("\n"))
		if !found {
			return len(p), nil
		}
		t.count(string(line))
		t.line = rest
	}
}

// end counts a last line that has no line end.
func (t *tally) end() { t.count(string(t.line)) }

func (t *tally) count(line string) {
	rest, found := strings.CutPrefix(line, "--- ")
	if !found {
		return
	}
	verdict, rest, _ := strings.Cut(rest, ": ")
	name, _, _ := strings.Cut(rest, " ")
	switch verdict {
	case "PASS":
		t.result.Passed++
	case "FAIL":
		t.result.Failed++
	case "SKIP":
		t.result.Skipped = append(t.result.Skipped, name)
	}
}
