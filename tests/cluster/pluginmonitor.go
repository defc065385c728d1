package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// checkMonitor looks at the connections of pods on all nodes by kubectl beeline monitor, as an
// administrator and as the operator. It ends it in both ways: when it is told to, and killed.
func (c *cluster) checkMonitor(ctx context.Context, service string) error {
	if err := c.applyWith(ctx, "clients.yaml", map[string]any{
		"LoadImage": loadImage, "Long": 0, "Rate": 5, "Targets": "http://" + service,
	}); err != nil {
		return err
	}
	for _, user := range []string{"admin", operator} {
		for _, end := range []os.Signal{os.Interrupt, os.Kill} {
			if err := c.watchMonitor(ctx, user, end); err != nil {
				return fmt.Errorf("kubectl beeline monitor, by %s, ended by %v: %w", user, end, err)
			}
		}
	}
	c.say("kubectl beeline monitor")
	_, err := c.kubectl(ctx, "delete", "daemonset/client", "--namespace=default")
	return err
}

// watchMonitor runs kubectl beeline monitor until it has shown a connection on each node, ends it, and
// waits until no node runs beeline monitor any more.
func (c *cluster) watchMonitor(ctx context.Context, user string, end os.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	cmd := c.pluginCommand(ctx, user, "monitor", "--service=default/echo", "--kind=connection")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	shown := make(map[string]bool)
	for lines := bufio.NewScanner(out); len(shown) < c.Nodes && lines.Scan(); {
		if node, event, _ := strings.Cut(lines.Text(), " "); strings.Contains(event, " connection TCP load[") {
			shown[node] = true
		}
	}
	running, err := c.monitors()
	if running != c.Nodes {
		err = errors.Join(err, fmt.Errorf("%d nodes run beeline monitor, and %d have shown a connection", running, len(shown)))
	}
	err = errors.Join(err, cmd.Process.Signal(end))
	ended := cmd.Wait()
	if (ended == nil) != (end == os.Interrupt) || said.Len() > 0 {
		err = errors.Join(err, fmt.Errorf("it ended with %v and said %q", ended, &said))
	}
	if err != nil {
		return err
	}
	return c.await(ctx, "no beeline monitor is left", func() error {
		running, err := c.monitors()
		if err == nil && running > 0 {
			err = fmt.Errorf("%d run", running)
		}
		return err
	})
}

// monitors returns how many beeline monitor run in the pods of all nodes.
func (c *cluster) monitors() (count int, err error) {
	for _, n := range c.nodes {
		lines, err := filepath.Glob(fmt.Sprintf("/proc/%d/root/proc/[0-9]*/cmdline", n.pid()))
		if err != nil {
			return 0, err
		}
		for _, path := range lines {
			line, err := os.ReadFile(path)
			if err == nil && bytes.HasPrefix(line, []byte("beeline\x00")) && bytes.Contains(line, []byte("\x00monitor\x00")) { // else it has ended
				count++
			}
		}
	}
	return count, nil
}
