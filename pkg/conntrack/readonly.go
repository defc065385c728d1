package conntrack

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// procMount is where proc is, for containers too.
const procMount = "/proc"

// writable returns the host with settings that can be written. Runtimes mount /proc/sys
// read-only in a container that is not privileged; a mount of proc of its own, which
// needs CAP_SYS_ADMIN and is in no folder, is not. release ends it.
func (h Host) writable() (_ Host, release func(), err error) {
	release = func() {}
	var mount unix.Statfs_t
	if err := unix.Statfs(h.Sysctls, &mount); err != nil || mount.Flags&unix.ST_RDONLY == 0 {
		return h, release, err
	}
	below, ok := strings.CutPrefix(h.Sysctls, procMount+"/")
	if !ok {
		return h, release, nil
	}
	own, err := mountProc()
	if err != nil {
		return h, release, fmt.Errorf("%s is mounted read-only, and for a mount of our own: %w", h.Sysctls, err)
	}
	h.Sysctls = filepath.Join(fmt.Sprintf("/proc/self/fd/%d", own.Fd()), below)
	return h, func() { own.Close() }, nil
}

// mountProc returns the root of a new mount of proc.
func mountProc() (*os.File, error) {
	fs, err := unix.Fsopen("proc", unix.FSOPEN_CLOEXEC)
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
	return os.NewFile(uintptr(root), procMount), nil
}
