package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// The traffic during a migration: long connections, and short ones a second.
const (
	longOutside, longPod = 100, 34
	rateOutside, ratePod = 30, 10
	// outsideLifetime is how old connections from outside become, for a node is
	// handed back only when those through Beeline have ended.
	outsideLifetime = 40 * time.Second
)

// migrate replaces kube-proxy by Beeline node by node as docs/migration.md says,
// and goes back, under traffic from outside and from pods. No connection breaks
// and none fails.
func migrate(ctx context.Context, c *cluster) error {
	t := &traffic{cluster: c}
	if err := c.startTraffic(ctx, t, trafficOptions{lifetime: outsideLifetime}); err != nil {
		return err
	}
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"kube-proxy serves all nodes", func(context.Context) error { return nil }},
		{"Beeline serves all nodes", c.toBeeline},
		{"the rules of kube-proxy are gone", c.removeRules},
		{"kube-proxy serves all nodes again", c.toKubeProxy},
	} {
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("until %s: %w", step.what, err)
		}
		if err := settle(ctx, 10*time.Second); err != nil {
			return err
		}
		if err := t.check(step.what); err != nil {
			return err
		}
	}
	return nil
}

// trafficOptions change what startTraffic starts.
type trafficOptions struct {
	// lifetime is the age at which long connections from outside are renewed; zero is
	// never.
	lifetime time.Duration
	// shortInside and shortOutside are more targets of the short requests.
	shortInside, shortOutside []string
	// sockets is how many UDP sockets each client keeps.
	sockets int
	// sizes are those of the short requests by UDP, and largest6 is the largest of those by
	// IPv6, as load's flags take them.
	sizes    string
	largest6 int
}

// startTraffic starts servers and clients, outside and in pods, and waits until all
// long connections are made.
func (c *cluster) startTraffic(ctx context.Context, t *traffic, o trafficOptions) error {
	inside, outside, err := c.startEcho(ctx)
	if err != nil {
		return err
	}
	if err := c.startClients(ctx, inside, o, longPod, ratePod); err != nil {
		return err
	}
	if err := t.watchPods(ctx, "app=client"); err != nil {
		return err
	}
	args := []string{fmt.Sprintf("--long=%d", longOutside), fmt.Sprintf("--rate=%d", rateOutside),
		fmt.Sprintf("--lifetime=%s", o.lifetime), "--targets=" + strings.Join(outside, ","),
		"--short-targets=" + strings.Join(o.shortOutside, ","), fmt.Sprintf("--sockets=%d", o.sockets)}
	if o.sizes != "" {
		args = append(args, "--sizes="+o.sizes, fmt.Sprintf("--largest6=%d", o.largest6))
	}
	if err := t.startOutside(outsideSource, args...); err != nil {
		return err
	}
	return c.allOpen(ctx, t)
}

// startEcho starts the servers and returns the URLs of their Service, as serviceAddresses does, once
// those outside answer.
func (c *cluster) startEcho(ctx context.Context) (inside, outside []string, err error) {
	if err := c.apply(ctx, "echo.yaml"); err != nil {
		return nil, nil, err
	}
	if err := c.rolledOutIn(ctx, "default", "daemonset/echo"); err != nil {
		return nil, nil, err
	}
	if inside, outside, err = c.serviceAddresses(ctx, "echo"); err != nil {
		return nil, nil, err
	}
	return inside, outside, c.answers(ctx, outside...)
}

// startClients starts a client in a pod of each node, with so many long connections, and short ones a
// second.
func (c *cluster) startClients(ctx context.Context, targets []string, o trafficOptions, long, rate int) error {
	if err := c.applyWith(ctx, "clients.yaml", map[string]any{
		"LoadImage": loadImage, "Long": long, "Rate": rate, "Targets": strings.Join(targets, ","),
		"ShortTargets": strings.Join(o.shortInside, ","), "Sockets": o.sockets, "Sizes": o.sizes, "Largest6": o.largest6,
	}); err != nil {
		return err
	}
	return c.rolledOutIn(ctx, "default", "daemonset/client")
}

