package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// agentTimeout is how long the agent may take to serve.
const agentTimeout = 60 * time.Second

// agent is a running beeline-agent.
type agent struct {
	binary  string
	box     *sandbox
	cmd     *exec.Cmd
	log     string
	started time.Time
}

// startAgent runs the agent for the cgroup. Further flags may override those that
// it is always given.
func startAgent(box *sandbox, binary, kubeconfig, cgroup string, flags ...string) (*agent, error) {
	a := &agent{binary: binary, box: box, log: filepath.Join(box.dir, "agent.log")}
	out, err := os.Create(a.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	a.cmd = exec.Command(binary, append([]string{
		"--kubeconfig=" + kubeconfig, "--hostname-override=node", "--cgroup-root=" + cgroup,
		"--bpffs=" + box.bpffs, "--service-cluster-ip-range=" + services4.String(),
		"--healthz-bind-address=", "--min-sync-period=0", "--v=4",
	}, flags...)...)
	a.cmd.Stdout, a.cmd.Stderr = out, out
	a.started = time.Now()
	return a, a.cmd.Start()
}

// stop ends the agent and removes what it leaves in place.
func (a *agent) stop() error {
	if err := a.cmd.Process.Signal(unix.SIGTERM); err != nil {
		return err
	}
	if err := a.cmd.Wait(); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	out, err := exec.Command(a.binary, "--cleanup", "--bpffs="+a.box.bpffs).CombinedOutput()
	if err != nil {
		return fmt.Errorf("clean up after the agent: %w: %s", err, out)
	}
	return nil
}

// syncedLine matches the log line of a whole sync: klog's month, day and time of
// day, and how many Services were brought in.
var syncedLine = regexp.MustCompile(`^[IWE](\d{4} \d\d:\d\d:\d\d\.\d{6}) .*\] "Synced" services=(\d+) .*pending=0$`)

// synced waits for the first sync and returns when it ended. The sync must have
// brought in at least that many Services.
func (a *agent) synced(ctx context.Context, services int) (time.Time, error) {
	deadline := a.started.Add(agentTimeout)
	for time.Now().Before(deadline) {
		at, found, err := a.findSynced(services)
		if err != nil || found {
			return at, err
		}
		select {
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	log, _ := os.ReadFile(a.log)
	return time.Time{}, fmt.Errorf("the agent is not synced after %s: %s", agentTimeout, log)
}

func (a *agent) findSynced(services int) (at time.Time, found bool, err error) {
	log, err := os.ReadFile(a.log)
	if err != nil {
		return at, false, err
	}
	for line := range bytes.Lines(log) {
		match := syncedLine.FindSubmatch(bytes.TrimSpace(line))
		if match == nil {
			continue
		}
		count, err := strconv.Atoi(string(match[2]))
		if err != nil || count < services {
			return at, false, errors.Join(err, fmt.Errorf("the agent synced %d Services, want %d", count, services))
		}
		stamp := fmt.Sprintf("%d%s", a.started.Year(), match[1])
		at, err = time.ParseInLocation("20060102 15:04:05.000000", stamp, time.Local)
		return at, true, err
	}
	return at, false, nil
}

// memory returns a field of the agent's /proc/PID/status, MiB.
func (a *agent) memory(field string) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); f[0] == field+":" {
			kib, err := strconv.ParseFloat(f[1], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("the agent's status has no %s", field)
}

// cpuTime returns the CPU time that the agent has used.
func (a *agent) cpuTime() (time.Duration, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", a.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	var total time.Duration
	for _, path := range threads {
		stat, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		running, _, _ := strings.Cut(string(stat), " ")
		ns, err := strconv.ParseInt(running, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		total += time.Duration(ns)
	}
	return total, nil
}
