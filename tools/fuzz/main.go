// Command fuzz runs the fuzz targets of the module one after another and prints a line for
// each.
//
//	go run ./tools/fuzz -time 30s -target 'pkg/tunnel|FuzzState'
//
// Targets are found in the files of the tests. A failing input is kept by go test in the
// package's testdata/fuzz, where every later run of the tests tries it again.
package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/beeline-lb/beeline/tests/interrupt"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), interrupt.Signals()...)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// run fuzzes what the arguments say.
func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("fuzz", flag.ContinueOnError)
	each := flags.Duration("time", 30*time.Second, "how long each target is run")
	only := flags.String("target", "", "run targets only whose folder and name, as in pkg/tunnel.FuzzMessage, match this regexp")
	workers := flags.Int("parallel", 1, "processes at a time")
	if err := flags.Parse(args); err != nil {
		return err
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-target: %w", err)
	}
	targets, err := find(".")
	if err != nil {
		return err
	}
	targets = slices.DeleteFunc(targets, func(t target) bool { return !match.MatchString(t.String()) })
	if len(targets) == 0 {
		return fmt.Errorf("no target matches %q", *only)
	}
	failed := 0
	for _, t := range targets {
		result, err := t.fuzz(ctx, *each, *workers)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		fmt.Fprintf(out, "%-44s %s\n", t, result)
		if err != nil {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d targets failed", failed, len(targets))
	}
	return nil
}

// target is a fuzz target.
type target struct{ dir, name string }

func (t target) String() string { return t.dir + "." + t.name }

// find returns the targets below a folder, by name.
func find(root string) ([]target, error) {
	var targets []target
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		names, err := targetsIn(path)
		for _, name := range names {
			targets = append(targets, target{filepath.Dir(path), name})
		}
		return err
	})
	return targets, err
}

// targetsIn returns the names of the targets of a file.
func targetsIn(path string) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && isTarget(f) {
			names = append(names, f.Name.Name)
		}
	}
	return names, nil
}

// isTarget reports whether a function is func FuzzXxx(*testing.F).
func isTarget(f *ast.FuncDecl) bool {
	if !strings.HasPrefix(f.Name.Name, "Fuzz") || f.Type.Params.NumFields() != 1 {
		return false
	}
	pointer, ok := f.Type.Params.List[0].Type.(*ast.StarExpr)
	if !ok {
		return false
	}
	kind, ok := pointer.X.(*ast.SelectorExpr)
	return ok && kind.Sel.Name == "F"
}

// progress is what go test says while it fuzzes.
var progress = regexp.MustCompile(`execs: (\d+) .*new interesting: (\d+)`)

// fuzz runs a target and returns what came of it in a line, and all of it after that when
// it failed.
func (t target) fuzz(ctx context.Context, each time.Duration, workers int) (string, error) {
	// An input that is interesting is made smaller for a second, not for a minute: there
	// are more of them than time.
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-fuzz", "^"+t.name+"$", "-fuzztime", each.String(),
		"-fuzzminimizetime", "1s", "-parallel", fmt.Sprint(workers), "./"+t.dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start).Round(time.Second)
	if err != nil {
		return fmt.Sprintf("FAIL after %v\n%s", took, tail(output.String())), err
	}
	inputs, found := "0", "0"
	for lines := bufio.NewScanner(&output); lines.Scan(); {
		if m := progress.FindStringSubmatch(lines.Text()); m != nil {
			inputs, found = m[1], m[2]
		}
	}
	return fmt.Sprintf("ok   %s inputs, %s of them new paths, %v", inputs, found, took), nil
}

// tail leaves out the lines of progress, and of a long output the middle.
func tail(output string) string {
	lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(output), "\n"), progress.MatchString)
	const most = 60
	if len(lines) > most {
		lines = slices.Concat(lines[:most/2], []string{"    ..."}, lines[len(lines)-most/2:])
	}
	return strings.Join(lines, "\n")
}
