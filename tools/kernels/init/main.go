// Command init is the first process of a test kernel: it mounts what BPF tests
// need, runs the test binaries of its job one after another, reports over the
// result line and powers the machine off.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tools/kernels/guest"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: runs only as the first process of a test kernel, see tools/kernels")
		os.Exit(2)
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "init:", err)
	}
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Fprintln(os.Stderr, "init: power off:", err)
	}
}

// run reports everything that happens once the result line is open; its own
// error is for the console.
func run() error {
	if err := mountAll(); err != nil {
		return err
	}
	line, err := os.OpenFile(os.Getenv(guest.ResultEnv), os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return fmt.Errorf("open the result line: %w", err)
	}
	defer line.Close()
	// Without the drain, powering off cuts what the port has not sent yet.
	defer unix.IoctlSetInt(int(line.Fd()), unix.TCSBRK, 1)

	events := json.NewEncoder(line)
	job, err := setUp()
	if err != nil {
		return errors.Join(err, events.Encode(guest.Event{Failure: err.Error()}))
	}
	if err := events.Encode(guest.Event{Started: kernelRelease()}); err != nil {
		return err
	}
	for _, test := range job.Tests {
		result := runTest(test, job)
		if err := events.Encode(guest.Event{Result: &result}); err != nil {
			return err
		}
	}
	return events.Encode(guest.Event{Done: true})
}

// setUp loads the modules of the job, brings the loopback device up and returns
// the job.
func setUp() (*guest.Job, error) {
	data, err := os.ReadFile(guest.JobPath)
	if err != nil {
		return nil, fmt.Errorf("read the job: %w", err)
	}
	var job guest.Job
	if err := json.Unmarshal(data, &job); err != nil {
		return nil, fmt.Errorf("read the job %s: %w", guest.JobPath, err)
	}
	// No device for tunnels in each network namespace, as modules of tunnels make one.
	if err := os.WriteFile("/proc/sys/net/core/fb_tunnels_only_for_init_net", []byte("2"), 0o644); err != nil {
		return nil, err
	}
	for _, path := range job.Modules {
		if err := loadModule(path); err != nil {
			return nil, fmt.Errorf("load module %s: %w", path, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("find the loopback device: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return nil, fmt.Errorf("bring the loopback device up: %w", err)
	}
	return &job, nil
}

func mountAll() error {
	mounts := []struct{ kind, dir string }{
		{"proc", "/proc"},
		{"sysfs", "/sys"},
		{"devtmpfs", "/dev"},
		{"tmpfs", "/tmp"},
		{"tmpfs", "/run"},
		{"cgroup2", "/sys/fs/cgroup"},
		{"bpf", "/sys/fs/bpf"},
	}
	for _, m := range mounts {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return fmt.Errorf("mount %s: %w", m.kind, err)
		}
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.kind, m.dir, err)
		}
	}
	return nil
}

func loadModule(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	err = unix.FinitModule(int(file.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(name.Release[:])
}

func runTest(test guest.Test, job *guest.Job) guest.Result {
	fmt.Printf("=== PACKAGE %s\n", test.Package)
	result := guest.Result{Package: test.Package}
	output := tally{out: os.Stdout, result: &result}
	cmd := exec.Command(test.Binary, job.Args...)
	cmd.Dir = test.Dir
	cmd.Env = append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/tmp",
		tier.EmulatedEnv + "=1",
	}, job.Env...)
	cmd.Stdout = &output
	cmd.Stderr = &output
	// A process that a test left behind holds the output open.
	cmd.WaitDelay = 10 * time.Second

	start := time.Now()
	err := cmd.Run()
	result.Seconds = time.Since(start).Seconds()
	output.end()
	if err != nil {
		result.Failure = err.Error()
	}
	return result
}
