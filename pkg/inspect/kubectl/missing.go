package kubectl

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Missing returns the nodes that the agents' DaemonSets are for and that have none of these agents,
// each as an agent that is down. Taints are not looked at: a node whose taint keeps the agent away
// serves no Service, and is one of them. Without a DaemonSet nobody knows which nodes are to have an
// agent, and none is missing.
//
// The error is one of [k8s.io/apimachinery/pkg/api/errors.IsForbidden] for who may not list nodes, or
// the DaemonSets of the agents' namespace.
func (c *Cluster) Missing(ctx context.Context, agents []Agent) (missing []Agent, err error) {
	sets, err := c.daemonSets(ctx)
	if err != nil || len(sets) == 0 {
		return nil, err
	}
	err = inPages(metav1.ListOptions{}, func(o metav1.ListOptions) (string, error) {
		var page metav1.PartialObjectMetadataList
		err := getJSON(ctx, c.core.Get().Resource("nodes").VersionedParams(&o, c.parameters).SetHeader("Accept", metadataOnly), &page)
		for i := range page.Items {
			node := &corev1.Node{ObjectMeta: page.Items[i].ObjectMeta}
			has := slices.ContainsFunc(agents, func(a Agent) bool { return a.Node == node.Name })
			if !has && slices.ContainsFunc(sets, func(affinity nodeaffinity.RequiredNodeAffinity) bool { return selects(affinity, node) }) {
				missing = append(missing, c.noAgent(node.Name))
			}
		}
		return page.Continue, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	return missing, nil
}

// daemonSets returns which nodes each DaemonSet is for whose pods are agents.
func (c *Cluster) daemonSets(ctx context.Context) (sets []nodeaffinity.RequiredNodeAffinity, err error) {
	selector, err := labels.Parse(c.options.Selector)
	if err != nil {
		return nil, err
	}
	err = inPages(metav1.ListOptions{}, func(o metav1.ListOptions) (string, error) {
		var page appsv1.DaemonSetList
		err := getJSON(ctx, c.core.Get().AbsPath("/apis/apps/v1").Namespace(c.options.Namespace).Resource("daemonsets").VersionedParams(&o, c.parameters), &page)
		for i := range page.Items {
			pod := &page.Items[i].Spec.Template
			if selector.Matches(labels.Set(pod.Labels)) {
				sets = append(sets, nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: pod.Spec}))
			}
		}
		return page.Continue, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the DaemonSets of the agents: %w", err)
	}
	return sets, nil
}

// selects reports whether a DaemonSet is for a node. A term that cannot be read selects none, as for
// the DaemonSet's controller.
func selects(affinity nodeaffinity.RequiredNodeAffinity, node *corev1.Node) bool {
	selected, _ := affinity.Match(node)
	return selected
}
