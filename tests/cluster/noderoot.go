package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ownFolders are a node's folders that lie in its own directory and not in the
// overlay: containerd puts overlays of its own there.
var ownFolders = []string{"var/lib", "var/log"}

// enterRoot makes the node's file system the root: Debian's files with what the
// node writes in a layer above, and the kernel's file systems seen from the node's
// namespaces.
func enterRoot(spec nodeSpec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	root := filepath.Join(spec.Dir, "root")
	upper, work := filepath.Join(spec.Dir, "upper"), filepath.Join(spec.Dir, "work")
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", spec.Rootfs, upper, work)
	if err := mount("overlay", root, "overlay", 0, options); err != nil {
		return err
	}
	for _, m := range slices.Concat(kernelMounts(), cgroupMounts(spec.Hierarchies), ownMounts(spec)) {
		if err := m.in(root); err != nil {
			return err
		}
	}
	if err := writeFiles(root, spec.Files); err != nil {
		return err
	}
	for name, value := range kubeletSysctls {
		file := filepath.Join(spec.Dir, filepath.Base(name))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := mount(file, filepath.Join(root, "proc/sys", name), "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	if err := pivot(root); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("have mounts pass to containers, as systemd does: %w", err)
	}
	return nil
}

// kubeletSysctls are the machine's settings that a kubelet insists on, with the
// value that it is shown. It ends when it cannot set one.
var kubeletSysctls = map[string]string{
	"kernel/keys/root_maxbytes": "25000000",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
}

func writeFiles(root string, files map[string]string) error {
	for path, content := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// pivot makes the folder the root and leaves the old one.
func pivot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the old root: %w", err)
	}
	return unix.Chdir("/")
}

// nodeMount is something to be mounted below a node's root.
type nodeMount struct {
	source, target, fstype, options string
	flags                           uintptr
}

func (m nodeMount) in(root string) error {
	target := filepath.Join(root, m.target)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	return mount(m.source, target, m.fstype, m.flags, m.options)
}

func mount(source, target, fstype string, flags uintptr, options string) error {
	if err := unix.Mount(source, target, fstype, flags, options); err != nil {
		return fmt.Errorf("mount %s %s on %s: %w", fstype, source, target, err)
	}
	return nil
}

// kernelMounts are the file systems that show the node's namespaces. What in
// /proc/sys concerns the whole machine cannot be written. A BPF file system is not
// among them: Beeline brings it.
func kernelMounts() []nodeMount {
	return []nodeMount{
		{"proc", "proc", "proc", "", 0},
		{"/proc/sys", "proc/sys", "", "", unix.MS_BIND},
		{"", "proc/sys", "", "", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY},
		{"/proc/sys/net", "proc/sys/net", "", "", unix.MS_BIND},
		{"sysfs", "sys", "sysfs", "", 0},
		{"/dev", "dev", "", "", unix.MS_BIND | unix.MS_REC},
		{"tmpfs", "run", "tmpfs", "mode=0755", 0},
		{"tmpfs", "tmp", "tmpfs", "mode=1777", 0},
	}
}

// cgroupMounts show each hierarchy from the node's cgroup namespace, at its usual
// place, also where the machine has cgroup2 elsewhere.
func cgroupMounts(hierarchies []hierarchy) []nodeMount {
	const usual = "/sys/fs/cgroup"
	var mounts []nodeMount
	if !slices.ContainsFunc(hierarchies, func(h hierarchy) bool { return h.Mount == usual }) {
		mounts = append(mounts, nodeMount{"tmpfs", usual, "tmpfs", "mode=0755", 0})
	}
	for _, h := range hierarchies {
		if h.Type == "cgroup2" && !strings.HasPrefix(h.Mount, usual) {
			h.Mount = usual + "/unified"
		}
		mounts = append(mounts, nodeMount{h.Type, h.Mount, h.Type, h.Options, 0})
	}
	return mounts
}

// ownMounts are the node's own folders and those of programs and images.
func ownMounts(spec nodeSpec) []nodeMount {
	var mounts []nodeMount
	for _, dir := range spec.Shared {
		mounts = append(mounts, nodeMount{dir, dir, "", "", unix.MS_BIND})
	}
	for _, name := range ownFolders {
		own := filepath.Join(spec.Dir, filepath.Base(name))
		mounts = append(mounts, nodeMount{own, name, "", "", unix.MS_BIND})
	}
	return mounts
}
