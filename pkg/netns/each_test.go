package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/tests/wait"
)

// The main thread runs no test: one that has joined a namespace must be able to end.
func init() { runtime.LockOSThread() }

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to enter network namespaces")
	}
}

// inNewNamespace calls fn on a thread in a network namespace of its own.
func inNewNamespace(t *testing.T, fn func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// namespaceName returns the name of the calling thread's network namespace.
func namespaceName() (string, error) { return os.Readlink("/proc/thread-self/ns/net") }

// TestEach visits each network namespace once: that of processes, and one that is mounted
// and has none. The thread goes back to its own.
func TestEach(t *testing.T) {
	needRoot(t)
	mount := filepath.Join(t.TempDir(), "namespace")
	if err := os.WriteFile(mount, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var name string
	inNewNamespace(t, func() (err error) {
		if name, err = namespaceName(); err != nil {
			return err
		}
		return unix.Mount("/proc/thread-self/ns/net", mount, "", unix.MS_BIND, "")
	})
	defer func() {
		if err := unix.Unmount(mount, 0); err != nil {
			t.Error(err)
		}
	}()
	own, err := namespaceName()
	if err != nil {
		t.Fatal(err)
	}
	count := make(map[string]int)
	failed := errors.New("failed")
	err = Each(func() error {
		visited, err := namespaceName()
		count[visited]++
		if visited == own {
			return failed
		}
		return err
	})
	if !errors.Is(err, failed) {
		t.Errorf("the error is %v", err)
	}
	if count[name] != 1 || count[own] != 1 {
		t.Errorf("the mounted namespace was visited %d times, that of the test %d times", count[name], count[own])
	}
	// The thread that made the namespace is about to end.
	for deadline := time.Now().Add(wait.Limit); strays(t, own) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d threads are not in their own network namespace", strays(t, own))
		}
	}
}

// TestOwnNamespace: the process's own namespace is visited also when the thread that visits is
// the one whose namespace /proc shows as that of the process.
func TestOwnNamespace(t *testing.T) {
	needRoot(t)
	own, err := namespaceName()
	if err != nil {
		t.Fatal(err)
	}
	var other string
	var handle *os.File
	inNewNamespace(t, func() (err error) {
		if other, err = namespaceName(); err != nil {
			return err
		}
		handle, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	defer handle.Close()
	list := []place{
		{other, fmt.Sprintf("/proc/self/fd/%d", handle.Fd())},
		{own, "/proc/thread-self/ns/net"},
	}
	count := make(map[string]int)
	done := make(chan error)
	go func() {
		done <- visitEach(list, func() error {
			visited, err := namespaceName()
			count[visited]++
			return err
		})
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if count[own] != 1 || count[other] != 1 {
		t.Errorf("visited %v, want %s and %s once each", count, own, other)
	}
}

// TestProcessBetweenNamespaces: a process that has gone on to another namespace since it was
// listed keeps neither of them from being visited. Threads of container runtimes and of agents do.
func TestProcessBetweenNamespaces(t *testing.T) {
	needRoot(t)
	own, err := namespaceName()
	if err != nil {
		t.Fatal(err)
	}
	var other, path string
	count := make(map[string]int)
	inNewNamespace(t, func() (err error) {
		if other, err = namespaceName(); err != nil {
			return err
		}
		path = fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		list := []place{{own, path}, {own, "/proc/self/ns/net"}, {other, path}}
		done := make(chan error)
		go func() {
			done <- visitEach(list, func() error {
				visited, err := namespaceName()
				count[visited]++
				return err
			})
		}()
		return <-done
	})
	if count[own] != 1 || count[other] != 1 {
		t.Errorf("visited %v, want %s and %s once each", count, own, other)
	}
}

// TestUnmountedNamespaceIsPassedOver: a pod ends between the listing of namespaces and the
// visit, which leaves the plain file that the namespace was mounted over.
func TestUnmountedNamespaceIsPassedOver(t *testing.T) {
	needRoot(t)
	mount := filepath.Join(t.TempDir(), "namespace")
	if err := os.WriteFile(mount, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	inNewNamespace(t, func() error {
		return unix.Mount("/proc/thread-self/ns/net", mount, "", unix.MS_BIND, "")
	})
	list, err := mounted()
	if err != nil {
		t.Error(err)
	}
	if err := unix.Unmount(mount, 0); err != nil {
		t.Fatal(err)
	}
	list = slices.DeleteFunc(list, func(n place) bool { return n.path != mount })
	if len(list) != 1 {
		t.Fatalf("%d namespaces are mounted at %s", len(list), mount)
	}
	own, err := namespaceName()
	if err != nil {
		t.Fatal(err)
	}
	list = append(list, place{own, "/proc/self/ns/net"})
	visits := 0
	done := make(chan error)
	go func() {
		done <- visitEach(list, func() error { visits++; return nil })
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if visits != 1 {
		t.Errorf("%d namespaces were visited, want the one that is there", visits)
	}
}

// strays returns how many threads of the test are not in its own network namespace.
func strays(t *testing.T, own string) (n int) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if at, err := os.Readlink(task); err == nil && at != own {
			n++
		}
	}
	return n
}

// TestEachIsWork: what is done in network namespaces, on other threads, counts as work of who asked for it.
func TestEachIsWork(t *testing.T) {
	needRoot(t)
	own, err := namespaceName()
	if err != nil {
		t.Fatal(err)
	}
	const want = 100 * time.Millisecond
	took := pause.Work(func() {
		err = Each(func() error {
			name, err := namespaceName()
			for start := threadTime(t); name == own && threadTime(t)-start < want; {
			}
			return err
		})
	})
	if err != nil || took < want {
		t.Errorf("work of %v took %v of a CPU, %v", want, took, err)
	}
}

func threadTime(t *testing.T) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		t.Error(err)
	}
	return time.Duration(now.Nano())
}
