package netns

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRun: code runs in the namespace, and the thread that ran it comes back.
func TestRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	own := must(t, Current)
	other := must(t, func() (n *Namespace, err error) {
		err = own.Run(func() (err error) { // which brings the thread back
			if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
				n, err = Current()
			}
			return err
		})
		return n, err
	})
	if own.Name() == other.Name() {
		t.Fatalf("a new namespace is %s like the old one", own.Name())
	}
	failed := errors.New("failed")
	for range 100 {
		err := other.Run(func() error {
			if within := must(t, Current); within.Name() != other.Name() {
				t.Errorf("run in %s, want %s", within.Name(), other.Name())
			}
			return failed
		})
		if !errors.Is(err, failed) {
			t.Fatalf("the error is %v", err)
		}
	}
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range threads {
		if name, err := os.Readlink(path); err == nil && name == other.Name() {
			t.Errorf("%s is still in the other namespace", path)
		}
	}
}

func TestOpenNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); !errors.Is(err, ErrNone) {
		t.Errorf("a plain file: %v", err)
	}
	if _, err := Open(path + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// must returns the open namespace, which is closed with the test.
func must(t *testing.T, open func() (*Namespace, error)) *Namespace {
	t.Helper()
	n, err := open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}
