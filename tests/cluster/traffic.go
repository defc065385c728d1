package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/tests/cluster/loadstats"
)

// traffic is what watches a change of the cluster: clients that keep count.
type traffic struct {
	cluster *cluster
	sources []source
}

// source is a running client.
type source struct {
	name string
	url  string // of its counts
}

// startOutside runs a client on the router: a host that is no part of the cluster.
func (t *traffic) startOutside(name string, args ...string) error {
	c := t.cluster
	port := 9000 + len(t.sources)
	args = append([]string{"run", fmt.Sprintf("--listen=127.0.0.1:%d", port)}, args...)
	d, err := startDaemon(c.logs, fmt.Sprintf("load-%d", port), exec.Command(c.loadProgram(), args...))
	if err != nil {
		return err
	}
	c.daemons = append(c.daemons, d)
	t.sources = append(t.sources, source{name, fmt.Sprintf("http://127.0.0.1:%d/stats", port)})
	return nil
}

// loadProgram is the file of the program load.
func (c *cluster) loadProgram() string { return filepath.Join(filepath.Dir(c.Images[1]), "load") }

// watchPods adds the clients in pods, or finds them again when they have other addresses.
func (t *traffic) watchPods(ctx context.Context, selector string) error {
	pods, err := t.cluster.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		name := podSource(p.Spec.NodeName)
		t.drop(name)
		t.sources = append(t.sources, source{name, fmt.Sprintf("http://%s:9000/stats", p.Status.PodIP)})
	}
	return nil
}

// drop forgets a client.
func (t *traffic) drop(name string) {
	t.sources = slices.DeleteFunc(t.sources, func(s source) bool { return s.name == name })
}

// outsideSource and podSource name the clients.
const outsideSource = "outside"

func podSource(node string) string { return "pod on " + node }

func (s source) read() (loadstats.Stats, error) {
	var stats loadstats.Stats
	resp, err := prober.Get(s.url)
	if err != nil {
		return stats, fmt.Errorf("counts of the client %s: %w", s.name, err)
	}
	defer resp.Body.Close()
	return stats, json.NewDecoder(resp.Body).Decode(&stats)
}

// read returns the counts of all clients, in their order.
func (t *traffic) read() ([]loadstats.Stats, error) {
	all := make([]loadstats.Stats, len(t.sources))
	for i, s := range t.sources {
		var err error
		if all[i], err = s.read(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// open returns how many long connections are open.
func (t *traffic) open() (int, error) {
	n := 0
	all, err := t.read()
	for _, stats := range all {
		n += stats.Open
	}
	return n, err
}

// check tells the counts and fails when anything went wrong, or when a client did
// nothing.
func (t *traffic) check(what string) error {
	t.cluster.say("%s", what)
	var errs []error
	var total loadstats.Stats
	fmt.Printf("          %-16s %6s %9s %7s %7s %7s %7s %7s %9s\n", "CLIENT", "LONG", "REQUESTS", "BROKEN", "SHORT", "FAILED", "UDP", "LOST", "SLOWEST")
	for _, s := range t.sources {
		stats, err := s.read()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Printf("          %-16s %6d %9d %7d %7d %7d %7d %7d %6d ms\n", s.name,
			stats.Open, stats.Requests, stats.Broken, stats.Short, stats.Failed, stats.Datagrams, stats.Lost, stats.Slowest)
		total.Open += stats.Open
		total.Broken += stats.Broken
		total.Short += stats.Short
		total.Failed += stats.Failed
		total.Datagrams += stats.Datagrams
		total.Lost += stats.Lost
		if stats.Broken+stats.Failed+stats.Lost > 0 {
			errs = append(errs, fmt.Errorf("%s: client %s: %d connections broken, %d failed, %d datagrams lost:\n  %s",
				what, s.name, stats.Broken, stats.Failed, stats.Lost, strings.Join(stats.Errors, "\n  ")))
		}
		if stats.Short == 0 {
			errs = append(errs, fmt.Errorf("%s: client %s got no answer at all", what, s.name))
		}
	}
	counted := fmt.Sprintf("%d long connections, %d broken; %d short, %d failed", total.Open, total.Broken, total.Short, total.Failed)
	if total.Datagrams+total.Lost > 0 {
		counted += fmt.Sprintf("; %d datagrams, %d lost", total.Datagrams, total.Lost)
	}
	return errors.Join(append(errs, t.cluster.counted(counted))...)
}

// serviceAddresses waits for the load balancer and returns the URLs by which a
// Service is asked: from outside the load balancer's first, then every node's, from pods
// its own, too.
func (c *cluster) serviceAddresses(ctx context.Context, name string) (inside, outside []string, err error) {
	svc, err := c.assignedService(ctx, "default", name)
	if err != nil {
		return nil, nil, err
	}
	for _, ip := range svc.Spec.ClusterIPs {
		inside = append(inside, url(ip, svc.Spec.Ports[0].Port))
	}
	for _, ingress := range svc.Status.LoadBalancer.Ingress {
		outside = append(outside, url(ingress.IP, svc.Spec.Ports[0].Port))
	}
	for i := 1; i <= c.Nodes; i++ {
		for _, addr := range nodeAddrs(i) {
			outside = append(outside, url(addr.Addr().String(), svc.Spec.Ports[0].NodePort))
		}
	}
	return append(inside, outside...), outside, nil
}

// assignedService waits until a Service has addresses of the load balancer.
func (c *cluster) assignedService(ctx context.Context, namespace, name string) (svc *corev1.Service, err error) {
	err = c.await(ctx, "Service "+name+" has its addresses", func() (err error) {
		svc, err = c.client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil && len(svc.Status.LoadBalancer.Ingress) != len(svc.Spec.ClusterIPs) {
			err = errors.New("the load balancer has not assigned them")
		}
		return err
	})
	return svc, err
}

func url(ip string, port int32) string {
	if strings.Contains(ip, ":") {
		ip = "[" + ip + "]"
	}
	return fmt.Sprintf("http://%s:%d", ip, port)
}

// answers waits until all URLs answer.
func (c *cluster) answers(ctx context.Context, urls ...string) error {
	for _, url := range urls {
		if err := c.await(ctx, url+" answers", func() error { return probe(url) }); err != nil {
			return err
		}
	}
	return nil
}

// probe returns an error unless a URL answers that all is well.
func probe(url string) error {
	resp, err := prober.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// settle lets the traffic run for a while.
func settle(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
