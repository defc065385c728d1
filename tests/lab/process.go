package lab

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/isolated"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// Process is a program that runs in a namespace and its cgroup.
type Process struct {
	t    testing.TB
	cmd  *exec.Cmd
	file string // that it writes to
	done chan struct{}
	err  error // of the end
}

// Start starts a program. It is killed when the test ends, and what it wrote is
// shown when the test has failed.
func (n *Namespace) Start(name string, args ...string) *Process {
	n.t.Helper()
	return n.start(exec.Command(name, args...))
}

func (n *Namespace) start(cmd *exec.Cmd) *Process {
	n.t.Helper()
	name := filepath.Base(cmd.Path)
	// Into a file: what it leaves running may keep a pipe open after its end.
	file, err := os.CreateTemp(n.t.TempDir(), "output")
	if err != nil {
		n.t.Fatal(err)
	}
	defer file.Close()
	p := &Process{t: n.t, cmd: cmd, file: file.Name(), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = file, file
	p.cmd.Dir = n.t.TempDir()
	p.cmd.Env = environ()
	// The thread that starts it lives as long as the namespace.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	n.must("start "+name, p.cmd.Start)
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	n.t.Cleanup(func() {
		p.Signal(unix.SIGKILL)
		_ = p.Wait() // was killed, or has ended as the test saw
		if n.t.Failed() {
			n.t.Logf("%s wrote:\n%s", name, p.Output())
		}
	})
	return p
}

// environ returns the environment of what runs in a namespace, from which the machine's name servers
// cannot be reached either.
func environ() []string {
	return append(isolated.Environ(), "RES_OPTIONS=timeout:1 attempts:1")
}

// idle is the argument that makes a test binary wait for its end.
const idle = "lab-idle"

// Populate puts a process into the namespace, as there is one in each pod: it has only a
// thread otherwise. The test binary calls [Main].
func (n *Namespace) Populate() *Process {
	n.t.Helper()
	return n.Start("/proc/self/exe", idle)
}

// Hand gives a socket away, to a process that keeps it open until it is killed.
func (n *Namespace) Hand(s *Socket) *Process {
	n.t.Helper()
	dup := s.Dup(n.t)
	file := os.NewFile(uintptr(dup.fd), "socket")
	dup.fd = -1
	defer file.Close()
	cmd := exec.Command("/proc/self/exe", idle)
	cmd.ExtraFiles = []*os.File{file}
	p := n.start(cmd)
	s.Close()
	return p
}

// Signal sends a signal unless the process has ended.
func (p *Process) Signal(s syscall.Signal) {
	_ = p.cmd.Process.Signal(s) // the one error is that it has ended
}

// Wait waits for the end and returns how it ended, as [exec.Cmd.Wait].
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Output returns what the process has written so far, to standard output and error.
func (p *Process) Output() string {
	p.t.Helper()
	text, err := os.ReadFile(p.file)
	if err != nil {
		p.t.Error(err)
	}
	return string(text)
}

// Output runs a program to its end and returns its standard output.
// The error has its standard error; see [exec.ExitError].
func (n *Namespace) Output(name string, args ...string) (string, error) {
	n.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = n.t.TempDir()
	cmd.Env = environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := n.Run(cmd.Start); err != nil {
		return "", err
	}
	killed := time.AfterFunc(wait.Limit, func() { _ = cmd.Process.Kill() })
	defer killed.Stop()
	err := cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		exit.Stderr = stderr.Bytes()
	}
	return stdout.String(), err
}

// Need skips the test when one of the programs is missing.
func Need(t testing.TB, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			if !tier.Emulated() {
				t.Logf("install it: make setup-test")
			}
			t.Skipf("needs %s: %v", p, err)
		}
	}
}

// Eventually polls for a condition. The test fails when it does not come, see
// [wait.Until].
func Eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	wait.Until(t, what, done)
}
