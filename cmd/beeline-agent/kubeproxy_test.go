package main

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCleanupBestEffort: what cannot be removed fails the command, but not an init container, which says it and lets
// the agent start.
func TestCleanupBestEffort(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	if _, err := exec.LookPath("iptables-legacy"); err != nil {
		t.Skip(err)
	}
	runtime.LockOSThread() // for good: the thread ends with the test
	const lock = "/run/xtables.lock"
	if err := errors.Join(
		unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS|unix.CLONE_NEWNET),
		unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""),
		unix.Mount("none", "/run", "tmpfs", 0, ""),
	); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("iptables-legacy", "-t", "nat", "-N", "KUBE-SERVICES").CombinedOutput(); err != nil {
		t.Fatalf("iptables-legacy: %v %s", err, out)
	}
	// No file that could be locked.
	if err := errors.Join(os.Remove(lock), os.Mkdir(lock, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--cleanup-kube-proxy"}, {"--cleanup-kube-proxy", "--best-effort"}} {
		var out strings.Builder
		cmd := newCommand(&out)
		cmd.SetArgs(args)
		err := cmd.ExecuteContext(t.Context())
		text := out.String()
		if err != nil {
			text += err.Error()
		}
		if (err == nil) != (len(args) == 2) || !strings.Contains(text, lock) {
			t.Errorf("%q: error %v, output %q", args, err, out.String())
		}
	}
}
