package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/tests/wait"
)

// module has a package with a test that fails, one that passes, one that leaves a process, and a package without
// tests.
var module = map[string]string{
	"go.mod":           "module example.org/module\n\ngo 1.26\n",
	"untested/main.go": "package untested\n",
	"left/left_test.go": `package left

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

func TestLeaves(t *testing.T) {
	cmd := exec.Command("sleep", "infinity")
	cmd.Stdout = os.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile("pids", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(f, cmd.Process.Pid)
}
`,
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
	t.Cleanup(func() { endLeft(t) })
	for i := range binaries {
		b := &binaries[i]
		if b.leak = wait.Limit; b.pkg == "left" {
			b.leak = time.Millisecond
		}
	}
	o := options{count: 2, output: t.TempDir(), timeout: wait.Limit}
	all := newTally()
	var printed bytes.Buffer
	if err := series(t.Context(), &printed, o, binaries, 0, all); err != nil {
		t.Fatal(err)
	}
	if want := "\nload 0, 4 of 4 runs, failed:\n    2  left " + leaked + "\n    2  some/package TestFails\n\n"; !strings.HasSuffix(printed.String(), want) {
		t.Errorf("the tally is not %q:\n%s", want, printed.String())
	}
	if all.failed != 4 {
		t.Errorf("%d runs failed", all.failed)
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

// endLeft ends the processes that the module's tests have left.
func endLeft(t *testing.T) {
	pids, err := os.ReadFile("left/pids")
	if err != nil {
		t.Error(err)
	}
	for _, text := range strings.Fields(string(pids)) {
		pid, err := strconv.Atoi(text)
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// TestInterrupted: a series that is ended early still says what has failed until then.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	path := filepath.Join(t.TempDir(), "fails")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho '--- FAIL: TestX (0s)'\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	read, write := io.Pipe()
	o := options{count: math.MaxInt, output: t.TempDir(), timeout: wait.Limit}
	ended := make(chan error, 1)
	go func() {
		ended <- series(ctx, write, o, []binary{{pkg: "a", path: path}}, 0, newTally())
		write.Close()
	}()
	late := time.AfterFunc(wait.Limit, func() { write.Close() })
	defer late.Stop()
	var told strings.Builder
	for lines := bufio.NewScanner(read); lines.Scan(); {
		if strings.Contains(lines.Text(), "FAIL a") {
			cancel()
		}
		fmt.Fprintln(&told, lines.Text())
	}
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the error is %v", err)
		}
	default:
		t.Fatal("the series goes on")
	}
	if tally := regexp.MustCompile(`(?m)^load 0, (\d+) of \d+ runs, failed:\n +(\d+)  a TestX$`).FindStringSubmatch(told.String()); tally == nil || tally[1] != tally[2] {
		t.Errorf("the output ends without a tally:\n%s", told.String())
	}
}
