package socket

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// namespace is a network namespace.
type namespace struct {
	name string // such as "net:[4026531840]"
	path string // of a file that stands for it
}

// namespaces returns those that can be seen from here, some several times: those that are
// mounted somewhere and those that processes are in. A container sees no process of
// another, but what the container runtime has mounted for each pod; services of a machine
// may have a namespace that is mounted nowhere.
func namespaces() ([]namespace, error) {
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
			list = append(list, namespace{name, path})
		}
	}
	return list, nil
}

// mounted returns the namespaces that are mounted; see proc_pid_mountinfo(5).
func mounted() ([]namespace, error) {
	mounts, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer mounts.Close()
	var list []namespace
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 4 && strings.HasPrefix(fields[3], "net:[") {
			list = append(list, namespace{fields[3], fields[4]})
		}
	}
	return list, lines.Err()
}

// inEach calls fn once in each network namespace, on one thread. An error keeps fn from no
// other namespace.
func inEach(fn func() error) error {
	list, err := namespaces()
	if err != nil {
		return err
	}
	done := make(chan error)
	go func() { done <- visit(list, fn) }()
	return <-done
}

// visit does so on the calling goroutine's thread, which ends with the goroutine when it
// cannot go back to its own namespace. That one is the first: the thread may be the one whose
// namespace is the process's in /proc, which then shows where the visit is.
func visit(list []namespace, fn func() error) error {
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("open the network namespace: %w", err)
	}
	defer own.Close()
	name, err := nameOf(own)
	if err != nil {
		return fmt.Errorf("%s: %w", own.Name(), err)
	}
	var errs []error
	note := func(path string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("network namespace %s: %w", path, err))
		}
	}
	note(own.Name(), fn())
	visited := map[string]bool{name: true}
	for _, n := range list {
		if visited[n.name] {
			continue
		}
		handle, err := os.Open(n.path)
		if err != nil {
			continue // gone, like the process that was in it
		}
		// The path may be that of another one by now: a process goes from one to the next, or
		// has ended and its pid is another's.
		name, err := nameOf(handle)
		if err != nil || visited[name] {
			handle.Close()
			continue // what it was mounted over is a plain file
		}
		visited[name] = true
		if err := errors.Join(enter(handle), handle.Close()); err != nil {
			note(n.path, err)
			continue
		}
		note(n.path, fn())
	}
	if err := enter(own); err != nil {
		return errors.Join(append(errs, fmt.Errorf("go back to the network namespace: %w", err))...)
	}
	runtime.UnlockOSThread()
	return errors.Join(errs...)
}

// nameOf returns the name of the namespace that an open file stands for, and an error when
// it stands for none.
func nameOf(file *os.File) (string, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &fs); err != nil {
		return "", err
	}
	if fs.Type != unix.NSFS_MAGIC {
		return "", errors.New("not a namespace")
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return "", err
	}
	return fmt.Sprintf("net:[%d]", stat.Ino), nil
}

// enter puts the calling thread into a network namespace.
func enter(namespace *os.File) error {
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter: %w", err)
	}
	return nil
}
