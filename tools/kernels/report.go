package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/beeline-lb/beeline/tools/kernels/guest"
)

// report is what is known of a run.
type report struct {
	console []byte
	stopped string // why the machine was stopped; empty when it ended by itself
	failure string // of init
	done    bool
	results []guest.Result
}

// read takes the events in. A last one that the end of the machine cut off is
// left out.
func (r *report) read(in io.Reader) error {
	decoder := json.NewDecoder(in)
	for {
		var event guest.Event
		err := decoder.Decode(&event)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the results: %w", err)
		}
		if event.Failure != "" {
			r.failure = event.Failure
		}
		if event.Result != nil {
			r.results = append(r.results, *event.Result)
		}
		r.done = r.done || event.Done
	}
}

// add adds what is known of another machine of the same run.
func (r *report) add(o *report) {
	r.console = append(r.console, o.console...)
	r.stopped = cmp.Or(r.stopped, o.stopped)
	r.failure = cmp.Or(r.failure, o.failure)
	r.done = r.done && o.done
	r.results = append(r.results, o.results...)
}

// print writes the results of a kernel at once: other kernels may run beside it.
func (r *report) print(out io.Writer, kernel string) {
	var text strings.Builder
	for _, result := range r.results {
		verdict := "ok  "
		if result.Failure != "" {
			verdict = "FAIL"
		}
		fmt.Fprintf(&text, "  %s %s %s %.1fs: %d passed, %d failed, %d skipped",
			verdict, kernel, result.Package, result.Seconds, result.Passed, result.Failed, len(result.Skipped))
		if len(result.Skipped) > 0 {
			fmt.Fprintf(&text, ": %s", strings.Join(result.Skipped, ", "))
		}
		text.WriteString("\n")
	}
	_, _ = io.WriteString(out, text.String()) // the verdict is told by the error
}

// verdict returns why the run did not pass. With filtered some packages may have
// run no test, but not all.
func (r *report) verdict(packages []string, filtered bool) error {
	var errs []error
	if r.failure != "" {
		errs = append(errs, fmt.Errorf("init: %s", r.failure))
	}
	passed := 0
	for _, result := range r.results {
		passed += result.Passed
		switch {
		case result.Failure != "":
			errs = append(errs, fmt.Errorf("%s: %s", result.Package, result.Failure))
		case result.Passed == 0 && !filtered:
			errs = append(errs, fmt.Errorf("%s: no test was run", result.Package))
		}
	}
	switch {
	case len(errs) > 0 || r.done && passed > 0 && len(r.results) == len(packages):
		return errors.Join(errs...)
	case r.stopped != "":
		return fmt.Errorf("after %d of %d packages: %s", len(r.results), len(packages), r.stopped)
	case !r.done:
		return fmt.Errorf("the kernel ended after %d of %d packages; see the console", len(r.results), len(packages))
	}
	return fmt.Errorf("%d tests passed in %d of %d packages", passed, len(r.results), len(packages))
}
