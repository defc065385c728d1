package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/beeline-lb/beeline/tests/cgroup"
)

// hierarchy is a mounted cgroup hierarchy: cgroup2, or one or more controllers of
// version 1.
type hierarchy struct {
	Mount   string
	Type    string // of the file system: cgroup or cgroup2
	Options string // of the file system, version 1 only: which controllers
}

// hierarchies returns what this machine has mounted.
func hierarchies() ([]hierarchy, error) {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []hierarchy
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		field := strings.Fields(lines.Text())
		if len(field) < 4 || field[2] != "cgroup" && field[2] != "cgroup2" {
			continue
		}
		h := hierarchy{Mount: field[1], Type: field[2]}
		if h.Type == "cgroup" {
			h.Options = controllers(field[3])
		}
		all = append(all, h)
	}
	if len(all) == 0 {
		return nil, errors.New("no cgroup hierarchy is mounted")
	}
	return all, lines.Err()
}

// controllers leaves of a mount's options those that choose the hierarchy.
func controllers(options string) string {
	ofMount := []string{"rw", "ro", "nosuid", "nodev", "noexec", "relatime", "noatime", "xattr", "release_agent"}
	var kept []string
	for _, o := range strings.Split(options, ",") {
		name, _, _ := strings.Cut(o, "=")
		if !slices.Contains(ofMount, name) {
			kept = append(kept, o)
		}
	}
	return strings.Join(kept, ",")
}

// groups are the cgroups of one name in all hierarchies.
type groups struct {
	hierarchies []hierarchy
	name        string // a path below each mount
}

// path returns the folder in a hierarchy.
func (g groups) path(h hierarchy) string { return filepath.Join(h.Mount, g.name) }

// unified returns the folder in cgroup2.
func (g groups) unified() string {
	for _, h := range g.hierarchies {
		if h.Type == "cgroup2" {
			return g.path(h)
		}
	}
	return ""
}

// make makes the cgroups. Those of cpuset get every processor, for a process can
// join none that has none.
func (g groups) make() error {
	for _, h := range g.hierarchies {
		dir := g.path(h)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("make a cgroup: %w", err)
		}
		if !slices.Contains(strings.Split(h.Options, ","), "cpuset") {
			continue
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			all, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, file), all, 0); err != nil {
				return fmt.Errorf("fill in %s: %w", file, err)
			}
		}
	}
	return nil
}

// join moves this process to the cgroups.
func (g groups) join() error {
	for _, h := range g.hierarchies {
		if err := os.WriteFile(filepath.Join(g.path(h), "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("join a cgroup: %w", err)
		}
	}
	return nil
}

// kill ends every process in the cgroup2 folder and below.
func (g groups) kill() error {
	return cgroup.Kill(g.unified())
}

// remove removes the cgroups and those below, once what was killed in them has
// ended.
func (g groups) remove() error {
	var errs []error
	for _, h := range g.hierarchies {
		errs = append(errs, cgroup.Remove(g.path(h)))
	}
	return errors.Join(errs...)
}
