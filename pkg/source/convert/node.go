package convert

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/beeline-lb/beeline/pkg/model"
)

// Node returns the model of node. Its addresses are the InternalIPs, then the
// ExternalIPs, each in the object's order, so the first of a family is the
// primary one. Addresses of the types that hold names are no node IPs, whatever
// they look like.
func Node(node *corev1.Node) *model.Node {
	return &model.Node{
		Name:  node.Name,
		Zone:  node.Labels[corev1.LabelTopologyZone],
		Addrs: nodeAddrs(node.Status.Addresses),

		PodRanges: podRanges(&node.Spec),
		Leaving:   leaving(node),
	}
}

// podRanges returns those of both families; podCIDR alone is of objects from before
// podCIDRs.
func podRanges(spec *corev1.NodeSpec) []netip.Prefix {
	list := spec.PodCIDRs
	if len(list) == 0 {
		list = []string{spec.PodCIDR}
	}
	var ranges []netip.Prefix
	for _, s := range list {
		if p, err := netip.ParsePrefix(s); err == nil {
			ranges = append(ranges, p.Masked())
		}
	}
	return ranges
}

// taintToBeDeleted is what the cluster autoscaler puts on a node that it is about
// to delete (KEP-3836).
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

func leaving(node *corev1.Node) bool {
	return !node.DeletionTimestamp.IsZero() || slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == taintToBeDeleted
	})
}

func nodeAddrs(list []corev1.NodeAddress) []netip.Addr {
	var addrs []netip.Addr
	for _, t := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range list {
			if a.Type != t {
				continue
			}
			if addr, ok := parseAddr(a.Address); ok && !slices.Contains(addrs, addr) {
				addrs = append(addrs, addr)
			}
		}
	}
	return addrs
}
