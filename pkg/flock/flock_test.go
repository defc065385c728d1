package flock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// open opens the test's file once more: a lock belongs to what open(2) returned.
func open(t *testing.T, path string) *os.File {
	t.Helper()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

func TestWaitEndsWithContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if err := Exclusive(t.Context(), open(t, path)); err != nil {
		t.Fatal(err)
	}
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(2*interval, func() { cancel(stopped) })
	err := Exclusive(ctx, open(t, path))
	if !errors.Is(err, unix.EWOULDBLOCK) || !errors.Is(err, stopped) {
		t.Errorf("the error is %v", err)
	}
}

func TestLockIsHadWhenItIsFree(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first := open(t, path)
	if err := Exclusive(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(2*interval, func() { first.Close() })
	if err := Exclusive(t.Context(), open(t, path)); err != nil {
		t.Error(err)
	}
}
