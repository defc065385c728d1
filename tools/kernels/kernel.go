package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

// kernel is a kernel that the tests must pass in.
type kernel struct {
	name  string
	arch  *architecture
	suite string // of Debian
	image string // the package that depends on the newest one
	cpu   string
}

// The cloud flavour has everything that a machine without hardware needs, at a quarter of the size.
var kernels = []kernel{
	{"6.1", amd64, "bookworm", "linux-image-cloud-amd64", cpuWithoutCX16},
	{"6.12", amd64, "trixie", "linux-image-cloud-amd64", cpuWithoutCX16},
	// Linux 7.2 stores nothing of a socket for programs on a processor without CMPXCHG16B.
	{"newest", amd64, "sid", "linux-image-cloud-amd64", cpuMax},
	{"6.1-rt", amd64, "bookworm", "linux-image-rt-amd64", cpuWithoutCX16},
	{"6.1-arm64", arm64, "bookworm", "linux-image-cloud-arm64", cpuWithoutLSE},
	// Pages of 16 KiB, as the Raspberry Pi 5 has them.
	{"6.12-arm64-16k", arm64, "trixie", "linux-image-arm64-16k", cpuFastPauth},
}

func kernelNames() []string {
	var names []string
	for _, k := range kernels {
		names = append(names, k.name)
	}
	return names
}

func chooseKernels(name string) ([]kernel, error) {
	if name == "all" {
		return kernels, nil
	}
	for _, k := range kernels {
		if k.name == name {
			return []kernel{k}, nil
		}
	}
	return nil, fmt.Errorf("kernel %q is none of %v and not all", name, kernelNames())
}

// image is an unpacked kernel, with programs.
type image struct {
	release string
	vmlinuz string
	modules string // the folder of its modules
	root    string // where programs are unpacked
	arch    *architecture
}

// store keeps unpacked kernels, one folder for each kernel's name.
type store struct {
	dir string
}

// image returns the kernel, fetching it when it is not stored yet or update asks
// for a newer one. Several processes may call it at once.
func (s store) image(ctx context.Context, k kernel, update bool) (*image, error) {
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()

	dir := filepath.Join(s.dir, k.name)
	if !update {
		img, err := openImage(dir, k.arch)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return img, err
		}
	}
	fresh, err := os.MkdirTemp(s.dir, "new-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(fresh)
	fmt.Printf("kernel %s: getting Debian %s's %s and %v\n", k.name, k.suite, k.image, programsPackages)
	if err := fetch(ctx, k, fresh); err != nil {
		return nil, err
	}
	if _, err := openImage(fresh, k.arch); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.Rename(fresh, dir); err != nil {
		return nil, err
	}
	return openImage(dir, k.arch)
}

// lock keeps other processes from changing the store.
func (s store) lock() (unlock func() error, err error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	file, err := os.Create(filepath.Join(s.dir, "lock"))
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return file.Close, nil
}

func (s store) list(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "KERNEL\tSUITE\tCACHED")
	for _, k := range kernels {
		cached := "no"
		if img, err := openImage(filepath.Join(s.dir, k.name), k.arch); err == nil {
			cached = img.release
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", k.name, k.suite, cached)
	}
	return table.Flush()
}

// openImage finds the kernel unpacked in dir, wherever its release of Debian puts
// the files. The error wraps [fs.ErrNotExist] when there is none.
func openImage(dir string, arch *architecture) (*image, error) {
	modules, err := onlyMatch(filepath.Join(dir, "lib/modules/*"), filepath.Join(dir, "usr/lib/modules/*"))
	if err != nil {
		return nil, err
	}
	release := filepath.Base(modules)
	vmlinuz, err := onlyMatch(filepath.Join(dir, "boot/vmlinuz-"+release), filepath.Join(modules, "vmlinuz"))
	if err != nil {
		return nil, err
	}
	img := &image{release: release, vmlinuz: vmlinuz, modules: modules, root: dir, arch: arch}
	for _, name := range programs {
		if _, err := img.find("sbin", name); err != nil {
			return nil, err
		}
	}
	return img, nil
}

// onlyMatch returns the one file that any of the patterns matches.
func onlyMatch(patterns ...string) (string, error) {
	var found []string
	for _, pattern := range patterns {
		names, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		found = append(found, names...)
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%v match %d files, not one: %w", patterns, len(found), fs.ErrNotExist)
	}
	return found[0], nil
}
