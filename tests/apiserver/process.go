package apiserver

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// process is a running child that the kernel kills should this process end
// without doing so.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // how it ended, once exited is closed
}

// start runs a binary, its output appended to the file log.
func start(log, binary string, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{cmd: exec.Command(binary, args...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	return p, nil
}

// run stays on one thread from start to end: the parent death signal is that of
// the thread which made the child, not of the process.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.err = p.cmd.Wait()
	close(p.exited)
}

// kill ends the process at once. Killing it again does nothing.
func (p *process) kill() {
	// The only error is that it has ended.
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// tail returns the last lines of a file.
func tail(path string) string {
	const lines = 30
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
