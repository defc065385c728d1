package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The rolling update: as many servers as leave some nodes with none at times.
const (
	rolloutReplicas = 3
	rolloutRate     = 500 // requests a second
	rolloutGrace    = 10 * time.Second
	rollouts        = 2
	// Connections that end by themselves within the time that a pod has to terminate.
	rolloutLong     = 20
	rolloutLifetime = 15 * time.Second
)

// rollout replaces the pods behind a load balancer that leads only to nodes with
// endpoints (externalTrafficPolicy Local, a health check every two seconds), while
// requests come from outside. None fails, and the pods see the client's address. With Beeline those of
// another Service are replaced, too, which end with their SIGTERM at once, and whose connections take
// longer than a request: a preStop hook waits for them.
func rollout(ctx context.Context, c *cluster) error {
	names := []string{"web"}
	if err := c.startWeb(ctx, "web", corev1.ServiceExternalTrafficPolicyLocal, false); err != nil {
		return err
	}
	_, outside, err := c.serviceAddresses(ctx, "web")
	if err != nil {
		return err
	}
	// NodePorts of nodes without a server drop by design: only the load balancer's.
	balanced := outside[:2]
	if err := c.answers(ctx, balanced...); err != nil {
		return err
	}
	t := &traffic{cluster: c}
	if err := t.startOutside(outsideSource, fmt.Sprintf("--rate=%d", rolloutRate), "--targets="+strings.Join(balanced, ",")); err != nil {
		return err
	}
	if c.Proxy == proxyBeeline {
		names = append(names, "drained")
		if err := c.startDrained(ctx, t); err != nil {
			return err
		}
	}
	for i := 1; i <= rollouts; i++ {
		if err := settle(ctx, 5*time.Second); err != nil {
			return err
		}
		if err := c.replacePods(ctx, names...); err != nil {
			return err
		}
		if err := t.check(fmt.Sprintf("rolling update %d is over", i)); err != nil {
			return err
		}
	}
	return c.checkRollout(t)
}

// startDrained starts servers that wait until their connections have ended, and a client that has some.
func (c *cluster) startDrained(ctx context.Context, t *traffic) error {
	if err := c.startWeb(ctx, "drained", corev1.ServiceExternalTrafficPolicyCluster, true); err != nil {
		return err
	}
	_, outside, err := c.serviceAddresses(ctx, "drained")
	if err != nil {
		return err
	}
	if err := c.answers(ctx, outside...); err != nil {
		return err
	}
	return t.startOutside("outside, long", fmt.Sprintf("--long=%d", rolloutLong), fmt.Sprintf("--lifetime=%s", rolloutLifetime), "--rate=10",
		"--targets="+strings.Join(outside, ","))
}

// startWeb starts servers that can be replaced, and their Service. One that waits has no grace, but a
// preStop hook.
func (c *cluster) startWeb(ctx context.Context, name string, policy corev1.ServiceExternalTrafficPolicy, waits bool) error {
	grace := rolloutGrace
	if waits {
		grace = 0
	}
	if err := c.applyWith(ctx, "web.yaml", map[string]any{
		"Name": name, "Policy": policy, "Replicas": rolloutReplicas, "LoadImage": loadImage, "Grace": grace, "Waits": waits,
	}); err != nil {
		return err
	}
	return c.rolledOutIn(ctx, "default", "deployment/"+name)
}

// replacePods replaces the pods of deployments and waits until the old ones have ended.
func (c *cluster) replacePods(ctx context.Context, names ...string) error {
	for _, name := range names {
		if _, err := c.kubectl(ctx, "rollout", "restart", "deployment/"+name); err != nil {
			return err
		}
	}
	for _, name := range names {
		if err := c.rolledOutIn(ctx, "default", "deployment/"+name); err != nil {
			return err
		}
		if err := c.podCount(ctx, "app="+name, rolloutReplicas); err != nil {
			return err
		}
	}
	return nil
}

// podCount waits until there are so many pods, those that end included.
func (c *cluster) podCount(ctx context.Context, selector string, want int) error {
	return c.await(ctx, "the other pods have ended", func() error {
		pods, err := c.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err == nil && len(pods.Items) != want {
			err = fmt.Errorf("%d pods", len(pods.Items))
		}
		return err
	})
}

// checkRollout fails when a pod saw another address than the client's, or when
// pods were not replaced at all.
func (c *cluster) checkRollout(t *traffic) error {
	stats, err := t.sources[0].read()
	if err != nil {
		return err
	}
	var errs []error
	for client, n := range stats.Clients {
		if !slices.Contains(clientAddrs, client) {
			errs = append(errs, fmt.Errorf("%d requests came from %s for the pods, want %v", n, client, clientAddrs))
		}
	}
	if want := rolloutReplicas * (rollouts + 1); len(stats.Hosts) != want {
		errs = append(errs, fmt.Errorf("%d pods answered, want all %d", len(stats.Hosts), want))
	}
	if errors.Join(errs...) == nil {
		c.say("%d pods answered, and saw the client's address", len(stats.Hosts))
	}
	return errors.Join(errs...)
}
