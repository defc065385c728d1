package cgroup

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
)

// newCgroup makes a cgroup with another one in it.
func newCgroup(t *testing.T) (path, below string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make cgroups")
	}
	root, err := datapath.FindCgroup2()
	if err != nil {
		t.Fatal(err)
	}
	if path, err = os.MkdirTemp(root, "beeline-test-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Remove(path); err != nil {
			t.Error(err)
		}
	})
	below = filepath.Join(path, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	return path, below
}

// TestRun: a command is in its cgroup and may clean up when it is to end.
func TestRun(t *testing.T) {
	_, below := newCgroup(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer write.Close()
	cmd := exec.CommandContext(ctx, "sh", "-c", `trap 'echo cleaned up; exit' TERM; cat /proc/self/cgroup; while :; do sleep 0.01; done`)
	cmd.Stdout = write
	done := make(chan error)
	go func() { done <- Run(cmd, below, unix.CLONE_NEWNET) }()
	first := make([]byte, 4096)
	n, err := read.Read(first)
	if err != nil || !strings.Contains(string(first[:n]), filepath.Base(filepath.Dir(below))+"/below\n") {
		t.Errorf("the command is in %q, %v", first[:n], err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the command has ended: %v", err)
	}
	if n, err = read.Read(first); err != nil || string(first[:n]) != "cleaned up\n" {
		t.Errorf("at its end the command says %q, %v", first[:n], err)
	}
}

// TestRemove waits for what has been killed.
func TestRemove(t *testing.T) {
	path, below := newCgroup(t)
	done := make(chan error)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	defer write.Close()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "echo runs; exec sleep 60")
	cmd.Stdout = write
	go func() { done <- Run(cmd, below, 0) }()
	if _, err := read.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Kill(path), Remove(path)); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cgroup is still there: %v", err)
	}
	if err := <-done; err == nil {
		t.Error("the command has ended by itself")
	}
}
