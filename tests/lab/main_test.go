package lab

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/wait"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

// endEnv tells TestEnd, in a process of its own, how to end.
const endEnv = "BEELINE_LAB_END"

// TestEnd is what TestNothingStays runs: it makes all that a test can make, tells
// about it and ends badly.
func TestEnd(t *testing.T) {
	how := os.Getenv(endEnv)
	if how == "" {
		t.Skip("is run by TestNothingStays")
	}
	h := NewHost(t)
	h.ServeBackends()
	h.Serve(AgentOptions{}).Apply(Service("web", "{clusterIP: 10.96.0.1, ports: [{port: 80}]}"),
		Slice("web", "8080/TCP", Backend4(1)))
	p := h.Start("/proc/self/exe", "-test.run=^TestSleep$")
	fmt.Printf("made\t%s\t%s\t%s\t%d\t%d\n", os.Getenv(cgroupEnv), os.Getenv(bpffsEnv), os.Getenv("TMPDIR"), os.Getpid(), p.PID())
	switch how {
	case "panic":
		go func() { panic("asked for") }()
	case "exit":
		os.Exit(3)
	case "fail":
		t.Fatal("asked for")
	}
	select {}
}

// TestSleep is a process that does not end by itself.
func TestSleep(t *testing.T) {
	if os.Getenv(endEnv) == "" {
		t.Skip("is run by TestEnd")
	}
	select {}
}

// TestNothingStays: however a test binary ends, its cgroups, pins, files and
// processes go.
func TestNothingStays(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	cases := map[string]func(parent, child int) error{
		"interrupted":  func(parent, _ int) error { return unix.Kill(parent, unix.SIGINT) },
		"hung up":      func(parent, _ int) error { return unix.Kill(parent, unix.SIGHUP) },
		"terminated":   func(parent, _ int) error { return unix.Kill(parent, unix.SIGTERM) },
		"quit":         func(parent, _ int) error { return unix.Kill(parent, unix.SIGQUIT) },
		"child killed": func(_, child int) error { return unix.Kill(child, unix.SIGKILL) },
		"panic":        nil,
		"exit":         nil,
		"fail":         nil,
		"out of time":  nil,
		"child stopped": func(parent, child int) error {
			return errors.Join(unix.Kill(child, unix.SIGSTOP), unix.Kill(parent, unix.SIGINT), unix.Kill(child, unix.SIGCONT))
		},
	}
	for how, end := range cases {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			limit := wait.Limit
			if how == "out of time" {
				limit = 4 * time.Second
			}
			paths, pids := runToEnd(t, how, limit, end)
			for ; paths == nil && limit < wait.Limit; limit *= 2 { // it ran out of time before it had begun
				paths, pids = runToEnd(t, how, limit, end)
			}
			if paths == nil {
				t.Fatal("the tests did not begin")
			}
			for _, path := range paths {
				if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s is left behind: %v", path, err)
				}
			}
			for _, pid := range pids {
				// Those whose parent has ended wait for the first process to notice.
				Eventually(t, fmt.Sprintf("process %d is gone", pid), func() bool {
					return errors.Is(unix.Kill(pid, 0), unix.ESRCH)
				})
			}
		})
	}
}

// runToEnd runs TestEnd in a place of its own, with a limit as -timeout, ends it and
// returns what it had made.
func runToEnd(t *testing.T, how string, limit time.Duration, end func(parent, child int) error) (paths []string, pids []int) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestEnd$", "-test.timeout="+limit.String())
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, cgroupEnv+"=") || strings.HasPrefix(v, bpffsEnv+"=")
	}), endEnv+"="+how)
	// The thread that starts it may end before it does.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fields := strings.Split(lines.Text(), "\t") // folders may have spaces
		if len(fields) != 6 || fields[0] != "made" {
			continue
		}
		paths = fields[1:4]
		for _, f := range fields[4:] {
			pid, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
		if end != nil {
			if err := end(cmd.Process.Pid, pids[0]); err != nil {
				t.Error(err)
			}
		}
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the tests succeeded")
	}
	return paths, pids
}
