package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// upgradeRounds is how often the agents are replaced, twice each.
const upgradeRounds = 3

// upgrade upgrades the release to other settings, which replaces every agent, and
// rolls back, under traffic from outside and from pods. No connection breaks and
// none fails.
func upgrade(ctx context.Context, c *cluster) error {
	t := &traffic{cluster: c}
	if err := c.startTraffic(ctx, t, trafficOptions{}); err != nil {
		return err
	}
	for round := 1; round <= upgradeRounds; round++ {
		err := c.upgradeAndBack(ctx, []string{"--v=3"}, func(step string) error {
			return t.check(fmt.Sprintf("helm %s %d is over", step, round))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// upgradeAndBack upgrades the release to agents with other flags and rolls back. It calls
// check a while after all agents were replaced, twice.
func (c *cluster) upgradeAndBack(ctx context.Context, flags []string, check func(step string) error) error {
	before, err := c.agents(ctx)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"upgrade", func() error { return c.installChart(ctx, chartValues{"extraArgs": flags}) }},
		{"rollback", func() error { return c.helm(ctx, "rollback", "beeline") }},
	} {
		if err := step.do(); err != nil {
			return err
		}
		if before, err = c.replacedAgents(ctx, before); err != nil {
			return fmt.Errorf("helm %s: %w", step.what, err)
		}
		if err := settle(ctx, 5*time.Second); err != nil {
			return err
		}
		if err := check(step.what); err != nil {
			return err
		}
	}
	return nil
}

// replacedAgents waits until all agents run, and returns their names, which must
// not be those from before.
func (c *cluster) replacedAgents(ctx context.Context, before string) (string, error) {
	if err := c.rolledOut(ctx, "daemonset/beeline"); err != nil {
		return "", err
	}
	after, err := c.agents(ctx)
	if err == nil && after == before {
		err = fmt.Errorf("the agents are still %s", after)
	}
	return after, err
}

// agents returns the names of Beeline's pods.
func (c *cluster) agents(ctx context.Context) (string, error) {
	out, err := c.kubectl(ctx, "get", "pods", "--namespace=kube-system", "--output=name", "--selector="+podSelectors[proxyBeeline])
	return strings.Join(strings.Fields(out), " "), err
}
