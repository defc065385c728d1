package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
)

// idlePods are the numbers of pods' devices that an idle agent serves: none, or all that there are.
var idlePods = []int{0, 100}

// idleTime is how long an agent is watched.
const idleTime = 20 * time.Second

// idleKey is what an agent that serves so many devices of pods is measured by.
func idleKey(pods int) string { return fmt.Sprintf("idle/%d", pods) }

// measureIdle measures the agent's CPU time while nothing changes: it looks again and again whether
// its programs are still attached.
func measureIdle(ctx context.Context, box *sandbox) (runs []samples, err error) {
	server, stop, err := startCluster(ctx, box.dir)
	if err != nil {
		return nil, err
	}
	defer stop()
	cgroup, err := enterControl(box)
	if err != nil {
		return nil, err
	}
	for i := range idlePods[len(idlePods)-1] {
		pod := netlink.NewVeth(netlink.LinkAttrs{Name: fmt.Sprintf("pod%d", i)})
		pod.PeerName = fmt.Sprintf("eth%d", i)
		if err := errors.Join(netlink.LinkAdd(pod), netlink.LinkSetUp(pod)); err != nil {
			return nil, fmt.Errorf("make device %s: %w", pod.Name, err)
		}
	}
	for range agentRuns {
		s := make(samples)
		for _, pods := range idlePods {
			flags := []string{"--socket-lb=host-namespace-only"}
			if pods > 0 {
				flags = append(flags, "--pod-devices=pod*")
			}
			a, err := startAgent(box, filepath.Join(os.Getenv(buildEnv), agentName), server.Kubeconfig, cgroup, flags...)
			if err != nil {
				return nil, err
			}
			used, err := a.idle(ctx)
			if err := errors.Join(err, a.stop()); err != nil {
				return nil, err
			}
			s.add(idleKey(pods), float64(used.Microseconds())/1e3/idleTime.Seconds())
		}
		runs = append(runs, s)
	}
	return runs, nil
}

// idle returns the CPU time that an agent uses in [idleTime] when all has been done.
func (a *agent) idle(ctx context.Context) (time.Duration, error) {
	if _, err := a.synced(ctx, 0); err != nil {
		return 0, err
	}
	time.Sleep(settle)
	before, err := a.cpuTime()
	if err != nil {
		return 0, err
	}
	time.Sleep(idleTime)
	after, err := a.cpuTime()
	return after - before, err
}
