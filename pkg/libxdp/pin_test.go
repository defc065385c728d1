package libxdp

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/beeline-lb/beeline/pkg/flock"
)

// TestLockEndsWithContext: who waits for another process's lock ends when it is told to.
func TestLockEndsWithContext(t *testing.T) {
	bpffs := t.TempDir()
	if err := os.Mkdir(folder(bpffs), 0o700); err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(folder(bpffs))
	if err != nil {
		t.Fatal(err)
	}
	if err := flock.Exclusive(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lock(ctx, bpffs); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	unlock, err := lock(t.Context(), bpffs)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
