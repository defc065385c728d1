package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// moveEndpoints takes the endpoint of the node that announces the Service with the policy
// Local: another node announces it, and the other Service notices nothing. The endpoint comes
// back, and both nodes' are Services' again.
func (m *metalLBRun) moveEndpoints(ctx context.Context) error {
	before, err := m.resolve(m.services[localService])
	if err != nil {
		return err
	}
	known, err := m.failures(outsideSource, clusterService)
	if err != nil {
		return err
	}
	if err := m.leaveLocal(ctx, before); err != nil {
		return err
	}
	if err := m.unharmed(outsideSource, clusterService, known); err != nil {
		return err
	}
	pod, err := m.webPod(ctx, before)
	if err != nil {
		return err
	}
	if _, err := m.kubectl(ctx, "label", "pod", pod, "local=true"); err != nil {
		return err
	}
	return m.readyEndpoints(ctx, localService, m.Nodes)
}

// leaveLocal takes the i-th node's endpoint from the Service with the policy Local: another node
// announces and serves it.
func (m *metalLBRun) leaveLocal(ctx context.Context, i int) error {
	pod, err := m.webPod(ctx, i)
	if err != nil {
		return err
	}
	if _, err := m.kubectl(ctx, "label", "pod", pod, "local-"); err != nil {
		return err
	}
	node, err := m.announcedBy(ctx, m.services[localService], func(node int) bool { return node != i })
	if err != nil {
		return err
	}
	m.say("without an endpoint on %s, %s announces %s", nodeName(i), nodeName(node), localService)
	return m.checkLocal(ctx, node)
}

// failNode cuts the power of the node that announces one Service, while the other one has its
// endpoint on another node: that one notices nothing, and the first is announced by another
// node. The node comes back, and both are served.
func (m *metalLBRun) failNode(ctx context.Context) error {
	victim, err := m.resolve(m.services[clusterService])
	if err != nil {
		return err
	}
	if err := m.leaveLocal(ctx, victim); err != nil {
		return err
	}
	if err := m.startClient(ctx, witnessSource, localService); err != nil {
		return err
	}
	if err := m.failOver(ctx, victim); err != nil {
		return err
	}
	if err := m.restorePower(ctx, victim); err != nil {
		return err
	}
	if err := m.readyEndpoints(ctx, clusterService, m.Nodes); err != nil {
		return err
	}
	node, err := m.announcedBy(ctx, m.services[clusterService], func(int) bool { return true })
	if err != nil {
		return err
	}
	if err := m.allLong(ctx); err != nil {
		return err
	}
	m.say("%s is back, and %s announces %s", nodeName(victim), nodeName(node), clusterService)
	if err := m.unharmed(witnessSource, localService, failed{}); err != nil {
		return err
	}
	return m.undisturbed(ctx)
}

// failOver cuts the power of the i-th node and returns when another one announces what it did,
// and all new connections are served.
func (m *metalLBRun) failOver(ctx context.Context, i int) error {
	service := m.services[clusterService]
	since := time.Now()
	if err := m.cutPower(i); err != nil {
		return err
	}
	for _, addr := range service.addr {
		// By what the router hears: nobody tells it to ask again.
		if err := m.answers(ctx, url(addr.String(), 80)); err != nil {
			return err
		}
	}
	served := time.Since(since)
	node, err := m.announcedBy(ctx, service, func(node int) bool { return node != i })
	if err != nil {
		return err
	}
	m.say("without %s, %s announces %s; answered %.1f s later", nodeName(i), nodeName(node), clusterService, served.Seconds())
	// Until Kubernetes finds that the node is gone, its endpoint is one that serves.
	if err := m.readyEndpoints(ctx, clusterService, m.Nodes-1); err != nil {
		return err
	}
	return m.await(ctx, "every connection is served", func() error {
		hosts, _, err := service.ask()
		if err == nil && len(hosts) != m.Nodes-1 {
			err = fmt.Errorf("%v answered", hosts)
		}
		return err
	})
}

// undisturbed fails when a client has a failure while nothing happens.
func (m *metalLBRun) undisturbed(ctx context.Context) error {
	known := make(map[string]failed)
	for name := range m.services {
		var err error
		if known[name], err = m.failures(outsideSource, name); err != nil {
			return err
		}
	}
	if err := settle(ctx, 10*time.Second); err != nil {
		return err
	}
	for name, before := range known {
		if err := m.unharmed(outsideSource, name, before); err != nil {
			return err
		}
	}
	m.say("no connection fails any more")
	return nil
}

// readyEndpoints waits until a Service has so many endpoints of each family that are ready.
func (m *metalLBRun) readyEndpoints(ctx context.Context, service string, want int) error {
	return m.await(ctx, fmt.Sprintf("%s has %d endpoints", service, want), func() error {
		list, err := m.client.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=" + service,
		})
		if err != nil {
			return err
		}
		ready := make(map[discoveryv1.AddressType]int)
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				if e.Conditions.Ready != nil && *e.Conditions.Ready {
					ready[slice.AddressType]++
				}
			}
		}
		if ready[discoveryv1.AddressTypeIPv4] != want || ready[discoveryv1.AddressTypeIPv6] != want {
			return fmt.Errorf("ready are %v", ready)
		}
		return nil
	})
}

// failed is what failed of the client's connections at the addresses of a Service.
type failed struct {
	times  int
	latest []string
}

// failures returns what failed of a client's connections to a Service since the start.
func (m *metalLBRun) failures(client, service string) (f failed, err error) {
	i := slices.IndexFunc(m.traffic.sources, func(s source) bool { return s.name == client })
	stats, err := m.traffic.sources[i].read()
	if err != nil {
		return f, err
	}
	for path, failure := range stats.Failures {
		if m.services[service].has(targetAddr(path.Target).Addr()) {
			f.times += failure.Times
			f.latest = append(f.latest, failure.Latest)
		}
	}
	return f, nil
}

// unharmed fails when more of a client's connections to a Service failed than is known.
func (m *metalLBRun) unharmed(client, service string, known failed) error {
	now, err := m.failures(client, service)
	if err == nil && now.times > known.times {
		err = fmt.Errorf("%d connections to %s failed, the latest of each kind:\n  %s",
			now.times-known.times, service, strings.Join(now.latest, "\n  "))
	}
	return err
}
