// Package bpffs makes BPF file systems for tests.
package bpffs

import (
	"os"
	"testing"

	"github.com/beeline-lb/beeline/pkg/fsmount"
)

// New makes a BPF file system that has no place in the tree, so it is gone with the test,
// however that ends, and returns a folder on it. Without root the test is skipped.
func New(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes BPF maps")
	}
	mount, err := fsmount.New("bpf")
	if err != nil {
		t.Skipf("needs a BPF file system: %v", err)
	}
	t.Cleanup(func() { mount.Close() })
	dir := mount.Path() + "/pins"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}
