package main

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/beeline-lb/beeline/tests/kubeclient"
)

// cleanupFinalizer keeps a Service until its load balancer is gone, as the service
// controller of cloud providers does.
const cleanupFinalizer = "service.kubernetes.io/load-balancer-cleanup"

// probePeriod is the time between two health checks of a node for a Service.
const probePeriod = 2 * time.Second

// balancer stands in for a cloud's load balancers: it assigns addresses to
// Services of type LoadBalancer and sends connections to their addresses,
// untranslated, to nodes. A connection stays with its node. With
// externalTrafficPolicy Local only nodes whose health check passes get new ones.
type balancer struct {
	cluster  *cluster
	services cache.Store // of *corev1.Service
	changed  chan struct{}

	assigned map[string][]netip.Addr // by namespace/name
	used     map[netip.Addr]bool
	healthy  map[string][]int // nodes by namespace/name
	probed   time.Time
	rules    string // in force
}

// startBalancer runs a balancer until ctx ends.
func (c *cluster) startBalancer(ctx context.Context) error {
	if err := makeBalancerRoutes(c.Nodes); err != nil {
		return err
	}
	services := kubeclient.Informer(c.client.CoreV1().RESTClient(), "services", new(corev1.Service), 0, func(*metav1.ListOptions) {})
	b := &balancer{
		cluster: c, services: services.GetStore(), changed: make(chan struct{}, 1),
		assigned: make(map[string][]netip.Addr), used: make(map[netip.Addr]bool), healthy: make(map[string][]int),
	}
	tell := func() {
		select {
		case b.changed <- struct{}{}:
		default:
		}
	}
	_, err := services.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { tell() },
		UpdateFunc: func(any, any) { tell() },
		DeleteFunc: func(any) { tell() },
	})
	if err != nil {
		return err
	}
	go services.RunWithContext(ctx)
	go b.run(ctx)
	return nil
}

func (b *balancer) run(ctx context.Context) {
	tick := time.NewTicker(probePeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.changed:
		case <-tick.C:
		}
		if err := b.sync(ctx); err != nil && ctx.Err() == nil {
			b.cluster.say("load balancer: %v", err)
		}
	}
}

// sync does what the Services ask for now.
func (b *balancer) sync(ctx context.Context) error {
	var served []*corev1.Service
	for _, object := range b.services.List() {
		s := object.(*corev1.Service)
		wanted := s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.LoadBalancerClass == nil && s.DeletionTimestamp == nil
		var err error
		if !wanted {
			err = b.release(ctx, s)
		} else if err = b.assign(ctx, s); err == nil {
			served = append(served, s)
		}
		if err != nil {
			return fmt.Errorf("service %s/%s: %w", s.Namespace, s.Name, err)
		}
	}
	b.probe(ctx, served)
	return b.program(served)
}

func key(s *corev1.Service) string { return s.Namespace + "/" + s.Name }

// assign gives a Service an address of each of its families.
func (b *balancer) assign(ctx context.Context, s *corev1.Service) error {
	if len(b.assigned[key(s)]) != len(s.Spec.IPFamilies) {
		b.forget(key(s))
		for _, family := range s.Spec.IPFamilies {
			addr := balancerRange(family).Addr()
			for addr = addr.Next(); b.used[addr]; addr = addr.Next() {
			}
			b.used[addr] = true
			b.assigned[key(s)] = append(b.assigned[key(s)], addr)
		}
	}
	if !slices.Contains(s.Finalizers, cleanupFinalizer) {
		return b.update(ctx, s, func(s *corev1.Service) { s.Finalizers = append(s.Finalizers, cleanupFinalizer) })
	}
	if sameAddresses(s.Status.LoadBalancer.Ingress, b.assigned[key(s)]) {
		return nil
	}
	return b.setStatus(ctx, s, b.assigned[key(s)])
}

// release takes back what a Service no longer is to have.
func (b *balancer) release(ctx context.Context, s *corev1.Service) error {
	if !slices.Contains(s.Finalizers, cleanupFinalizer) {
		b.forget(key(s))
		return nil
	}
	b.forget(key(s))
	if len(s.Status.LoadBalancer.Ingress) > 0 {
		if err := b.setStatus(ctx, s, nil); err != nil {
			return err
		}
	}
	return b.update(ctx, s, func(s *corev1.Service) {
		s.Finalizers = slices.DeleteFunc(s.Finalizers, func(f string) bool { return f == cleanupFinalizer })
	})
}

func (b *balancer) forget(service string) {
	for _, addr := range b.assigned[service] {
		delete(b.used, addr)
	}
	delete(b.assigned, service)
	delete(b.healthy, service)
}

// update changes a Service. When it has changed meanwhile, the next round tries
// again.
func (b *balancer) update(ctx context.Context, s *corev1.Service, change func(*corev1.Service)) error {
	s = s.DeepCopy()
	change(s)
	_, err := b.cluster.client.CoreV1().Services(s.Namespace).Update(ctx, s, metav1.UpdateOptions{})
	return ignoreStale(err)
}

func (b *balancer) setStatus(ctx context.Context, s *corev1.Service, addrs []netip.Addr) error {
	current, err := b.cluster.client.CoreV1().Services(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
	if err != nil {
		return ignoreStale(err)
	}
	current.Status.LoadBalancer.Ingress = nil
	mode := corev1.LoadBalancerIPModeVIP
	for _, addr := range addrs {
		current.Status.LoadBalancer.Ingress = append(current.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: addr.String(), IPMode: &mode})
	}
	_, err = b.cluster.client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, current, metav1.UpdateOptions{})
	return ignoreStale(err)
}

func sameAddresses(have []corev1.LoadBalancerIngress, want []netip.Addr) bool {
	return slices.EqualFunc(have, want, func(i corev1.LoadBalancerIngress, a netip.Addr) bool { return i.IP == a.String() })
}

// probe asks each node for each Service with a health check, when it is time.
func (b *balancer) probe(ctx context.Context, served []*corev1.Service) {
	due := time.Since(b.probed) >= probePeriod
	if due {
		b.probed = time.Now()
	}
	for _, s := range served {
		if _, known := b.healthy[key(s)]; known && !due {
			continue
		}
		var nodes []int
		for i := 1; i <= b.cluster.Nodes; i++ {
			if s.Spec.HealthCheckNodePort == 0 || passes(ctx, i, s.Spec.HealthCheckNodePort) {
				nodes = append(nodes, i)
			}
		}
		b.healthy[key(s)] = nodes
	}
}

var prober = http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// passes reports whether the i-th node says that it has endpoints.
func passes(ctx context.Context, i int, port int32) bool {
	url := fmt.Sprintf("http://%s:%d/healthz", nodeAddrs(i)[0].Addr(), port)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := prober.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
