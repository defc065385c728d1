package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/beeline-lb/beeline/tests/cluster/loadstats"
)

// powerCutTask is the command that cuts the power of a node.
const powerCutTask = "powercut"

// The power cut: what each client asks a second, and how long failures are counted.
const (
	powerCutRate    = 40
	powerCutSeconds = 60
	// requestTimeout is load's.
	requestTimeout = 5
	// mostFailed is the share of the requests to the dead endpoint, in percent, that may fail with
	// outlier detection.
	mostFailed = 15
)

// powerCut cuts the power of the last node and counts the requests of clients elsewhere that fail in
// the minute after: of pods on the other nodes to ClusterIPs, and from outside by NodePorts of the other
// nodes. The dead node's endpoint is ready until Kubernetes misses the node. With
// --set=config.outlierDetection=on most of these requests are served all the same. Then the node
// comes back.
func powerCut(ctx context.Context, c *cluster) error {
	inside, outside, err := c.startEcho(ctx)
	if err != nil {
		return err
	}
	if err := c.startClients(ctx, inside[:len(inside)-len(outside)], trafficOptions{}, 0, powerCutRate); err != nil {
		return err
	}
	t := &traffic{cluster: c}
	if err := t.watchPods(ctx, "app=client"); err != nil {
		return err
	}
	t.drop(podSource(nodeName(c.Nodes)))
	nodePorts := outside[len(outside)-2*c.Nodes : len(outside)-2]
	if err := t.startOutside(outsideSource, fmt.Sprintf("--rate=%d", powerCutRate), "--targets="+strings.Join(nodePorts, ",")); err != nil {
		return err
	}
	if err := settle(ctx, 10*time.Second); err != nil {
		return err
	}
	if err := t.check("all nodes have power"); err != nil {
		return err
	}
	if err := c.countFailures(ctx, t); err != nil {
		return err
	}
	if err := c.restorePower(ctx, c.Nodes); err != nil {
		return err
	}
	c.say("%s is back", nodeName(c.Nodes))
	if c.Proxy == proxyBeeline {
		return c.verifyNodes(ctx)
	}
	return nil
}

// countFailures cuts the power of the last node and tells what fails each five seconds.
func (c *cluster) countFailures(ctx context.Context, t *traffic) error {
	before, err := t.read()
	if err != nil {
		return err
	}
	if err := c.cutPower(c.Nodes); err != nil {
		return err
	}
	c.say("%s has no power", nodeName(c.Nodes))
	fmt.Printf("          %-8s", "SECOND")
	for _, s := range t.sources {
		fmt.Printf(" %24s", s.name)
	}
	fmt.Println()
	last, cut := before, time.Now()
	for second := 5; second <= powerCutSeconds+requestTimeout; second += 5 {
		if err := settle(ctx, time.Until(cut.Add(time.Duration(second)*time.Second))); err != nil {
			return err
		}
		now, err := t.read()
		if err != nil {
			return err
		}
		fmt.Printf("          %-8d", second)
		for i := range now {
			fmt.Printf(" %24s", share(now[i].Failed-last[i].Failed, answered(now[i], last[i])))
		}
		fmt.Println()
		last = now
	}
	var errs []error
	for i, s := range t.sources {
		failed := last[i].Failed - before[i].Failed
		all := failed + answered(last[i], before[i])
		c.say("%s: %d of %d requests failed", s.name, failed, all)
		if c.ejects() && failed*100*c.Nodes > mostFailed*all {
			errs = append(errs, fmt.Errorf("%s: %d of %d requests failed, want at most %d %% of those to one of %d endpoints",
				s.name, failed, all, mostFailed, c.Nodes))
		}
	}
	return errors.Join(errs...)
}

// ejects reports whether Beeline ejects endpoints that fail.
func (c *cluster) ejects() bool { return strings.Contains(c.Set, "config.outlierDetection=") }

func answered(now, before loadstats.Stats) int { return now.Short - before.Short }

func share(failed, answered int) string {
	return fmt.Sprintf("%d failed, %d answered", failed, answered)
}
