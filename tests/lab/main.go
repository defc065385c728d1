// Package lab makes the surroundings of tests that need a node: network
// namespaces, cgroups, pins, servers and an agent.
//
// A test binary that calls [Main] runs its tests in a child process, in a cgroup
// and with mounts of its own. The parent does nothing but wait, and takes down
// whatever is left of that cgroup, its pins and its files when the child has ended:
// by itself, by an interrupt, by the test time-out or by a crash.
package lab

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/cgroup"
	"github.com/beeline-lb/beeline/tests/interrupt"
	"github.com/beeline-lb/beeline/tests/mounts"
)

// The child finds its place in the environment.
const (
	cgroupEnv = "BEELINE_LAB_CGROUP"
	bpffsEnv  = "BEELINE_LAB_BPFFS"
)

// parallel is how many tests run side by side for each processor, unless -parallel says
// otherwise: most of them wait most of the time.
const parallel = 4

// The main thread never runs a test: a thread that has joined a namespace must
// be able to end, and the main one cannot. It also has to be the one that starts
// the child, which is killed when that thread ends.
func init() { runtime.LockOSThread() }

// Main runs the tests of a package and returns the exit code of the process.
func Main(m *testing.M) int {
	if slices.Contains(os.Args, idle) {
		for {
			_ = unix.Pause() // whatever the signal was
		}
	}
	if len(os.Args) > 3 && os.Args[1] == watched {
		fmt.Fprintln(os.Stderr, "lab:", runWatched(WatchedWrites(os.Args[2]), os.Args[3], os.Args[4:]))
		return 1
	}
	if os.Getenv(cgroupEnv) != "" || os.Geteuid() != 0 {
		if err := flag.Set("test.parallel", strconv.Itoa(parallel*runtime.GOMAXPROCS(0))); err != nil {
			fmt.Fprintln(os.Stderr, "lab:", err)
			return 1
		}
		return m.Run()
	}
	if err := mounts.Private(); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 1
	}
	p, err := newPlace()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 1
	}
	code, err := p.run()
	if err = errors.Join(err, p.remove()); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		return max(code, 1)
	}
	return code
}

// place are the resources of one run of a test binary.
type place struct {
	cgroup string
	bpffs  string
	files  string
}

func newPlace() (*place, error) {
	root, err := datapath.FindCgroup2()
	if err != nil {
		return nil, err
	}
	p := &place{}
	if p.cgroup, err = os.MkdirTemp(root, "beeline-test-"); err != nil {
		return nil, err
	}
	name := filepath.Base(p.cgroup)
	p.bpffs = filepath.Join(datapath.DefaultBPFFS, name)
	if err := os.Mkdir(p.bpffs, 0o700); err != nil {
		return nil, errors.Join(err, p.remove())
	}
	p.files = filepath.Join(cmp.Or(os.Getenv("GOTMPDIR"), os.TempDir()), name) // as testing has its folders
	if err := os.Mkdir(p.files, 0o700); err != nil {
		return nil, errors.Join(err, p.remove())
	}
	return p, nil
}

// run runs the tests in the place and returns the child's exit code.
func (p *place) run() (int, error) {
	dir, err := os.Open(p.cgroup)
	if err != nil {
		return 1, err
	}
	defer dir.Close()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, append(interrupt.Signals(), unix.SIGQUIT)...)
	defer signal.Stop(signals)

	child := exec.Command("/proc/self/exe", os.Args[1:]...)
	child.Env = append(os.Environ(), cgroupEnv+"="+p.cgroup, bpffsEnv+"="+p.bpffs, "TMPDIR="+p.files, "GOTMPDIR="+p.files)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true,
		CgroupFD:    int(dir.Fd()),
		Pdeathsig:   unix.SIGKILL,
	}
	if err := child.Start(); err != nil {
		return 1, err
	}
	done := make(chan error, 1)
	go func() { done <- child.Wait() }()
	for {
		select {
		case s := <-signals:
			if err := child.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return 1, err
			}
		case err := <-done:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				return 1, err
			}
			if code := child.ProcessState.ExitCode(); code >= 0 {
				return code, nil
			}
			return 1, fmt.Errorf("the tests ended by %s", child.ProcessState)
		}
	}
}

// remove takes down all that is there, the processes first.
func (p *place) remove() error {
	errs := []error{cgroup.Kill(p.cgroup), os.RemoveAll(p.bpffs), cgroup.Remove(p.cgroup)}
	if p.files != "" {
		errs = append(errs, os.RemoveAll(p.files))
	}
	return errors.Join(errs...)
}
