package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// restarts is how often an add-on is restarted.
const restarts = 2

// restartSettle is how long the traffic goes on after each, longer than an add-on takes to
// look at everything anew.
const restartSettle = time.Minute

// datagramSizes are below, at and above what a datagram may have on the way to another node,
// by any of the networks of pods.
const datagramSizes = "1300,1350,1380,1400,1420,1450,1472,1500"

// restart restarts the add-on that connects the pods on one node after the other, under traffic
// from outside and from pods, among it datagrams as large as packets may be. Nothing may
// break or stay without an answer, and beeline verify finds nothing.
func restart(ctx context.Context, c *cluster) error {
	a, ok := addons[c.Fabric]
	if !ok {
		return errors.New("there is no add-on to restart, see --fabric")
	}
	t := &traffic{cluster: c}
	if err := c.startDatagrams(ctx, t); err != nil {
		return err
	}
	var errs []error
	for round := 1; round <= restarts; round++ {
		if err := c.restartAddon(ctx, a); err != nil {
			return err
		}
		c.say("%s runs again", c.Fabric)
		if err := settle(ctx, restartSettle); err != nil {
			return err
		}
		errs = append(errs, t.check(fmt.Sprintf("restart %d is over", round)), c.verifyNodes(ctx))
	}
	return errors.Join(errs...)
}

// startDatagrams starts the traffic with datagrams of all sizes beside it, which the add-on bounds.
func (c *cluster) startDatagrams(ctx context.Context, t *traffic) error {
	if err := c.applyWith(ctx, "datagrams.yaml", map[string]any{"App": "echo"}); err != nil {
		return err
	}
	inside, outside, err := c.serviceAddresses(ctx, "datagrams")
	if err != nil {
		return err
	}
	// The load balancer knows no fragments: the first addresses are its own.
	outside = outside[len(outside)-2*c.Nodes:]
	return c.startTraffic(ctx, t, trafficOptions{
		shortInside: byUDP(inside), shortOutside: byUDP(outside),
		sizes: datagramSizes, largest6: addons[c.Fabric].largest6,
	})
}

// restartAddon replaces the add-on's pods and waits until others run.
func (c *cluster) restartAddon(ctx context.Context, a addon) error {
	object := "daemonset/" + a.daemonSet
	if _, err := c.kubectl(ctx, "rollout", "restart", "--namespace="+a.namespace, object); err != nil {
		return err
	}
	return c.rolledOutIn(ctx, a.namespace, object)
}

// verifyNodes runs beeline verify on all nodes that Beeline serves. Nor may an agent have
// mended anything: a program that an add-on detaches is attached again within seconds.
func (c *cluster) verifyNodes(ctx context.Context) error {
	if c.Proxy != proxyBeeline {
		return nil
	}
	var errs []error
	for _, n := range c.nodes {
		if out, err := c.beeline(ctx, n, "verify"); err != nil {
			errs = append(errs, fmt.Errorf("beeline verify on %s: %w\n%s", nodeName(n.index), err, out))
		}
		mended, err := agentMetrics(n, "beeline_verify_findings_total")
		if err == nil && mended[0] > 0 {
			err = fmt.Errorf("the agent of %s has mended %.0f differences", nodeName(n.index), mended[0])
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
