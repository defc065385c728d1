package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// agentPID returns the process of the agent on a node, as this machine numbers it.
func agentPID(n *node) (int, error) {
	network, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", n.pid()))
	if err != nil {
		return 0, err
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, process := range processes {
		name, err := os.ReadFile(filepath.Join(process, "comm"))
		if err != nil || strings.TrimSpace(string(name)) != "beeline-agent" {
			continue // one that has just ended has no name
		}
		if of, err := os.Readlink(filepath.Join(process, "ns/net")); err == nil && of == network {
			return strconv.Atoi(filepath.Base(process))
		}
	}
	return 0, errors.New("no agent runs on " + nodeName(n.index))
}

// beeline runs the command of that name on a node, in the agent's pod, and returns what it
// wrote to standard output.
func (c *cluster) beeline(ctx context.Context, n *node, args ...string) ([]byte, error) {
	pid, err := agentPID(n)
	if err != nil {
		return nil, err
	}
	// It says where the API server is.
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return nil, err
	}
	enter := []string{"--all", "--target", strconv.Itoa(pid), "/usr/local/bin/beeline"}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
	cmd.Env = strings.Split(strings.Trim(string(environment), "\x00"), "\x00")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, exit.Stderr)
	}
	return out, err
}

// agentBack waits until a node has an agent that serves, and is not a former process.
func (c *cluster) agentBack(ctx context.Context, n *node, former int) error {
	return c.await(ctx, "the agent of "+nodeName(n.index)+" serves", func() error {
		pid, err := agentPID(n)
		if err != nil {
			return err
		}
		if pid == former {
			return errors.New("it has not ended")
		}
		return probe(agentURL(n, 10256) + "/healthz")
	})
}

// agentURL returns the address of a page of the agent.
func agentURL(n *node, port int) string {
	return fmt.Sprintf("http://%s:%d", nodeAddrs(n.index)[0].Addr(), port)
}
