package kubeproxy

import (
	"context"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestLockEndsWithContext: a program of iptables that hangs with the lock keeps the agent
// from nothing.
func TestLockEndsWithContext(t *testing.T) {
	inNamespace(t)
	// A /run of the test's own: others use the lock of the machine.
	if err := errors.Join(
		unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS),
		unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""),
		unix.Mount("none", "/run", "tmpfs", 0, ""),
	); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(xtablesLock)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lockXtables(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	unlock, err := lockXtables(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
