package main

import (
	"bytes"
	"slices"
	"testing"
)

const output = `-test.shuffle 1
=== RUN   TestA
    a_test.go:1: --- FAIL: nothing
--- FAIL: TestA (0.10s)
    --- FAIL: TestA/one (0.00s)
        --- FAIL: TestA/one/inner (0.00s)
    --- PASS: TestA/two (0.00s)
--- PASS: TestB (0.00s)
--- FAIL: TestAB (1.00s)
FAIL
`

func TestFailures(t *testing.T) {
	if got, want := failures([]byte(output)), []string{"TestA/one/inner", "TestAB"}; !slices.Equal(got, want) {
		t.Errorf("failed are %q, want %q", got, want)
	}
}

func TestTally(t *testing.T) {
	all := newTally()
	printed := func(want string) {
		t.Helper()
		var out bytes.Buffer
		all.print(&out, 1.5, 20)
		if out.String() != want {
			t.Errorf("the tally is %q, want %q", out.String(), want)
		}
	}
	all.add("pkg/a", &result{})
	printed("\nload 1.5, 1 of 20 runs, failed:\n  nothing\n\n")
	all.add("pkg/a", &result{broken: true, failed: []string{"TestA", "TestB"}})
	all.add("pkg/a", &result{broken: true, failed: []string{"TestB"}})
	all.add("pkg/b", &result{broken: true})
	printed("\nload 1.5, 4 of 20 runs, failed:\n    2  pkg/a TestB\n    1  pkg/a TestA\n    1  pkg/b (no test: it crashed or took too long)\n\n")
	if all.failed != 3 {
		t.Errorf("%d runs failed", all.failed)
	}
}
