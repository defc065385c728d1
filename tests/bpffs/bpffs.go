// Package bpffs makes BPF file systems for tests.
package bpffs

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// New makes a BPF file system that has no place in the tree, so it is gone with the test,
// however that ends, and returns a folder on it. Without root the test is skipped.
func New(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes BPF maps")
	}
	fs, err := unix.Fsopen("bpf", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Skipf("needs a BPF file system: %v", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		t.Fatal(err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(mount) })
	dir := fmt.Sprintf("/proc/self/fd/%d/pins", mount)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}
