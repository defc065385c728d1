package kubeproxy

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestLockHeld: a program of iptables that hangs with the lock keeps the agent from nothing, and neither an init
// container that cleans up: the error names the lock. The clock is [synctest]'s.
func TestLockHeld(t *testing.T) { synctest.Test(t, testLockHeld) }

func testLockHeld(t *testing.T) {
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
	begin := time.Now()
	if _, err := lockXtables(t.Context()); !errors.Is(err, unix.EWOULDBLOCK) || !strings.Contains(err.Error(), xtablesLock) {
		t.Errorf("after %s, the error is %v", time.Since(begin), err)
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
