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
}

// Build returns the folder of the programs, of which the name changes with their content.
// The error is [ErrNoCheckout] where the variable is not set.
func (c Checkout) Build(ctx context.Context) (string, error) {
	checkout, err := c.path()
	if err != nil {
		return "", err
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	cache, unlock, err := lockCache(root, c.Name)
	if err != nil {
		return "", err
	}
	defer unlock()

	// Go knows better than the checkout's commit whether anything has changed.
	building := filepath.Join(cache, c.Name+".built")
	if err := errors.Join(os.RemoveAll(building), c.build(ctx, checkout, building)); err != nil {
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
	checkout, err := c.path()
	if err != nil {
		return "", err
	}
	describe := exec.CommandContext(ctx, "git", "-C", checkout, "-c", "safe.directory=*", "describe", "--tags", "--always", "--dirty")
	out, err := describe.Output()
	if err != nil {
		return "", fmt.Errorf("version of %s=%s: %w", c.Variable, checkout, err)
	}
	return c.Project + " " + strings.TrimSpace(string(out)), nil
}

func (c Checkout) path() (string, error) {
	path := os.Getenv(c.Variable)
	if path == "" {
		return "", fmt.Errorf("%w: the Go proxy does not have %s; %s is to name a checkout of %s", ErrNoCheckout, c.Name, c.Variable, c.Project)
	}
	return filepath.Abs(path)
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
