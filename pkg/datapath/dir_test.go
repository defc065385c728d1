package datapath_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/config"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/lab"
)

// withoutCgroups runs fn on a thread that is in a mount namespace without any cgroup
// hierarchy, and in more new namespaces.
func withoutCgroups(t *testing.T, namespaces int, fn func() error) error {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		done <- errors.Join(
			unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS|namespaces),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("tmpfs", "/run", "tmpfs", 0, ""),
			unix.Mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, ""),
			fn())
	}()
	return <-done
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount file systems")
	}
}

// TestMountCgroup2: the hierarchy that is mounted is the machine's own, once, and is
// unmounted again.
func TestMountCgroup2(t *testing.T) {
	t.Parallel()
	needRoot(t)
	var hint error
	root, err := datapath.FindCgroup2()
	if err != nil {
		t.Fatal(err)
	}
	group := strings.TrimPrefix(lab.NewCgroup(t), root)
	err = withoutCgroups(t, 0, func() error {
		_, hint = datapath.FindCgroup2()
		path, mounted, err := datapath.MountCgroup2()
		if err != nil {
			return err
		}
		if _, err := os.Stat(path + group); err != nil || !mounted {
			t.Errorf("%s, mounted: %t: %v", path, mounted, err)
		}
		again, mounted, err := datapath.MountCgroup2()
		if err != nil || again != path || mounted {
			t.Errorf("the second time: %s, mounted: %t: %v", again, mounted, err)
		}
		removed, err := datapath.UnmountCgroup2()
		if err != nil || removed != path {
			t.Errorf("unmounted %q, %v", removed, err)
		}
		if left, err := os.ReadDir(path); err != nil || len(left) > 0 {
			t.Errorf("the folder has %v, %v", left, err)
		}
		removed, err = datapath.UnmountCgroup2()
		if removed != "" {
			t.Errorf("unmounted %q, which was not mounted", removed)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if hint == nil || !strings.Contains(hint.Error(), "mount -t cgroup2") || !strings.Contains(config.ErrorText(hint), "--cgroup-root") {
		t.Errorf("without cgroup2: %v", hint)
	}
}

// TestPartOfCgroup2: in a cgroup namespace a mount shows what is below the own cgroup
// only. That is not taken for the whole.
func TestPartOfCgroup2(t *testing.T) {
	t.Parallel()
	needRoot(t)
	err := withoutCgroups(t, unix.CLONE_NEWCGROUP, func() error {
		path, _, err := datapath.MountCgroup2()
		if err == nil || !strings.Contains(err.Error(), "cgroup namespace") {
			t.Errorf("mounted at %s: %v", path, err)
		}
		_, err = datapath.FindCgroup2()
		if err == nil {
			t.Error("the part of the hierarchy is still mounted")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestPartIsMounted: in a container with a view of its own, as a node of kind has, the part of the hierarchy
// that is mounted there is taken, and said to be one.
func TestPartIsMounted(t *testing.T) {
	t.Parallel()
	needRoot(t)
	root, err := datapath.FindCgroup2()
	if err != nil {
		t.Fatal(err)
	}
	group := strings.TrimPrefix(lab.NewCgroup(t), root)
	for _, place := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		err := withoutCgroups(t, 0, func() error {
			if err := os.MkdirAll(place, 0o755); err != nil {
				return err
			}
			if err := unix.Mount("none", place, "cgroup2", 0, ""); err != nil {
				return err
			}
			if datapath.PartOfCgroup2(place) {
				t.Errorf("the whole hierarchy is taken for a part of it")
			}
			below := filepath.Join(place, group)
			if err := errors.Join(unix.Mount(below, "/run", "", unix.MS_BIND, ""), unix.Unmount(place, 0), unix.Mount("/run", place, "", unix.MS_BIND, "")); err != nil {
				return err
			}
			path, mounted, err := datapath.MountCgroup2()
			if path != place || mounted || !datapath.PartOfCgroup2(path) {
				t.Errorf("found %s, mounted: %t, want the part of the hierarchy at %s", path, mounted, place)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
