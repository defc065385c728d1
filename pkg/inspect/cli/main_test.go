package cli_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/inspect/cli"
)

// inNamespaceVariable is set in the process that has a mount namespace of its own.
const inNamespaceVariable = "BEELINE_TEST_MOUNT_NAMESPACE"

// asCommandVariable makes the test binary the beeline command, or kubectl's plugin where it is that
// one's name.
const asCommandVariable = "BEELINE_TEST_AS_COMMAND"

// TestMain runs the tests in a mount namespace, so that the BPF file systems they
// mount, and what is pinned there, end with the process however it ends.
func TestMain(m *testing.M) {
	if name := os.Getenv(asCommandVariable); name != "" {
		klog.SetLogger(klog.New(nil)) // as cmd/beeline does
		run := cli.Run
		if name == cli.PluginName {
			run = cli.RunPlugin
		}
		os.Exit(run(context.Background(), cli.Env{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Now: time.Now}, os.Args[1:]...))
	}
	if os.Getuid() != 0 || os.Getenv(inNamespaceVariable) != "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread() // Pdeathsig is sent when the thread ends
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inNamespaceVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	}
	fmt.Fprintln(os.Stderr, "run the tests in a mount namespace:", err)
	os.Exit(1)
}

// asCommand is a process that is the beeline command.
func asCommand(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), asCommandVariable+"=1")
	return cmd
}

// runAsNobody runs beeline in a process without rights.
func runAsNobody(t *testing.T, args ...string) (errs string, code int) {
	t.Helper()
	const nobody = 65534
	self, err := os.Open("/proc/self/exe")
	check(t, err)
	defer self.Close()
	check(t, self.Chmod(0o755)) // the tester's umask may have kept it from others
	cmd := exec.Command("/proc/self/fd/3", args...)
	cmd.ExtraFiles = []*os.File{self}
	cmd.Env = []string{asCommandVariable + "=1"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run as nobody: %v", err)
	}
	return stderr.String(), cmd.ProcessState.ExitCode()
}
