package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// module has a package with a test that fails, one that passes, and a package without tests.
var module = map[string]string{
	"go.mod":           "module example.org/module\n\ngo 1.26\n",
	"untested/main.go": "package untested\n",
	"some/package/some_test.go": `package some

import "testing"

func TestPasses(t *testing.T) {}

func TestFails(t *testing.T) { t.Error("as it is to") }
`,
}

// TestSeries runs the tests of a module twice: its tally has the test that fails, and the
// output of each run is kept.
func TestSeries(t *testing.T) {
	t.Setenv("CGO_ENABLED", "0") // as the Makefile has it: the standard library is built
	t.Chdir(t.TempDir())
	for name, content := range module {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	binaries, err := build(t.Context(), t.TempDir(), []string{"./..."})
	if err != nil {
		t.Fatal(err)
	}
	o := options{count: 2, output: t.TempDir(), timeout: time.Minute}
	failed := newTally()
	if err := series(t.Context(), o, binaries, 0, failed); err != nil {
		t.Fatal(err)
	}
	var told bytes.Buffer
	failed.print(&told, 0, o.count)
	if want := "\nload 0, 2 runs of each package, failed:\n    2  some/package TestFails\n\n"; told.String() != want {
		t.Errorf("the tally is %q, want %q", told.String(), want)
	}
	if err := failed.err(); err == nil || err.Error() != "2 runs failed" {
		t.Errorf("the error is %v", err)
	}
	for _, name := range []string{"some-package-load0-run1.txt", "some-package-load0-run2.txt"} {
		kept, err := os.ReadFile(filepath.Join(o.output, name))
		if err != nil {
			t.Error(err)
		} else if !strings.Contains(string(kept), "as it is to") || !strings.Contains(string(kept), "--- PASS: TestPasses") {
			t.Errorf("%s:\n%s", name, kept)
		}
	}
}
