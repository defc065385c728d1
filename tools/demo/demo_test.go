package main

import (
	"bufio"
	"bytes"
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

func TestMissingBinaries(t *testing.T) {
	_, err := findBinaries(t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("error %v does not say what to do", err)
	}
}

// binaries is the folder of the demo and what it shows, which are built once.
var binaries = sync.OnceValues(func() (string, error) {
	var err error
	if built, err = os.MkdirTemp(os.Getenv("GOTMPDIR"), "beeline-test-"); err != nil {
		return "", err
	}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", built+"/", "./cmd/beeline-agent", "./cmd/beeline", "./tools/demo")
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