// allOpen waits until all long connections of startTraffic are made.
func (c *cluster) allOpen(ctx context.Context, t *traffic) error {
	return c.awaitOpen(ctx, t, longOutside+c.Nodes*longPod)
}

// awaitOpen waits until so many long connections are made.
func (c *cluster) awaitOpen(ctx context.Context, t *traffic, want int) error {
	return c.await(ctx, fmt.Sprintf("%d long connections", want), func() error {
		n, err := t.open()
		if err == nil && n < want {
			err = fmt.Errorf("%d are open", n)
		}
		return err
	})
}

// toBeeline has Beeline serve one node after the other.
func (c *cluster) toBeeline(ctx context.Context) error {
	if err := c.installChart(ctx, besideKubeProxy()); err != nil {
		return err
	}
	for i := 1; i <= c.Nodes; i++ {
		if err := c.replace(ctx, i, proxyKubeProxy, proxyBeeline); err != nil {
			return err
		}
		c.say("%s is Beeline's", nodeName(i))
	}
	return nil
}

// removeRules has Beeline remove what kube-proxy left and take its ports.
func (c *cluster) removeRules(ctx context.Context) error {
	return c.installChart(ctx, chartValues{"cleanupKubeProxy": true})
}

// toKubeProxy goes back, one node after the other.
func (c *cluster) toKubeProxy(ctx context.Context) error {
	if err := c.installChart(ctx, besideKubeProxy()); err != nil {
		return err
	}
	for i := 1; i <= c.Nodes; i++ {
		if err := c.replace(ctx, i, proxyBeeline, proxyKubeProxy); err != nil {
			return err
		}
		if err := c.drain(ctx, i); err != nil {
			return err
		}
		c.say("%s is kube-proxy's", nodeName(i))
	}
	return nil
}

// replace has a proxy run on the i-th node, and when it serves, another one end.
func (c *cluster) replace(ctx context.Context, i int, leaves, comes string) error {
	if err := c.want(ctx, i, comes, true); err != nil {
		return err
	}
	if err := c.rolledOut(ctx, "daemonset/"+comes); err != nil {
		return err
	}
	return c.want(ctx, i, leaves, false)
}

// want says whether a proxy is to run on the i-th node, and waits until it does or
// has ended.
func (c *cluster) want(ctx context.Context, i int, proxy string, wanted bool) error {
	label := proxyLabel(proxy) + "-"
	if wanted {
		label = proxyLabel(proxy) + "=wanted"
	}
	if _, err := c.kubectl(ctx, "label", "node", nodeName(i), label); err != nil {
		return err
	}
	return c.await(ctx, fmt.Sprintf("%s on %s is as wanted", proxy, nodeName(i)), func() error {
		names, err := c.kubectl(ctx, "get", "pods", "--namespace=kube-system", "--output=name",
			"--selector="+podSelectors[proxy], "--field-selector=spec.nodeName="+nodeName(i))
		if err == nil && (strings.TrimSpace(names) != "") != wanted {
			err = fmt.Errorf("pods there: %q", names)
		}
		return err
	})
}

// podSelectors find the pods of a proxy.
var podSelectors = map[string]string{
	proxyBeeline:   "app.kubernetes.io/name=beeline",
	proxyKubeProxy: "k8s-app=kube-proxy,app.kubernetes.io/name!=beeline",
}

// drain gives the i-th node, on which no agent runs any more, to kube-proxy.
func (c *cluster) drain(ctx context.Context, i int) error {
	pod := "drain-" + nodeName(i)
	if err := c.applyWith(ctx, "drain.yaml", map[string]any{"Pod": pod, "Node": nodeName(i), "Image": c.Image}); err != nil {
		return err
	}
	_, err := c.kubectl(ctx, "wait", "--namespace=kube-system", "--for=jsonpath={.status.phase}=Succeeded",
		"--timeout="+bootTimeout.String(), "pod/"+pod)
	if err != nil {
		logs, _ := c.kubectl(ctx, "logs", "--namespace=kube-system", pod)
		err = fmt.Errorf("%w\n%s", err, logs)
	}
	return err
}
