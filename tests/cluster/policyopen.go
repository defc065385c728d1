package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/tests/cluster/loadstats"
)

// policyConnections is how many connections, and UDP sockets, each client keeps.
const policyConnections = 4

// tryOpen has a policy that denies connections come while they are open, and returns what becomes
// of them, by the client.
func (r *policyRun) tryOpen(ctx context.Context, deny policyRule) (map[string]string, error) {
	t := &traffic{cluster: r.cluster}
	end, err := r.startLong(ctx, t)
	defer end()
	if err != nil {
		return nil, err
	}
	before, err := r.countLong(ctx, t)
	if err != nil {
		return nil, err
	}
	remove, err := r.applyPolicy(ctx, deny)
	if err != nil {
		return nil, err
	}
	err = r.await(ctx, deny.name, func() error {
		reading, err := r.read(ctx)
		if err == nil {
			err = reading.check(deny, r.settings)
		}
		return err
	})
	during, countErr := r.countLong(ctx, t)
	if err = errors.Join(err, countErr, settle(ctx, 2*soakSettle)); err != nil {
		return nil, errors.Join(err, remove())
	}
	after, err := r.countLong(ctx, t)
	outcomes := make(map[string]string)
	for name := range before {
		outcomes[name] = whatBecame(before[name], during[name], after[name])
	}
	return outcomes, errors.Join(err, remove())
}

// whatBecame says what became of open connections, by counts from before the policy came, from
// when it was in force, and from later.
func whatBecame(before, during, after loadstats.Stats) string {
	describe := func(goOn bool, ended int) string {
		switch {
		case goOn && ended == 0:
			return "goes on"
		case !goOn && ended > 0:
			return "ends"
		default:
			return fmt.Sprintf("goes on: %v, %d ended", goOn, ended)
		}
	}
	return "TCP " + describe(after.Requests > during.Requests, after.Broken-before.Broken) +
		", UDP " + describe(after.Datagrams > during.Datagrams, after.Lost-before.Lost)
}

// startLong starts clients that keep connections, and waits until all are open. What it returns
// ends them.
func (r *policyRun) startLong(ctx context.Context, t *traffic) (end func(), err error) {
	var http, udp []string
	for _, target := range r.targets(toClusterIP) {
		if strings.HasPrefix(target, "udp") {
			udp = append(udp, target)
		} else {
			http = append(http, target)
		}
	}
	nodes := []string{nodeName(1), nodeName(2)}
	end = func() {
		r.end("load-9000")
		for _, node := range nodes {
			_, _ = r.kubectl(ctx, "delete", "pod", "--namespace="+policyNamespace, "--wait", "long-"+node) // the next one with that name would fail
		}
	}
	if err := r.applyWith(ctx, "policy-long.yaml", map[string]any{
		"Nodes": nodes, "Namespace": policyNamespace, "LoadImage": loadImage, "Connections": policyConnections,
		"Targets": strings.Join(http, ","), "Datagrams": strings.Join(udp, ","),
	}); err != nil {
		return end, err
	}
	var local [2][]string
	for _, target := range r.targets(toNodePortLocal) {
		i := 0
		if strings.HasPrefix(target, "udp") {
			i = 1
		}
		local[i] = append(local[i], target)
	}
	if err := t.startOutside(outsideSource, fmt.Sprintf("--long=%d", policyConnections), fmt.Sprintf("--sockets=%d", policyConnections),
		"--targets="+strings.Join(local[0], ","), "--short-targets="+strings.Join(local[1], ",")); err != nil {
		return end, err
	}
	if _, err := r.kubectl(ctx, "wait", "--namespace="+policyNamespace, "--for=condition=Ready", "--timeout="+bootTimeout.String(), "pods", "--selector=role=long"); err != nil {
		return end, err
	}
	pods, err := r.client.CoreV1().Pods(policyNamespace).List(ctx, metav1.ListOptions{LabelSelector: "role=long"})
	if err != nil {
		return end, err
	}
	for _, p := range pods.Items {
		t.sources = append(t.sources, source{podSource(p.Spec.NodeName), fmt.Sprintf("http://%s:9000/stats", p.Status.PodIP)})
	}
	return end, r.await(ctx, "all connections are open", func() error {
		for _, s := range t.sources {
			stats, err := s.read()
			if err == nil && (stats.Open < policyConnections || stats.Datagrams < policyConnections) {
				err = fmt.Errorf("%s: %d connections are open, %d datagrams answered", s.name, stats.Open, stats.Datagrams)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// countLong returns the counts of all clients.
func (r *policyRun) countLong(ctx context.Context, t *traffic) (map[string]loadstats.Stats, error) {
	all := make(map[string]loadstats.Stats)
	for _, s := range t.sources {
		err := r.await(ctx, "counts of "+s.name, func() error {
			stats, err := s.read()
			all[s.name] = stats
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}
