// Package datapath puts the programs to work: it checks what the kernel offers,
// loads them over the maps, attaches them to a cgroup, pins everything so that
// traffic goes on while no agent runs, takes over from a former agent, and
// removes it all.
package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
)

// DefaultBPFFS is where a BPF file system is mounted on an ordinary node.
const DefaultBPFFS = "/sys/fs/bpf"

// root is the folder below a BPF file system that holds every schema's pins.
func root(bpffs string) string { return filepath.Join(bpffs, "beeline") }

// Dir returns the folder that holds the pins of this version's schema.
func Dir(bpffs string) string {
	return filepath.Join(root(bpffs), fmt.Sprintf("v%d", bpfmap.Schema))
}

// checkBPFFS returns an error that says how to mend it when path is not on a BPF
// file system.
func checkBPFFS(path string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s does not exist: make it on a BPF file system or choose another with --bpffs", path)
	} else if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if fs.Type != unix.BPF_FS_MAGIC {
		return fmt.Errorf("%s is not on a BPF file system: mount one (mount -t bpf bpf %s) or choose another with --bpffs", path, path)
	}
	return nil
}

// FindCgroup2 returns where the cgroup2 hierarchy is mounted: the unified one, or
// the one beside cgroup v1 on a hybrid host.
func FindCgroup2() (string, error) {
	for _, path := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if checkCgroup2(path) == nil {
			return path, nil
		}
	}
	return "", errors.New("no cgroup2 at /sys/fs/cgroup or /sys/fs/cgroup/unified: mount it (mount -t cgroup2 none /sys/fs/cgroup/unified) or name it with --cgroup-root")
}

func checkCgroup2(path string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cgroup %s does not exist: make it or name another with --cgroup-root", path)
	} else if err != nil {
		return fmt.Errorf("look at cgroup %s: %w", path, err)
	}
	if fs.Type != unix.CGROUP2_SUPER_MAGIC {
		return fmt.Errorf("%s is not in a cgroup2 hierarchy: name one with --cgroup-root", path)
	}
	return nil
}
