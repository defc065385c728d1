package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
)

const (
	// waitTimeout is how long the agent may take for anything, on a busy machine, too.
	waitTimeout = time.Minute
	// logTail is how many lines of the agent's log a failure shows.
	logTail = 20
)

func (s *stage) agentLog() string { return filepath.Join(s.dir(), "agent.log") }

// agentFlags are those that tell the agent what to serve, and those that keep it
// apart from one that the machine may have.
func (s *stage) agentFlags() ([]string, error) {
	cgroup, err := s.cgroup()
	return []string{
		"--manifests=" + s.manifests(),
		"--service-cluster-ip-range=10.96.0.0/16,fd96::/112",
		"--cgroup-root=" + cgroup,
		"--bpffs=" + s.bpffs(),
		"--state-dir=" + filepath.Join(s.dir(), "state"),
		"--hostname-override=" + node,
		"--v=2",
	}, err
}

// startAgent starts the agent and returns when it serves.
func (s *stage) startAgent(ctx context.Context) (*exec.Cmd, error) {
	flags, err := s.agentFlags()
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(s.agentLog(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := s.in(ctx, node, filepath.Join(s.bin, "beeline-agent"), flags...)
	cmd.Stdout, cmd.Stderr = log, log
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	err = wait(ctx, "the agent to serve", func() error {
		status, err := inspected(s, (*inspect.Datapath).Status)
		if err == nil && (status.Agent.Started.Before(begin) || status.Agent.LastSync.Before(begin)) {
			err = errors.New("it has not synced")
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w; its log ends with\n%s", err, s.endOfLog())
	}
	return cmd, nil
}

func (s *stage) endOfLog() string {
	log, err := os.ReadFile(s.agentLog())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return strings.Join(lines[max(0, len(lines)-logTail):], "\n")
}

// wait calls ready every few milliseconds until it returns nil.
func wait(ctx context.Context, what string, ready func() error) error {
	for deadline := time.Now().Add(waitTimeout); ; {
		err := ready()
		switch {
		case err == nil:
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("waited %v for %s: %w", waitTimeout, what, err)
		}
		if err := sleep(ctx, 3*time.Millisecond); err != nil {
			return err
		}
	}
}

// sleep returns early, with an error, when ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// inspected reads something from the pinned maps.
func inspected[T any](s *stage, read func(*inspect.Datapath) (T, error)) (T, error) {
	datapath, err := inspect.Open(s.bpffs())
	if err != nil {
		var none T
		return none, err
	}
	defer datapath.Close()
	return read(datapath)
}

// service returns how a Service of the examples is served.
func (s *stage) service(name string) (*inspect.Service, error) {
	return inspected(s, func(d *inspect.Datapath) (*inspect.Service, error) {
		return d.Service(model.Name{Namespace: "default", Name: name})
	})
}

// usable returns the addresses that new connections to a Service are sent to.
func usable(service *inspect.Service) map[string]bool {
	addrs := make(map[string]bool)
	for _, port := range service.Ports {
		ids := make(map[uint32]bool)
		for _, id := range port.Cluster.Backends {
			ids[id] = true
		}
		for _, b := range port.Backends {
			if ids[b.ID] {
				addrs[b.Address.String()] = true
			}
		}
	}
	return addrs
}
