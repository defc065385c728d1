package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// daemon is a program of the cluster that runs until it is stopped. The kernel
// kills it when this process ends.
type daemon struct {
	name  string
	log   string
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // how it ended, once ended is closed
}

// startDaemon starts a program that writes to <logs>/<name>.log.
func startDaemon(logs, name string, cmd *exec.Cmd) (*daemon, error) {
	d := &daemon{name: name, log: filepath.Join(logs, name+".log"), cmd: cmd, ended: make(chan struct{})}
	out, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	if cmd.Stdout == nil {
		cmd.Stdout = out
	}
	cmd.Stderr = out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	started := make(chan error)
	go d.live(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return d, nil
}

// live stays on one thread from start to end: the parent death signal is that of
// the thread.
func (d *daemon) live(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := d.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	d.err = d.cmd.Wait()
	close(d.ended)
}

// kill ends the program at once.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill() // the one error is that it has ended
	<-d.ended
}

// failed returns an error with the end of the log when the program has ended.
func (d *daemon) failed() error {
	select {
	case <-d.ended:
		return fmt.Errorf("%s ended: %v\n%s", d.name, d.err, tail(d.log))
	default:
		return nil
	}
}

// tail returns the last lines of a file.
func tail(path string) string {
	const lines = 20
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
