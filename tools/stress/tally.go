package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
)

// failure is a test that may fail: of a package, beside a load.
type failure struct {
	pkg, test string
	load      float64
}

// tally counts how often each test has failed.
type tally struct {
	counts map[failure]int
	runs   int             // that failed
	all    map[float64]int // runs by load
}

func newTally() *tally {
	return &tally{counts: make(map[failure]int), all: make(map[float64]int)}
}

// add counts a run and reports whether it failed. One that failed without a failed test
// has crashed, or run out of time.
func (t *tally) add(pkg string, load float64, r *result) bool {
	t.all[load]++
	if !r.broken {
		return false
	}
	t.runs++
	names := r.failed
	if len(names) == 0 {
		names = []string{"(no test: it crashed or took too long)"}
	}
	for _, name := range names {
		t.counts[failure{pkg, name, load}]++
	}
	return true
}

// print lists what failed beside a load, in a series of so many runs.
func (t *tally) print(out io.Writer, load float64, of int) {
	keys := slices.SortedFunc(maps.Keys(t.counts), func(a, b failure) int {
		return cmp.Or(t.counts[b]-t.counts[a], cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.test, b.test))
	})
	fmt.Fprintf(out, "\nload %g, %d of %d runs of a package, failed:\n", load, t.all[load], of)
	none := true
	for _, k := range keys {
		if k.load == load {
			none = false
			fmt.Fprintf(out, "  %3d  %s %s\n", t.counts[k], k.pkg, k.test)
		}
	}
	if none {
		fmt.Fprintln(out, "  nothing")
	}
	fmt.Fprintln(out)
}

func (t *tally) err() error {
	if t.runs == 0 {
		return nil
	}
	return fmt.Errorf("%d runs failed", t.runs)
}
