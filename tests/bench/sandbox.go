package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/cgroup"
	"github.com/beeline-lb/beeline/tests/devconf"
	"github.com/beeline-lb/beeline/tests/isolated"
)

// Environment of the process that measures: the benchmark's name, and the
// sandbox that its parent has made.
const (
	childEnv  = "BEELINE_BENCH"
	cgroupEnv = "BEELINE_BENCH_CGROUP"
	dirEnv    = "BEELINE_BENCH_DIR"
	// buildEnv is the folder of what was built beforehand.
	buildEnv = "BEELINE_BENCH_BUILD"
)

// resultFD is where the process that measures writes its samples.
const resultFD = 3

// sandbox is what a benchmark may use. The process is in namespaces of its own,
// with the loopback device up.
type sandbox struct {
	// cgroup is an empty cgroup2 folder; benchmarks make theirs in it.
	cgroup string
	// bpffs is a BPF file system that nobody else sees.
	bpffs string
	// dir is a folder for files.
	dir string
}

// isolate runs a benchmark in a child process and returns what it measured, and
// where the machine's CPU time went meanwhile. When it returns nothing of the child
// is left.
func isolate(ctx context.Context, name, built string) (runs []samples, u usage, err error) {
	root, err := datapath.FindCgroup2()
	if err != nil {
		return nil, u, err
	}
	group, err := os.MkdirTemp(root, "beeline-bench-")
	if err != nil {
		return nil, u, fmt.Errorf("make a cgroup (run as root): %w", err)
	}
	defer func() { err = errors.Join(err, cgroup.Remove(group)) }()
	dir, err := os.MkdirTemp("", "beeline-bench-")
	if err != nil {
		return nil, u, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	before, err := readUsage(group)
	if err != nil {
		return nil, u, err
	}
	runs, err = runChild(ctx, group, childEnv+"="+name, cgroupEnv+"="+group, dirEnv+"="+dir, buildEnv+"="+built)
	if err != nil {
		return nil, u, err
	}
	after, err := readUsage(group)
	return runs, after.sub(before), err
}

// runChild runs this program in the cgroup and in new namespaces until it ends, or
// ends it with ctx.
func runChild(ctx context.Context, group string, env ...string) (runs []samples, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	decoded := make(chan error, 1)
	go func() { decoded <- json.NewDecoder(read).Decode(&runs) }()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(isolated.Environ(), env...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.ExtraFiles = []*os.File{write}
	err = cgroup.Run(cmd, group, unix.CLONE_NEWNET|unix.CLONE_NEWNS|unix.CLONE_NEWPID)
	err = errors.Join(err, write.Close())
	decodeErr := <-decoded
	return runs, cmp.Or(err, decodeErr)
}

// child is the process that measures.
func child(ctx context.Context, name string) error {
	b, err := find(name)
	if err != nil {
		return err
	}
	box, err := enter(os.Getenv(cgroupEnv), os.Getenv(dirEnv))
	if err != nil {
		return err
	}
	runs, err := b.run(ctx, box)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.NewFile(resultFD, "results")).Encode(runs)
}

// enter sets up the namespaces that the process is in.
func enter(cgroup, dir string) (*sandbox, error) {
	box := &sandbox{cgroup: cgroup, dir: dir, bpffs: filepath.Join(dir, "bpf")}
	if err := os.Mkdir(box.bpffs, 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return nil, fmt.Errorf("mount /proc of the pid namespace: %w", err)
	}
	if err := unix.Mount("bpf", box.bpffs, "bpf", 0, ""); err != nil {
		return nil, fmt.Errorf("mount a BPF file system: %w", err)
	}
	return box, errors.Join(devconf.Reset(), setUp("lo"))
}

// subgroup makes a cgroup.
func (s *sandbox) subgroup(name string) (string, error) {
	path := filepath.Join(s.cgroup, name)
	return path, os.Mkdir(path, 0o755)
}

// join moves this process to a cgroup. The sockets it makes from then on belong
// there; those it has stay where they are.
func join(cgroup string) error {
	err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	if err != nil {
		return fmt.Errorf("join cgroup: %w", err)
	}
	return nil
}
