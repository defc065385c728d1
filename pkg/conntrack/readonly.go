package conntrack

import (
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/fsmount"
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
	own, err := fsmount.New("proc")
	if err != nil {
		return h, release, fmt.Errorf("%s is mounted read-only, and for a mount of our own: %w", h.Sysctls, err)
	}
	h.Sysctls = filepath.Join(own.Path(), below)
	return h, func() { own.Close() }, nil
}
