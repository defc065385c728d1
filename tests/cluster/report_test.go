package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const report = `<testsuites><testsuite>
<testcase name="[SynchronizedBeforeSuite]" status="passed" time="1"></testcase>
<testcase name="[It] [sig-network] Services should serve [Slow] [sig-network, Slow]" status="passed" time="2.5"></testcase>
<testcase name="[It] [sig-network] DNS should resolve [sig-network]" status="failed" time="3"><failure message="timed out&#xA;after 1s"></failure></testcase>
<testcase name="[It] [sig-network] Proxy should proxy [sig-network]" status="skipped" time="0"><skipped message="skipped - needs SSH&#xA;x"></skipped></testcase>
<testcase name="[It] [sig-storage] left out [sig-storage]" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
</testsuite></testsuites>`

func TestReadReport(t *testing.T) {
	got, err := parseReport([]byte(report))
	if err != nil {
		t.Fatal(err)
	}
	want := results{
		{name: "DNS should resolve", outcome: outcomeFailed, message: "timed out", seconds: 3},
		{name: "Proxy should proxy", outcome: outcomeSkipped, message: "needs SSH"},
		{name: "Services should serve", outcome: outcomePassed, seconds: 2.5},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := got.summary(); got != "1 passed, 1 failed, 1 skipped" {
		t.Errorf("summary %q", got)
	}
}

func TestOutcomes(t *testing.T) {
	columns := []column{
		{"one", results{{name: "a", outcome: outcomePassed}, {name: "b", outcome: outcomeSkipped}}},
		{"two", results{{name: "b", outcome: outcomeFailed}}},
	}
	if got := outcomes(columns, "a"); !slices.Equal(got, []string{"pass", "-"}) {
		t.Errorf("a: %v", got)
	}
	if got := outcomes(columns, "b"); !slices.Equal(got, []string{"skip", "fail"}) {
		t.Errorf("b: %v", got)
	}
	_, _, err := explain([]column{
		{"one", results{{name: "never heard of", outcome: outcomePassed}}},
		{"two", results{{name: "nor of this", outcome: outcomePassed}}},
	})
	if err != nil {
		t.Errorf("tests that pass where they are run: %v", err)
	}
	_, _, err = explain([]column{{"one", results{{name: "never heard of", outcome: outcomeFailed}}}})
	if err == nil || !strings.Contains(err.Error(), `"never heard of"`) {
		t.Errorf("a test that fails without a reason: %v", err)
	}
}

func TestReasons(t *testing.T) {
	if _, err := parseReasons(reasonsText); err != nil {
		t.Error(err)
	}
	r, err := parseReasons("# words\n^DNS .* a = b = c\n")
	if err != nil {
		t.Fatal(err)
	}
	if got := r.of("DNS is a"); got != "b = c" {
		t.Errorf("reason %q", got)
	}
	for _, wrong := range []string{"no reason", "( = x"} {
		if _, err := parseReasons(wrong); err == nil {
			t.Errorf("%q was read", wrong)
		}
	}
}

// TestSecondRun: what passes only when run again is told apart.
func TestSecondRun(t *testing.T) {
	dir := t.TempDir()
	write := func(path, content string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(dir, reportName), report)
	first, err := readRun(dir)
	if err != nil || first[0].outcome != outcomeFailed {
		t.Fatalf("first run: %+v, %v", first, err)
	}
	if got, want := first.notPassedPattern(), "DNS should resolve|Proxy should proxy"; got != want {
		t.Errorf("to run again: %q, want %q", got, want)
	}
	again := strings.Replace(report, `<failure message="timed out&#xA;after 1s"></failure>`, "", 1)
	write(filepath.Join(dir, againName, reportName), again)
	both, err := readRun(dir)
	if err != nil || both[0].outcome != outcomeAgain || both[2].outcome != outcomePassed {
		t.Errorf("second run: %+v, %v", both, err)
	}
}

func TestShorten(t *testing.T) {
	for name, want := range map[string]string{
		"[sig-network] DNS should resolve [Slow] [sig-network, Slow]":          "DNS should resolve",
		"[sig-network] DNS should resolve [Provider:GCE] [sig-network]":        "DNS should resolve [Provider:GCE]",
		"[sig-network] Networking [Feature:X] should work: udp [sig-network]":  "Networking [Feature:X] should work: udp",
		"[sig-network] Services should serve [LinuxOnly] [Conformance] [a, b]": "Services should serve",
	} {
		if got := shorten(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
