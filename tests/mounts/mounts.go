// Package mounts gives a program the file systems of a node, whatever the machine
// has mounted: a BPF file system, the cgroup2 hierarchy and a folder for named
// network namespaces. They are in a mount namespace of the program's own and go
// with it.
package mounts

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
)

// env tells a program which mount namespace was made for it. A program that it
// starts works in the same one.
const env = "BEELINE_MOUNTS"

// NamedNetns is where ip(8) mounts network namespaces: a tmpfs that all users may search, and in
// which programs may run.
const NamedNetns = "/run/netns"

// Main runs the tests of a package with mounts of their own, without root with
// those of the machine, and returns the exit code.
func Main(m *testing.M) int {
	if os.Geteuid() == 0 {
		if err := Private(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// Private makes a mount namespace with what a node has and starts this program
// again in it, as the same process: call it first. It returns nil when the process
// is in such a namespace already.
func Private() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := namespace()
	if err != nil {
		return err
	}
	if os.Getenv(env) == here {
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root, to mount file systems, make network namespaces and load BPF programs")
	}
	// Not /proc/self/exe, which is a file of the machine's mounts.
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace (in a container this takes CAP_SYS_ADMIN): %w", err)
	}
	if err := fill(); err != nil {
		return err
	}
	if here, err = namespace(); err != nil {
		return err
	}
	if err := os.Setenv(env, here); err != nil {
		return err
	}
	return fmt.Errorf("start again in the mount namespace: %w", syscall.Exec(program, os.Args, os.Environ()))
}

// namespace names the mount namespace of the calling thread.
func namespace() (string, error) { return os.Readlink("/proc/thread-self/ns/mnt") }

// fill mounts everything in the calling thread's namespace. What the machine mounts
// later still shows up in it, and what is mounted here stays here. Of that the machine
// keeps the empty folders below /run on which it is mounted, /run/netns and
// /run/beeline/cgroupv2: to remove one would end the mounts on it in all namespaces.
func fill() error {
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
	if errors.Is(err, unix.EINVAL) {
		return errors.New("/ is no mount point, as in a chroot: before entering it, mount --bind its folder on itself")
	}
	if err != nil {
		return fmt.Errorf("keep mounts from the machine: %w", err)
	}
	if err := unix.Mount("bpf", datapath.DefaultBPFFS, "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mount a BPF file system at %s: %w", datapath.DefaultBPFFS, err)
	}
	if err := os.MkdirAll(NamedNetns, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", NamedNetns, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount a folder for network namespaces at %s: %w", NamedNetns, err)
	}
	_, _, err = datapath.MountCgroup2()
	return err
}
