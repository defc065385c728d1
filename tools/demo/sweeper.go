package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// roleSweeper is the role of the process that removes a stage, named by the
// argument after it, at the end of its standard input.
const roleSweeper = "sweep"

// sweepTimeout is how long processes and namespaces may take to vanish.
const sweepTimeout = time.Minute

// sweeper removes the stage when this process ends or says so. It is a process of
// its own, so that it does that also when this one is killed.
type sweeper struct {
	cmd   *exec.Cmd
	alive io.Closer // its end of the pipe closes with this process
}

func startSweeper(s *stage) (*sweeper, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe, "-bin", s.bin, roleSweeper, s.name)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	alive, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &sweeper{cmd, alive}, cmd.Start()
}

// finish has the stage removed and waits for that.
func (s *sweeper) finish() error {
	if err := errors.Join(s.alive.Close(), s.cmd.Wait()); err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	return nil
}

// sweepAfter waits for the end of in and removes the stage. Nothing but SIGKILL
// keeps it from that, also not a viewer who is gone.
func sweepAfter(in io.Reader, s *stage) error {
	signal.Ignore(unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	screen := newScreen(os.Stdout)
	fmt.Fprintf(screen.out, "\n%s\n\n", screen.paint(bold, "Clean up"))
	return sweep(screen, s)
}

// sweep removes all that exists of the stage and says what that was. One failure
// does not keep the rest from being removed.
func sweep(screen *screen, s *stage) error {
	cgroup, err := s.cgroup()
	if err != nil {
		return err
	}
	var errs []error
	remove := func(what string, count int, err error) {
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("remove %s: %w", what, err))
		case count > 0:
			fmt.Fprintf(screen.out, "   removed %3d  %s\n", count, what)
		}
	}
	count, err := killAll(cgroup)
	remove("processes", count, err)
	count, err = s.removePins()
	remove("pins of programs and maps in "+s.bpffs(), count, err)
	count, err = s.removeNamespaces()
	remove("network namespaces "+s.namespace("*"), count, err)
	count, err = removeFolder(cgroup, os.Remove)
	remove("cgroup "+cgroup, count, err)
	count, err = removeFolder(s.dir(), os.RemoveAll)
	remove("folder "+s.dir(), count, err)
	return errors.Join(errs...)
}

// killAll ends the processes of a cgroup, waits until they are gone and returns
// how many there were. A process that is ending is in cgroup.procs no more while it still has
// its files, and their locks; cgroup.events counts it.
func killAll(cgroup string) (int, error) {
	count := 0
	for deadline := time.Now().Add(sweepTimeout); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		events, err := os.ReadFile(filepath.Join(cgroup, "cgroup.events"))
		if errors.Is(err, os.ErrNotExist) || err == nil && strings.Contains(string(events), "populated 0\n") {
			return count, nil
		}
		if err != nil {
			return count, err
		}
		pids, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
		if err != nil {
			return count, err
		}
		count = max(count, strings.Count(string(pids), "\n"))
		if err := os.WriteFile(filepath.Join(cgroup, "cgroup.kill"), []byte("1"), 0); err != nil {
			return count, err
		}
	}
	return count, fmt.Errorf("cgroup %s: processes do not end within %v", cgroup, sweepTimeout)
}

// removePins has the agent take its datapath down, as on a node, and returns the
// number of pins.
func (s *stage) removePins() (int, error) {
	if _, err := os.Stat(s.bpffs()); errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	pins, err := filepath.Glob(filepath.Join(s.bpffs(), "beeline", "*", "*"))
	if err != nil {
		return 0, err
	}
	err = run(exec.Command(filepath.Join(s.bin, "beeline-agent"), "--cleanup", "--bpffs", s.bpffs()))
	return len(pins), errors.Join(err, os.RemoveAll(s.bpffs()))
}

func (s *stage) removeNamespaces() (int, error) {
	count := 0
	var errs []error
	for _, name := range slices.Backward(s.namespaces()) {
		if _, err := os.Stat(filepath.Join("/run/netns", name)); errors.Is(err, os.ErrNotExist) {
			continue
		}
		count++
		errs = append(errs, run(exec.Command("ip", "netns", "del", name)))
	}
	return count, errors.Join(errs...)
}

// removeFolder returns 0 when there is none.
func removeFolder(path string, remove func(string) error) (int, error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	return 1, remove(path)
}
