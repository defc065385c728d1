package main

import (
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tools/kernels/guest"
)

func TestVerdict(t *testing.T) {
	const (
		started = `{"Started":"6.1.0"}` + "\r\n"
		one     = `{"Result":{"Package":"./one","Passed":3}}` + "\r\n"
		two     = `{"Result":{"Package":"./two","Passed":1,"Skipped":["TestX"]}}` + "\r\n"
		failed  = `{"Result":{"Package":"./two","Passed":1,"Failed":1,"Failure":"exit status 1"}}` + "\r\n"
		skipped = `{"Result":{"Package":"./two","Skipped":["TestX"]}}` + "\r\n"
		none    = `{"Result":{"Package":"./one"}}` + "\r\n"
		done    = `{"Done":true}` + "\r\n"
	)
	cases := []struct {
		name     string
		events   string
		stopped  string
		filtered bool
		want     string // part of the error; empty is none
	}{
		{name: "all passed", events: started + one + two + done},
		{name: "a test failed", events: started + one + failed + done, want: "./two: exit status 1"},
		{name: "only skipped tests", events: started + one + skipped + done, want: "./two: no test was run"},
		{name: "the filter leaves a package empty", events: started + one + skipped + done, filtered: true},
		{name: "the filter leaves nothing", events: started + none + skipped + done, filtered: true, want: "0 tests passed"},
		{name: "panic at the start", events: "", want: "ended after 0 of 2"},
		{name: "panic in a package", events: started + one, want: "ended after 1 of 2"},
		{name: "panic within an event", events: started + one + two[:20], want: "ended after 1 of 2"},
		{name: "hang", events: started + one, stopped: "time limit", want: "after 1 of 2 packages: time limit"},
		{name: "a package is missing", events: started + one + done, want: "1 of 2"},
		{name: "init failed", events: `{"Failure":"no module"}`, want: "init: no module"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := report{stopped: c.stopped}
			if err := r.read(strings.NewReader(c.events)); err != nil {
				t.Fatal(err)
			}
			err := r.verdict([]string{"./one", "./two"}, c.filtered)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("verdict: %v, want a pass", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("verdict: %v, want an error with %q", err, c.want)
			}
		})
	}
}

// TestReportOfTwo: what one machine of a run did not do, the run has not.
func TestReportOfTwo(t *testing.T) {
	all := report{done: true}
	all.add(&report{done: true, results: []guest.Result{{Package: "./one", Passed: 1}}})
	if err := all.verdict([]string{"./one"}, false); err != nil {
		t.Error(err)
	}
	all.add(&report{stopped: "time limit", console: []byte("hangs")})
	if err := all.verdict([]string{"./one", "./two"}, false); err == nil || err.Error() != "after 1 of 2 packages: time limit" || string(all.console) != "hangs" {
		t.Errorf("%v, console %q", err, all.console)
	}
}

func TestReadRefusesGarbage(t *testing.T) {
	var r report
	if err := r.read(strings.NewReader("Oops: 0000")); err == nil {
		t.Error("garbage on the result line was read without an error")
	}
}

func TestHasFilter(t *testing.T) {
	for arg, want := range map[string]bool{
		"-test.run=TestA": true,
		"--test.run":      true,
		"-test.skip=B":    true,
		"-test.short":     false,
		"-test.runtime":   false,
	} {
		if got := hasFilter([]string{"-test.v", arg}); got != want {
			t.Errorf("hasFilter(%s) = %v, want %v", arg, got, want)
		}
	}
}
