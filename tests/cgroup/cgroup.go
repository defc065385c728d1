// Package cgroup runs programs in cgroups and removes cgroups with what is in them.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/wait"
)

// Run runs cmd in the cgroup and in new namespaces (unix.CLONE_NEW...) until it ends. When
// its context ends it gets SIGTERM, so that it can end what it has started; an interrupt
// from the terminal is passed on by that. It does not outlive this process.
func Run(cmd *exec.Cmd, path string, namespaces uintptr) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  namespaces,
		UseCgroupFD: true,
		CgroupFD:    int(dir.Fd()),
		Pdeathsig:   unix.SIGKILL,
		Setpgid:     true,
	}
	// The parent death signal is that of the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return cmd.Run()
}

// Kill ends every process in a cgroup and in those below it.
func Kill(path string) error {
	return os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0)
}

// Remove removes a cgroup and those below it, once the processes and threads in them, which
// are about to end, have ended, within [wait.Limit]. It is no error when it is gone.
func Remove(path string) error {
	var dirs []string
	err := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && entry.IsDir() {
			dirs = append(dirs, name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	deadline := time.Now().Add(wait.Limit)
	for _, dir := range slices.Backward(dirs) {
		for err = unix.Rmdir(dir); errors.Is(err, unix.EBUSY) && time.Now().Before(deadline); err = unix.Rmdir(dir) {
			time.Sleep(5 * time.Millisecond)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
	return nil
}
