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
)

// ErrNoCheckout says that the environment names no checkout to build from.
var ErrNoCheckout = errors.New("no checkout")

// Checkout is a set of programs that the Go proxy does not have in a usable version. They
// are built from a checkout of their project, with its go.mod. What that requires and the
// proxy does not have either is named there by a replace directive.
type Checkout struct {
	// The set's Module is relative to the checkout's root.
	Set
	// Project is the repository's name, and Variable the environment variable with the
	// path of the checkout.
	Project, Variable string
	// Prepare makes what C code of the programs is linked with, where that is not the
	// system's, and returns what to add to Go's environment.
	Prepare func(ctx context.Context, checkout string) (env []string, err error)
}

// Build returns the folder of the programs, of which the name changes with their content.
// The error is [ErrNoCheckout] where the variable is not set.
func (c Checkout) Build(ctx context.Context) (string, error) {
	checkout, version, err := c.find(ctx)
	if err != nil {
		return "", err
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	var env []string
	if c.Prepare != nil {
		if env, err = c.Prepare(ctx, checkout); err != nil {
			return "", fmt.Errorf("%s=%s: %w", c.Variable, checkout, err)
		}
	}
	if strings.HasSuffix(version, dirty) {
		return c.buildChanged(ctx, root, checkout, env)
	}
	// Maps are printed in the order of their keys.
	key := sha256.Sum256(fmt.Appendf(nil, "%s %+v %s %s", runtime.Version(), c.Set, env, version))
	return cached(root, c.Name, fmt.Sprintf("%x", key[:6]), func(dir string) error { return c.build(ctx, checkout, dir, env...) })
}

// dirty ends the description of a checkout with changes that are not committed.
const dirty = "-dirty"

// buildChanged builds what may have changed without a commit; Go knows what has.
func (c Checkout) buildChanged(ctx context.Context, root, checkout string, env []string) (string, error) {
	cache, unlock, err := lockCache(root, c.Name)
	if err != nil {
		return "", err
	}
	defer unlock()

	building := filepath.Join(cache, c.Name+".built")
	if err := errors.Join(os.RemoveAll(building), c.build(ctx, checkout, building, env...)); err != nil {
		return "", err
	}
	version, err := c.hash(building)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, c.Name+"-"+version)
	if _, err := os.Stat(dir); err == nil {
		return dir, os.RemoveAll(building)
	}
	return dir, os.Rename(building, dir)
}

// Version returns the project and its version as git describes the checkout.
func (c Checkout) Version(ctx context.Context) (string, error) {
	_, version, err := c.find(ctx)
	if err != nil {
		return "", err
	}
	return c.Project + " " + version, nil
}

// find returns the path of the checkout, and how git describes it.
func (c Checkout) find(ctx context.Context) (path, version string, err error) {
	if path, err = c.path(); err != nil {
		return "", "", err
	}
	if version, err = described(ctx, path); err != nil {
		return "", "", fmt.Errorf("version of %s=%s: %w", c.Variable, path, err)
	}
	return path, version, nil
}

// described returns how git describes the commit of a checkout.
func described(ctx context.Context, checkout string) (string, error) {
	describe := exec.CommandContext(ctx, "git", "-C", checkout, "-c", "safe.directory=*", "describe", "--tags", "--always", "--dirty="+dirty)
	out, err := describe.Output()
	return strings.TrimSpace(string(out)), err
}

func (c Checkout) path() (string, error) {
	path := os.Getenv(c.Variable)
	if path == "" {
		return "", fmt.Errorf("%w: the Go proxy does not have %s; %s is to name a checkout of %s", ErrNoCheckout, c.Name, c.Variable, c.Project)
	}
	return filepath.Abs(path)
}

// File returns the path of a file or folder of the checkout.
func (c Checkout) File(name string) (string, error) {
	checkout, err := c.path()
	return filepath.Join(checkout, name), err
}

// hash returns one of the content of all programs.
func (c Checkout) hash(dir string) (string, error) {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(c.Packages)) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %x\n", name, sha256.Sum256(b))
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:6]), nil
}
