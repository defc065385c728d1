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
	}
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
