// Package fsmount mounts file systems that are in no folder.
package fsmount

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Mount is a mount that only this process sees, until it is closed.
type Mount struct{ root *os.File }

// New mounts a file system of a kind that needs no device, such as proc, bpf or cgroup2. It
// needs CAP_SYS_ADMIN.
func New(kind string) (*Mount, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, os.NewSyscallError("fsconfig", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	return &Mount{os.NewFile(uintptr(root), kind)}, nil
}

// Path is that of the root, for this process alone.
func (m *Mount) Path() string { return fmt.Sprintf("/proc/self/fd/%d", m.root.Fd()) }

// Close ends the mount once no file of it is open.
func (m *Mount) Close() error { return m.root.Close() }
