package mounts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
)

// machineEnv is the mount namespace that the test binary was started in.
const machineEnv = "BEELINE_MOUNTS_MACHINE"

func TestMain(m *testing.M) {
	if os.Getenv(machineEnv) == "" {
		here, err := namespace()
		if err != nil {
			panic(err)
		}
		os.Setenv(machineEnv, here)
	}
	os.Exit(Main(m))
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount file systems")
	}
}

func fileSystem(t *testing.T, path string) int64 {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		t.Fatal(err)
	}
	return fs.Type
}

// TestPrivate: the tests have file systems that the machine does not see.
func TestPrivate(t *testing.T) {
	needRoot(t)
	if here, err := namespace(); err != nil || here == os.Getenv(machineEnv) {
		t.Errorf("the tests are in the machine's mount namespace %s, %v", here, err)
	}
	if path, err := os.Executable(); err != nil {
		t.Error(err)
	} else if _, err := os.Stat(path); err != nil {
		t.Errorf("the program does not find itself: %v", err)
	}
	if fileSystem(t, datapath.DefaultBPFFS) != unix.BPF_FS_MAGIC {
		t.Errorf("%s is not a BPF file system", datapath.DefaultBPFFS)
	}
	if _, err := datapath.FindCgroup2(); err != nil {
		t.Error(err)
	}
	out, err := exec.Command("ip", "netns", "add", "beeline-mounts-test").CombinedOutput()
	if err != nil {
		t.Fatalf("ip netns add: %v: %s", err, out)
	}
	mark := filepath.Join(datapath.DefaultBPFFS, "beeline-mounts-test")
	if err := os.Mkdir(mark, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{mark, filepath.Join(NamedNetns, "beeline-mounts-test")} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
		parent := filepath.Join("/proc", "1", "root", path)
		if _, err := os.Stat(parent); err == nil {
			t.Errorf("the machine sees %s", path)
		}
	}
}

// TestPrivateAgain: programs that the tests start work in the tests' mounts.
func TestPrivateAgain(t *testing.T) {
	needRoot(t)
	here, err := namespace()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestWhere$", "-test.v")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), here) {
		t.Errorf("a program that is started anew: %v\n%s", err, out)
	}
}

// TestWhere tells which mounts a program has.
func TestWhere(t *testing.T) {
	here, err := namespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Log(here)
}
