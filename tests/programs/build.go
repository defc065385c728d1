// Package programs builds the programs of other projects that tests run, each set
// from a Go module of its own, so that their dependencies stay out of Beeline's.
//
// What is built is kept in the repository's .cache/bin.
package programs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// Set is what is built together, from one module.
type Set struct {
	// Name is that of the folder in the cache.
	Name string
	// Module is the folder of go.mod, relative to the repository's root.
	Module string
	// Packages are the packages to build, by the name of the binary.
	Packages map[string]string
	// Tests are packages whose tests are built to a binary, by its name.
	Tests map[string]string
	// LinkerFlags and Tags are those of go build.
	LinkerFlags string
	Tags        string
	// CGO is set when C code is part of the programs.
	CGO bool
}

// Build returns the folder of the programs, built when the cache holds none of
// these versions. Processes that ask at the same time build once.
func (s Set) Build(ctx context.Context) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	version, err := s.fingerprint(root)
	if err != nil {
		return "", err
	}
	return cached(root, s.Name, version, func(dir string) error { return s.build(ctx, root, dir) })
}

// cached returns the path at which the cache keeps a version of something, and has it made where
// there is none.
func cached(root, name, version string, build func(path string) error) (string, error) {
	cache, unlock, err := lockCache(root, name)
	if err != nil {
		return "", err
	}
	defer unlock()

	path := filepath.Join(cache, name+"-"+version)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, build(path)
}

// lockCache returns the cache's folder, in which nobody else builds what has that name.
func lockCache(root, name string) (cache string, unlock func(), err error) {
	cache = filepath.Join(root, ".cache", "bin")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", nil, err
	}
	unlock, err = Lock(filepath.Join(cache, name+".lock"))
	return cache, unlock, err
}

// build fills dir, which appears only when all programs are in it. The module is below
// root, env is added to Go's environment. The caller holds the lock.
func (s Set) build(ctx context.Context, root, dir string, env ...string) error {
	tmp := filepath.Join(filepath.Dir(dir), s.Name+".building")
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(s.Packages)) {
		if err := s.compile(ctx, root, filepath.Join(tmp, name), s.Packages[name], env, "build"); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Tests)) {
		if err := s.compile(ctx, root, filepath.Join(tmp, name), s.Tests[name], env, "test", "-c", "-vet=off"); err != nil {
			return err
		}
	}
	return os.Rename(tmp, dir)
}

func (s Set) compile(ctx context.Context, root, output, pkg string, env []string, verb ...string) error {
	args := append(verb, "-buildvcs=false", "-tags", s.Tags, "-ldflags", s.LinkerFlags, "-o", output, pkg)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(root, s.Module)
	cgo := "CGO_ENABLED=0"
	if s.CGO {
		cgo = "CGO_ENABLED=1"
	}
	cmd.Env = append(append(os.Environ(), cgo, "GOWORK=off"), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// Sources returns the folder with the files of a module that the set's one requires.
func (s Set) Sources(ctx context.Context, module string) (string, error) {
	dir, err := s.list(ctx, "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return "", fmt.Errorf("find the sources of %s: %w", module, err)
	}
	return dir, nil
}

// Version returns the name of the set and the version of the module that its first package is of.
func (s Set) Version(ctx context.Context) (string, error) {
	first := slices.Min(slices.Collect(maps.Values(s.Packages)))
	version, err := s.list(ctx, "-f", "{{with .Module}}{{with .Replace}}{{.Version}}{{else}}{{.Version}}{{end}}{{end}}", first)
	if err != nil {
		return "", fmt.Errorf("version of %s: %w", s.Name, err)
	}
	return s.Name + " " + version, nil
}

// list returns what go list prints in the module's folder.
func (s Set) list(ctx context.Context, args ...string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"list"}, args...)...)
	cmd.Dir = filepath.Join(root, s.Module)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// fingerprint changes with whatever changes the binaries.
func (s Set) fingerprint(root string) (string, error) {
	h := sha256.New()
	// Maps are printed in the order of their keys.
	fmt.Fprintf(h, "%s %+v\n", runtime.Version(), s)
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(root, s.Module, name))
		if err != nil {
			return "", err
		}
		h.Write(b)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:6]), nil
}

// Lock takes the lock file at path, waiting while another process has it. The
// kernel frees it when the process ends.
func Lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// Root walks up from the working directory to the repository's root.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "tests/programs/build.go")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("build programs for tests: not inside the repository")
		}
		dir = parent
	}
}
