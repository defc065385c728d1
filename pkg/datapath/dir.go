// Package datapath loads and attaches the programs: it probes the kernel's features,
// loads them over the maps, attaches them to a cgroup, pins everything so that
// traffic goes on while no agent runs, takes over from a former agent, and
// removes it all.
//
// It exports many names because each mode of a setting has one, what is at work is described by
// types of its own, and tests and measurements load programs one by one.
package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/setting"
)

// DefaultBPFFS is where a BPF file system is mounted on an ordinary node.
const DefaultBPFFS = "/sys/fs/bpf"

// root is the folder below a BPF file system that holds every schema's pins.
func root(bpffs string) string { return filepath.Join(bpffs, "beeline") }

// Dir returns the folder that holds the pins of this version's schema.
func Dir(bpffs string) string {
	return filepath.Join(root(bpffs), fmt.Sprintf("v%d", bpfmap.Schema))
}

// onBPFFS reports whether path is on a BPF file system.
func onBPFFS(path string) (bool, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); errors.Is(err, os.ErrNotExist) {
		return false, setting.Errorf("bpffs", "%s does not exist: make it on a BPF file system or choose another", path)
	} else if err != nil {
		return false, fmt.Errorf("look at %s: %w", path, err)
	}
	return fs.Type == unix.BPF_FS_MAGIC, nil
}

// checkBPFFS returns an error that says how to mend it when path is not on a BPF
// file system.
func checkBPFFS(path string) error {
	on, err := onBPFFS(path)
	if err == nil && !on {
		err = setting.Errorf("bpffs", "%[1]s is not on a BPF file system: mount one (mount -t bpf bpf %[1]s) or choose another", path)
	}
	return err
}

// ErrOtherMount says that something else is mounted where a BPF file system is missing, as in a
// pod, whose mounts end with it.
var ErrOtherMount = errors.New("something else is mounted there")

// checkWritable returns an error that says how to mend it when path, which is on a BPF file system, is
// mounted read-only.
func checkWritable(path string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if fs.Flags&unix.ST_RDONLY != 0 {
		return setting.Errorf("bpffs", "%[1]s is mounted read-only: remount it (mount -o remount,rw %[1]s), in a pod drop readOnly of its volume's mount, or choose another", path)
	}
	return nil
}

// EnsureBPFFS mounts a BPF file system at [DefaultBPFFS] where nothing is mounted
// there, and reports whether it did. Elsewhere, or over another mount, it mounts none and
// returns an error that says what to do, [ErrOtherMount] in the latter case; as it does where it is
// mounted read-only.
func EnsureBPFFS(path string) (mounted bool, err error) {
	missing := checkBPFFS(path)
	if missing == nil {
		return false, checkWritable(path)
	}
	if filepath.Clean(path) != DefaultBPFFS {
		return false, missing
	}
	if isMountPoint(path) {
		return false, fmt.Errorf("%w: %w", missing, ErrOtherMount)
	}
	return MountBPFFS(path)
}

// MountBPFFS mounts a BPF file system at a folder unless it is on one, and reports
// whether it did.
func MountBPFFS(path string) (mounted bool, err error) {
	on, err := onBPFFS(path)
	if err != nil || on {
		return false, err
	}
	if err := checkRights(); err != nil {
		return false, err
	}
	if err := unix.Mount("bpf", path, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return false, fmt.Errorf("%w: mount: %w", checkBPFFS(path), err)
	}
	return true, nil
}

// isMountPoint reports whether something is mounted at path.
func isMountPoint(path string) bool {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, 0, 0, &stat)
	return err == nil && stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// nothingPinned reports whether nothing can be pinned at path: no BPF file system is
// mounted at the default place. Any other path is for the caller to check.
func nothingPinned(path string) bool {
	on, err := onBPFFS(path)
	return filepath.Clean(path) == DefaultBPFFS && err == nil && !on
}

// ownCgroup2 is where [MountCgroup2] mounts.
const ownCgroup2 = "/run/beeline/cgroupv2"

// FindCgroup2 returns where the cgroup2 hierarchy is mounted: the unified one, the
// one beside cgroup v1 on a hybrid host, or that of [MountCgroup2]. In a container, as a node of kind is one,
// that may be a part of it, see [PartOfCgroup2].
func FindCgroup2() (string, error) {
	for _, path := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified", ownCgroup2} {
		if checkCgroup2(path) == nil {
			return path, nil
		}
	}
	return "", setting.Errorf("cgroupRoot", "no cgroup2 at /sys/fs/cgroup or /sys/fs/cgroup/unified: mount it (mkdir -p %[1]s && mount -t cgroup2 none %[1]s) or name it", ownCgroup2)
}

// MountCgroup2 returns where the cgroup2 hierarchy is mounted, and mounts it at a
// place of its own where it is not, as on a host that has cgroup v1 alone. It is one
// and the same hierarchy wherever it is mounted.
func MountCgroup2() (path string, mounted bool, err error) {
	path, missing := FindCgroup2()
	if missing == nil {
		return path, false, nil
	}
	if err := checkRights(); err != nil {
		return "", false, err
	}
	if err := os.MkdirAll(ownCgroup2, 0o755); err != nil {
		return "", false, fmt.Errorf("%w: %w", missing, err)
	}
	if err := unix.Mount("none", ownCgroup2, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return "", false, fmt.Errorf("%w: mount: %w", missing, err)
	}
	// In a cgroup namespace what is mounted begins at the cgroup of this process.
	if PartOfCgroup2(ownCgroup2) {
		partly := setting.Errorf("cgroupRoot", "no cgroup2 at /sys/fs/cgroup or /sys/fs/cgroup/unified, and a mount made in this cgroup namespace "+
			"shows only a part of it: give this container the node's mount, or name a folder of it")
		return "", false, errors.Join(partly, unix.Unmount(ownCgroup2, 0))
	}
	return ownCgroup2, true, nil
}

// PartOfCgroup2 reports whether a folder of the cgroup2 hierarchy is a cgroup, so that processes may be
// outside of it. Every cgroup has this file but the root.
func PartOfCgroup2(path string) bool {
	_, err := os.Stat(filepath.Join(path, "cgroup.type"))
	return err == nil
}

// UnmountCgroup2 undoes [MountCgroup2] and reports what it removed, "" when there is
// nothing to undo. A mount in use stays, and so does the empty folder: to remove
// it would end the mounts on it in all other mount namespaces.
func UnmountCgroup2() (removed string, err error) {
	if !isMountPoint(ownCgroup2) {
		return "", nil
	}
	if err := unix.Unmount(ownCgroup2, 0); errors.Is(err, unix.EBUSY) {
		return "", nil
	} else if err != nil {
		return "", fmt.Errorf("unmount %s: %w", ownCgroup2, err)
	}
	return ownCgroup2, nil
}

func checkCgroup2(path string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); errors.Is(err, os.ErrNotExist) {
		return setting.Errorf("cgroupRoot", "%s does not exist: make it or name another", path)
	} else if err != nil {
		return fmt.Errorf("look at cgroup %s: %w", path, err)
	}
	if fs.Type != unix.CGROUP2_SUPER_MAGIC {
		return setting.Errorf("cgroupRoot", "%s is not in a cgroup2 hierarchy: name one that is", path)
	}
	return nil
}
