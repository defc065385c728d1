package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/cluster/loadstats"
)

// powerCutTask is the command that cuts the power of a node.
const powerCutTask = "powercut"

// The power cut: what each client asks a second, and how long failures are counted.
const (
	powerCutRate = 40
	powerCutTime = time.Minute
	powerCutStep = 5 * time.Second
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
	return c.verifyNodes(ctx)
}

// countFailures cuts the power of the last node and tells every five seconds what has failed, until
// all requests of that minute have ended.
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
	for at := powerCutStep; at <= powerCutTime+loadstats.Timeout; at += powerCutStep {
		if err := settle(ctx, time.Until(cut.Add(at))); err != nil {
			return err
		}
		now, err := t.read()
		if err != nil {
			return err
		}
		fmt.Printf("          %-8.0f", at.Seconds())
		for i := range now {
			fmt.Printf(" %24s", fmt.Sprintf("%d failed, %d answered", now[i].Failed-last[i].Failed, now[i].Short-last[i].Short))
		}
		fmt.Println()
		last = now
	}
	var errs []error
	for i, s := range t.sources {
		failed := last[i].Failed - before[i].Failed
		all := failed + last[i].Short - before[i].Short
		c.say("%s: %d of %d requests failed", s.name, failed, all)
		if c.ejects() && failed*100*c.Nodes > mostFailed*all {
			errs = append(errs, fmt.Errorf("%s: %d of %d requests failed, want at most %d %% of those to one of %d endpoints",
				s.name, failed, all, mostFailed, c.Nodes))
		}
	}
	return errors.Join(errs...)
}

// ejects reports whether Beeline ejects endpoints that fail.
func (c *cluster) ejects() bool {
	const set = "config.outlierDetection="
	return strings.Contains(c.Set, set) && !strings.Contains(c.Set, set+model.Outliers{}.String())
}
