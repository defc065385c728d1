package netns

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// place is where a network namespace can be opened.
type place struct {
	name string // such as "net:[4026531840]"
	path string // of a file that stands for it
}

// namespaces returns those that can be seen from here, some several times: those that are
// mounted somewhere and those that processes are in. A container sees no process of
// another, but what the container runtime has mounted for each pod; services of a machine
// may have a namespace that is mounted nowhere.
func namespaces() ([]place, error) {
	list, err := mounted()
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	paths, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if name, err := os.Readlink(path); err == nil { // else it has ended, or may not be looked at
			list = append(list, place{name, path})
		}
	}
	return list, nil
}

// mounted returns the namespaces that are mounted; see proc_pid_mountinfo(5).
func mounted() ([]place, error) {
	mounts, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer mounts.Close()
	var list []place
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 4 && strings.HasPrefix(fields[3], "net:[") {
			list = append(list, place{fields[3], fields[4]})
		}
	}
	return list, lines.Err()
}

// Each calls fn once in each network namespace that can be seen from here, the calling thread's
// own first. An error keeps fn from no other namespace.
func Each(fn func() error) error {
	list, err := namespaces()
	if err != nil {
		return err
	}
	return visitEach(list, fn)
}

// visitEach does so in the namespaces of a list.
func visitEach(list []place, fn func() error) error {
	own, err := Current()
	if err != nil {
		return err
	}
	visited := make(map[string]bool)
	var errs []error
	run := func(n *Namespace) {
		if !visited[n.Name()] {
			visited[n.Name()] = true
			if err := n.Run(fn); err != nil {
				errs = append(errs, fmt.Errorf("network namespace %s: %w", n.Name(), err))
			}
		}
		n.Close()
	}
	run(own)
	for _, p := range list {
		if visited[p.name] {
			continue
		}
		// The path may be that of another one by now: a process goes from one to the next, or
		// has ended and its pid is another's.
		if n, err := Open(p.path); err == nil { // else it is gone, like the process in it
			run(n)
		}
	}
	return errors.Join(errs...)
}
