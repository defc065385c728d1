package main

import (
	"bytes"
	"slices"
	"strings"
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
	all.add("pkg/a", 0, &result{})
	if err := all.err(); err != nil {
		t.Error(err)
	}
	all.add("pkg/a", 0, &result{broken: true, failed: []string{"TestA", "TestB"}})
	all.add("pkg/a", 0, &result{broken: true, failed: []string{"TestB"}})
	all.add("pkg/b", 1.5, &result{broken: true})
	if err := all.err(); err == nil || err.Error() != "3 runs failed" {
		t.Errorf("the error is %v", err)
	}
	for load, want := range map[float64][]string{
		0:   {"2  pkg/a TestB", "1  pkg/a TestA"},
		1.5: {"1  pkg/b (no test"},
		3:   {"nothing"},
	} {
		var out bytes.Buffer
		all.print(&out, load, 20)
		at := 0
		for _, part := range want {
			i := strings.Index(out.String()[at:], part)
			if i < 0 {
				t.Fatalf("no %q in\n%s", part, out.String())
			}
			at += i
		}
		if strings.Contains(out.String(), "pkg/b") != (load == 1.5) {
			t.Errorf("beside load %g:\n%s", load, out.String())
		}
	}
}
