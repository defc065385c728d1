package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// binary is the compiled test of a package.
type binary struct {
	pkg  string // relative to the module
	dir  string // of its source
	path string
	leak time.Duration // how long what a run has started may outlive it
}

// build compiles the tests of the packages that have any.
func build(ctx context.Context, scratch string, patterns []string) ([]binary, error) {
	list := exec.CommandContext(ctx, "go", append([]string{"list",
		"-json=ImportPath,Dir,Module,TestGoFiles,XTestGoFiles"}, patterns...)...)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var all []binary
	for decoder := json.NewDecoder(bytes.NewReader(out)); decoder.More(); {
		var p struct {
			ImportPath, Dir           string
			Module                    struct{ Path string }
			TestGoFiles, XTestGoFiles []string
		}
		if err := decoder.Decode(&p); err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			continue
		}
		b := binary{
			pkg:  strings.TrimPrefix(p.ImportPath, p.Module.Path+"/"),
			dir:  p.Dir,
			path: filepath.Join(scratch, fmt.Sprintf("%d.test", len(all))),
			leak: time.Minute,
		}
		compile := exec.CommandContext(ctx, "go", "test", "-c", "-ldflags=-s", "-o", b.path, p.ImportPath)
		compile.Stderr = os.Stderr
		if err := compile.Run(); err != nil {
			return nil, fmt.Errorf("build the tests of %s: %w", b.pkg, err)
		}
		all = append(all, b)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no package of %v has tests", patterns)
	}
	return all, nil
}

// result is one run of a package.
type result struct {
	failed []string // tests, the innermost ones
	broken bool     // the binary failed, with or without a failed test
	output []byte
	took   time.Duration
	cpu    time.Duration // of the binary and what it has waited for
}

func (r *result) verdict() string {
	if r.broken {
		return "FAIL"
	}
	return "ok"
}

// leaked stands for the failed test of a run that ended well but for a process that has its output
// open still, as with go test.
const leaked = "(no test: a leftover process holds its output)"

// run runs the tests once, in random order.
func (b *binary) run(ctx context.Context, o options) (*result, error) {
	cmd := exec.CommandContext(ctx, b.path, "-test.v", "-test.shuffle=on",
		"-test.timeout="+o.timeout.String(), "-test.run="+o.run)
	cmd.Dir = b.dir
	// A test binary tidies up when it is told to end.
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = b.leak
	start := time.Now()
	out, err := cmd.CombinedOutput()
	r := &result{output: out, took: time.Since(start), broken: err != nil}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return nil, fmt.Errorf("run the tests of %s: %w", b.pkg, err)
	}
	r.failed = failures(out)
	if errors.Is(err, exec.ErrWaitDelay) {
		r.failed = append(r.failed, leaked)
	}
	r.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	return r, nil
}

var failLine = regexp.MustCompile(`^\s*--- FAIL: (\S+) \(`)

// failures returns the failed tests in the output of a verbose run, without those that
// failed because of one inside of them.
func failures(output []byte) []string {
	var all []string
	for lines := bufio.NewScanner(bytes.NewReader(output)); lines.Scan(); {
		if m := failLine.FindStringSubmatch(lines.Text()); m != nil {
			all = append(all, m[1])
		}
	}
	var innermost []string
	for _, name := range all {
		outer := false
		for _, other := range all {
			outer = outer || strings.HasPrefix(other, name+"/")
		}
		if !outer {
			innermost = append(innermost, name)
		}
	}
	return innermost
}
