package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// programBinaries are compiled once for all machines of an architecture.
type programBinaries struct {
	init, agent string
}

// buildPrograms compiles init and the agent into dir.
func buildPrograms(ctx context.Context, root, dir string, arch *architecture) (*programBinaries, error) {
	p := &programBinaries{init: filepath.Join(dir, "init"), agent: filepath.Join(dir, "beeline-agent")}
	for path, pkg := range map[string]string{p.init: "./tools/kernels/init", p.agent: "./cmd/beeline-agent"} {
		if _, err := goTool(ctx, root, arch, "build", "-ldflags=-s", "-o", path, pkg); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// binaries are what one machine runs.
type binaries struct {
	*programBinaries
	dir   string // of its files
	tests []testBinary
}

// testBinary is a compiled test package.
type testBinary struct {
	pkg  string // as in packages
	dir  string // of its source
	path string
}

func (b *binaries) packages() []string {
	var names []string
	for _, t := range b.tests {
		names = append(names, t.pkg)
	}
	return names
}

// build compiles the test packages into dir. Packages without tests are named and left out.
func build(ctx context.Context, root, dir string, arch *architecture, programs *programBinaries, packages []string) (*binaries, error) {
	b := &binaries{programBinaries: programs, dir: dir}
	for i, pkg := range packages {
		source := filepath.Join(root, pkg)
		has, err := hasTests(ctx, root, arch, source, pkg)
		if err != nil {
			return nil, err
		}
		if !has {
			fmt.Printf("%s: skipped, the package has no tests\n", pkg)
			continue
		}
		path := filepath.Join(dir, fmt.Sprintf("%d.test", i))
		if _, err := goTool(ctx, root, arch, "test", "-c", "-ldflags=-s", "-o", path, pkg); err != nil {
			return nil, err
		}
		b.tests = append(b.tests, testBinary{pkg: pkg, dir: source, path: path})
	}
	if len(b.tests) == 0 {
		return nil, fmt.Errorf("none of %v has tests", packages)
	}
	return b, nil
}

func hasTests(ctx context.Context, root string, arch *architecture, dir, pkg string) (bool, error) {
	if _, err := os.Stat(dir); os.IsNotExist(err) {
		return false, nil
	}
	out, err := goTool(ctx, root, arch, "list", "-json=TestGoFiles,XTestGoFiles", pkg)
	if err != nil {
		return false, err
	}
	var listed struct{ TestGoFiles, XTestGoFiles []string }
	if err := json.Unmarshal(out, &listed); err != nil {
		return false, fmt.Errorf("go list %s: %w", pkg, err)
	}
	return len(listed.TestGoFiles)+len(listed.XTestGoFiles) > 0, nil
}

// goTool runs the go command for the test kernels, which have no libraries.
func goTool(ctx context.Context, root string, arch *architecture, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch.name)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s %s: %w", args[0], args[len(args)-1], err)
	}
	return out, nil
}
