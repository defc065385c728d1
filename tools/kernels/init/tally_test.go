package main

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/beeline-lb/beeline/tools/kernels/guest"
)

func TestTally(t *testing.T) {
	output := "=== RUN   TestA\n" +
		"--- PASS: TestA (0.00s)\n" +
		"--- FAIL: TestB (0.10s)\n" +
		"    --- PASS: TestB/sub (0.00s)\n" +
		"    b_test.go:7: --- PASS: not a result\n" +
		"--- SKIP: TestC (0.00s)\n" +
		"--- PASS: TestD (0.00s)"
	want := guest.Result{Passed: 2, Failed: 1, Skipped: []string{"TestC"}}

	for _, size := range []int{1, 7, len(output)} {
		var got guest.Result
		var passed bytes.Buffer
		tally := tally{out: &passed, result: &got}
		for rest := []byte(output); len(rest) > 0; {
			n, err := tally.Write(rest[:min(size, len(rest))])
			if err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		tally.end()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("in writes of %d bytes: counted %+v, want %+v", size, got, want)
		}
		if passed.String() != output {
			t.Errorf("in writes of %d bytes: output passed on is %q", size, passed.String())
		}
	}
}
