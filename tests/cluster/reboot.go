package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/beeline-lb/beeline/tests/cluster/loadstats"
)

// reboot ends all that runs on the i-th node at once and starts it again.
func (c *cluster) reboot(ctx context.Context, i int) error {
	if err := c.cutPower(i); err != nil {
		return err
	}
	return c.restorePower(ctx, i)
}

// cutPower ends all that runs on the i-th node at once.
func (c *cluster) cutPower(i int) error {
	c.end(nodeName(i))
	if err := c.nodeGroups(i).remove(); err != nil {
		return err
	}
	return disconnectNode(i)
}

// restorePower starts the i-th node again, with what is on its disk. It returns when all its
// pods run again.
func (c *cluster) restorePower(ctx context.Context, i int) error {
	since := time.Now()
	n, err := c.startNode(i, nil)
	if err != nil {
		return err
	}
	c.nodes[i-1] = n
	if err := n.startKubelet(ctx); err != nil {
		return err
	}
	return c.await(ctx, "all pods of "+nodeName(i)+" run again", func() error {
		pods, err := c.podsOn(ctx, i)
		if err != nil {
			return err
		}
		for _, p := range pods {
			if err := startedSince(&p, since); err != nil {
				return err
			}
		}
		return nil
	})
}

// disconnectNode removes the i-th node's device on the fabric, which the kernel does some time
// after the end of the node.
func disconnectNode(i int) error {
	link, err := netlink.LinkByName(nodeName(i))
	if err == nil {
		err = netlink.LinkDel(link)
	}
	var gone netlink.LinkNotFoundError
	if errors.As(err, &gone) {
		return nil
	}
	return err
}

func (c *cluster) podsOn(ctx context.Context, i int) ([]corev1.Pod, error) {
	pods, err := c.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + nodeName(i)})
	if err != nil {
		return nil, err
	}
	return pods.Items, nil
}

// startedSince returns an error when a container of a pod is not ready, or is as the API server
// knew it before.
func startedSince(p *corev1.Pod, since time.Time) error {
	for _, s := range p.Status.ContainerStatuses {
		if !s.Ready || s.State.Running == nil || s.State.Running.StartedAt.Time.Before(since.Truncate(time.Second)) {
			return fmt.Errorf("pod %s is not ready", p.Name)
		}
	}
	return nil
}

// explainReboot returns the failures that a reboot of the i-th node, which has the servers,
// explains: new connections, and established ones of which the node is the target or has the
// server. One by the load balancer may lead through any node.
func explainReboot(i int, servers map[string]bool) explanation {
	return func(client string, path loadstats.Path) bool {
		if path.Server == "" || servers[path.Server] {
			return true
		}
		target := targetAddr(path.Target).Addr()
		for _, own := range nodeAddrs(i) {
			if own.Addr() == target {
				return true
			}
		}
		return client == outsideSource && inBalancerRange(target)
	}
}

// targetAddr returns the address and port in the URL of a target.
func targetAddr(target string) netip.AddrPort {
	_, host, _ := strings.Cut(target, "://")
	addr, _ := netip.ParseAddrPort(host)
	return addr
}

func inBalancerRange(addr netip.Addr) bool {
	return balancerRange(corev1.IPv4Protocol).Contains(addr) || balancerRange(corev1.IPv6Protocol).Contains(addr)
}
