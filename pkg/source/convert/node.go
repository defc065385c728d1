package convert

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/beeline-lb/beeline/pkg/model"
)

// LocalNode returns the model of node. Its addresses are the InternalIPs, then the
// ExternalIPs, each in the object's order, so the first of a family is the
// primary one. Addresses of the types that hold names are no node IPs, whatever
// they look like.
func LocalNode(node *corev1.Node) *model.LocalNode {
	return &model.LocalNode{
		Name:  node.Name,
		Zone:  node.Labels[corev1.LabelTopologyZone],
		Addrs: nodeAddrs(node.Status.Addresses),

		PodRanges: podRanges(&node.Spec),
		Leaving:   leaving(node),
	}
}

// Node returns what other nodes know of node. Packets in a tunnel go to the first
// InternalIP of IPv4, of IPv6 when it has none, else to an ExternalIP.
func Node(node *corev1.Node) *model.Node {
	p := &model.Node{Name: node.Name, Zone: node.Labels[corev1.LabelTopologyZone], Addrs: nodeAddrs(node.Status.Addresses)}
	for _, t := range nodeIPTypes {
		for _, addr := range addrsOf(node.Status.Addresses, t) {
			if !p.Tunnel.IsValid() || p.Tunnel.Is6() && addr.Is4() {
				p.Tunnel = addr
			}
		}
		if p.Tunnel.IsValid() {
			break
		}
	}
	return p
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

// taintToBeDeleted is the taint of a node that the cluster autoscaler is about
// to delete (KEP-3836).
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

func leaving(node *corev1.Node) bool {
	return !node.DeletionTimestamp.IsZero() || slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == taintToBeDeleted
	})
}

// nodeIPTypes are the types of addresses that are IPs, those of the cluster first.
var nodeIPTypes = [...]corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP}

func nodeAddrs(list []corev1.NodeAddress) []netip.Addr {
	var addrs []netip.Addr
	for _, t := range nodeIPTypes {
		for _, addr := range addrsOf(list, t) {
			if !slices.Contains(addrs, addr) {
				addrs = append(addrs, addr)
			}
		}
	}
	return addrs
}

// addrsOf returns the addresses of one type.
func addrsOf(list []corev1.NodeAddress, t corev1.NodeAddressType) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range list {
		if a.Type != t {
			continue
		}
		if addr, ok := parseAddr(a.Address); ok {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
