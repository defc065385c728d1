package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// ForeignBelow names the programs in cgroups below the one that Beeline's are attached to, at the same hooks,
// those of another Beeline as one.
// The kernel runs the programs of a socket's own cgroup first and then those of each one above
// (compute_effective_progs in kernel/bpf/cgroup.c), so they see what a process asks for before Beeline's do.
//
// Most bounds how many cgroups are looked at, of which each takes about 0.1 ms; the error names it where there
// are more, and the deepest are left out.
func ForeignBelow(cgroup string, most int) ([]Problem, error) {
	w := walk{root: cgroup, found: make(map[string]*stranger)}
	errs := []error{w.enter(cgroup)}
	for looked := 0; len(w.next) > 0; looked++ {
		if looked == most {
			errs = append(errs, fmt.Errorf("programs of others were looked for in %d cgroups below %s, and there are more", most, cgroup))
			break
		}
		path := w.next[0]
		w.next = w.next[1:]
		// A cgroup may go meanwhile.
		if err := errors.Join(w.look(path), w.enter(path)); !errors.Is(err, os.ErrNotExist) && !gone(err) {
			errs = append(errs, err)
		}
	}
	return w.problems(), errors.Join(errs...)
}

// walk goes through cgroups, level by level.
type walk struct {
	root  string
	next  []string             // cgroups to look at
	found map[string]*stranger // by the program's name: each cgroup may have an instance of its own
}

// nestedBeeline stands for the names of Beeline's programs, of which no cgroup below has one but by another agent.
const nestedBeeline = ""

// stranger is a program of others.
type stranger struct {
	hooks   []string
	cgroups []string
}

// enter has the cgroups in one looked at.
func (w *walk) enter(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("list cgroups: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			w.next = append(w.next, filepath.Join(path, e.Name()))
		}
	}
	return nil
}

// look looks at the hooks of a cgroup. A program that is told of a socket changes nothing for ours.
func (w *walk) look(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open cgroup: %w", err)
	}
	defer folder.Close()
	for _, h := range hooks {
		if h.followsTCP() || h.at == ebpf.AttachCgroupInetSockRelease {
			continue
		}
		attached, err := link.QueryPrograms(link.QueryOptions{Target: int(folder.Fd()), Attach: h.at})
		if err != nil {
			return fmt.Errorf("list the programs at %s of cgroup %s: %w", h.at, path, err)
		}
		for _, p := range attached.Programs {
			w.add(programName(uint32(p.ID)), h.at.String(), path)
		}
	}
	return nil
}

func (w *walk) add(program, hook, cgroup string) {
	if isOurs(program) {
		program = nestedBeeline
	}
	f := w.found[program]
	if f == nil {
		f = new(stranger)
		w.found[program] = f
	}
	if !slices.Contains(f.hooks, hook) {
		f.hooks = append(f.hooks, hook)
	}
	if len(f.cgroups) == 0 || f.cgroups[len(f.cgroups)-1] != cgroup {
		f.cgroups = append(f.cgroups, cgroup)
	}
}

// isOurs reports whether a program of a cgroup has the name of one of Beeline's.
func isOurs(program string) bool {
	return slices.ContainsFunc(hooks, func(h hook) bool { return h.program == program })
}

// problems names each program once, with one of its cgroups.
func (w *walk) problems() (list []Problem) {
	for name, f := range w.found {
		where := "cgroup " + f.cgroups[0]
		if others := len(f.cgroups) - 1; others > 0 {
			where += fmt.Sprintf(" and %d more below %s", others, w.root)
		}
		if name == nestedBeeline {
			list = append(list, Problem{"nested", "another Beeline serves " + where + ", and its programs run before this one's"})
			continue
		}
		list = append(list, Problem{"foreign-below", fmt.Sprintf("program %s runs before Beeline's at %s of %s", name, strings.Join(f.hooks, ", "), where)})
	}
	return list
}
