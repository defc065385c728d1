package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// upgrade upgrades the release to other settings, which replaces every agent, and
// rolls back, under traffic from outside and from pods. No connection breaks and
// none fails.
func upgrade(ctx context.Context, c *cluster) error {
	t := &traffic{cluster: c}
	if err := c.startTraffic(ctx, t, 0); err != nil {
		return err
	}
	before, err := c.agents(ctx)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"helm upgrade is over", func() error { return c.installChart(ctx, chartValues{"extraArgs": []string{"--v=3"}}) }},
		{"helm rollback is over", func() error { return c.helm(ctx, "rollback", "beeline", "1") }},
	} {
		if err := step.do(); err != nil {
			return err
		}
		if err := c.rolledOut(ctx, "daemonset/beeline"); err != nil {
			return err
		}
		after, err := c.agents(ctx)
		if err != nil {
			return err
		}
		if after == before {
			return fmt.Errorf("%s: the agents are still %s", step.what, after)
		}
		before = after
		if err := settle(ctx, 5*time.Second); err != nil {
			return err
		}
		if err := t.check(step.what); err != nil {
			return err
		}
	}
	return nil
}

// agents returns the names of Beeline's pods.
func (c *cluster) agents(ctx context.Context) (string, error) {
	out, err := c.kubectl(ctx, "get", "pods", "--namespace=kube-system", "--output=name", "--selector="+podSelectors[proxyBeeline])
	return strings.Join(strings.Fields(out), " "), err
}
