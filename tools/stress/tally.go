package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
)

// failure is a test that may fail, of a package.
type failure struct {
	pkg, test string
}

// tally counts the runs of a series, and how often each test has failed.
type tally struct {
	counts       map[failure]int
	runs, failed int // of packages
}

func newTally() *tally {
	return &tally{counts: make(map[failure]int)}
}

// add counts a run and reports whether it failed. One that failed without a failed test
// has crashed, or run out of time.
func (t *tally) add(pkg string, r *result) bool {
	t.runs++
	if !r.broken {
		return false
	}
	t.failed++
	names := r.failed
	if len(names) == 0 {
		names = []string{"(no test: it crashed or took too long)"}
	}
	for _, name := range names {
		t.counts[failure{pkg, name}]++
	}
	return true
}

// print lists what failed in a series of so many runs beside a load.
func (t *tally) print(out io.Writer, load float64, of int) {
	keys := slices.SortedFunc(maps.Keys(t.counts), func(a, b failure) int {
		return cmp.Or(t.counts[b]-t.counts[a], cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.test, b.test))
	})
	fmt.Fprintf(out, "\nload %g, %d of %d runs, failed:\n", load, t.runs, of)
	for _, k := range keys {
		fmt.Fprintf(out, "  %3d  %s %s\n", t.counts[k], k.pkg, k.test)
	}
	if len(keys) == 0 {
		fmt.Fprintln(out, "  nothing")
	}
	fmt.Fprintln(out)
}
