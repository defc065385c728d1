package cgroup

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// newCgroup makes a cgroup with another one in it.
func newCgroup(t *testing.T) (path, below string) {
	t.Helper()
	path = New(t)
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

// endEnv is set in the process that TestNothingStays starts.
const endEnv = "BEELINE_CGROUP_END"

// TestNothingStays: an interrupted process leaves no cgroup, and nothing that runs in one.
func TestNothingStays(t *testing.T) {
	path, below := newCgroup(t)
	if os.Getenv(endEnv) != "" {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "echo made "+path+"; exec sleep infinity")
		cmd.Stdout = os.Stdout
		t.Fatal(Run(cmd, below, 0))
	}
	for _, signal := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestNothingStays$")
		cmd.Env = append(os.Environ(), endEnv+"=1")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		said := make([]byte, 4096)
		n, err := out.Read(said)
		fields := strings.Fields(string(said[:n]))
		if err != nil || len(fields) != 2 {
			t.Fatalf("it says %q, %v", said[:n], err)
		}
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, out); err != nil { // what runs there has the other end, too
			t.Error(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Errorf("after %v it has ended as a success", signal)
		}
		if _, err := os.Stat(fields[1]); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after %v the cgroup is still there: %v", signal, err)
		}
	}
}
