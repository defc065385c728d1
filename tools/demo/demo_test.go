package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/mounts"
	"github.com/beeline-lb/beeline/tests/tier"
)

// checkout is the top of the repository, as seen from this package.
const checkout = "../.."

func TestClaimsHoldAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	cmd := demoCommand(t)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("demo: %v", err)
	}
	if !bytes.Contains(out, []byte("claims held.")) || bytes.Contains(out, []byte("BROKEN")) {
		t.Error("not all claims held")
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
	wantNothingLeft(t, cmd.Process.Pid)
}

// The sweeper outlives the demo, so what it makes goes away also after SIGKILL.
func TestNothingIsLeftWhenInterrupted(t *testing.T) {
	for _, signal := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGKILL} {
		t.Run(unix.SignalName(signal), func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, signal == unix.SIGKILL)
			cmd := demoCommand(t)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			for lines.Scan() && !strings.HasPrefix(lines.Text(), "4  ") {
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			// The sweeper has the other end too: the output ends when it is done.
			for lines.Scan() {
			}
			if err := cmd.Wait(); err == nil {
				t.Error("an interrupted demo ended as a success")
			}
			wantNothingLeft(t, cmd.Process.Pid)
		})
	}
}

// A viewer who stops reading ends the demo.
func TestNothingIsLeftWhenOutputIsClosed(t *testing.T) {
	t.Parallel()
	cmd := demoCommand(t)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	out.Close()
	if err := cmd.Wait(); err == nil {
		t.Error("a demo without a viewer ended as a success")
	}
	wantNothingLeft(t, cmd.Process.Pid)
}

// mountsEnv has a process of the tests stay in their mounts, and endEnv has one make a folder for binaries.
const mountsEnv, endEnv = "BEELINE_MOUNTS", "BEELINE_DEMO_END"

// TestNoBinariesStay: what is built for tests that are killed goes.
func TestNoBinariesStay(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	if os.Getenv(endEnv) != "" {
		dir, err := folder()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("made\t%s\n", dir)
		select {}
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestNoBinariesStay$")
	cmd.Env = append(os.Environ(), mountsEnv+"=", endEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	made := ""
	for lines := bufio.NewScanner(out); made == "" && lines.Scan(); {
		_, made, _ = strings.Cut(lines.Text(), "made\t")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
	if _, err := os.Stat(made); made == "" || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%q is left behind: %v", made, err)
	}
}

func TestMissingBinaries(t *testing.T) {
	_, err := findBinaries(t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("error %v does not say what to do", err)
	}
}

// folder makes the one for binaries, on a file system of the tests' own mounts: it goes with them, however
// they end.
func folder() (string, error) { return os.MkdirTemp(mounts.NamedNetns, "beeline-test-") }

// binaries is the folder of the demo and what it shows, which are built once; what make has built, which names
// the agent, is taken from there.
var binaries = sync.OnceValues(func() (string, error) {
	built, err := folder()
	if err != nil {
		return "", err
	}
	packages := []string{"./tools/demo"}
	for _, name := range shown {
		of := filepath.Join(filepath.Dir(os.Getenv(tier.AgentEnv)), name)
		if _, err := os.Stat(of); err != nil || !filepath.IsAbs(of) {
			packages = append(packages, "./cmd/"+name)
		} else if err := os.Symlink(of, filepath.Join(built, name)); err != nil {
			return "", err
		}
	}
	build := exec.Command("go", append([]string{"build", "-buildvcs=false", "-o", built + "/"}, packages...)...)
	build.Dir = checkout
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return built, nil
})

func demoCommand(t *testing.T) *exec.Cmd {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(bin, "demo"), "-bin", bin)
	cmd.Dir = checkout
	return cmd
}

// wantNothingLeft looks for all that a stage consists of.
func wantNothingLeft(t *testing.T, pid int) {
	t.Helper()
	name := fmt.Sprintf("beeline-demo-%d", pid)
	cgroups, err := datapath.FindCgroup2()
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{
		filepath.Join(os.TempDir(), name),
		filepath.Join(datapath.DefaultBPFFS, name),
		filepath.Join(cgroups, name),
		filepath.Join("/run/netns", name+"-*"),
	} {
		left, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range left {
			t.Errorf("left behind: %s", path)
		}
	}
}
