package convert

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/beeline-lb/beeline/pkg/model"
)

// maxNodeAddrs is how many addresses of a Node count: a kubelet writes them, and all nodes store
// them.
const maxNodeAddrs = 16

// LocalNode returns the model of node. Its addresses are the InternalIPs, then the
// ExternalIPs, each in the object's order, so the first of a family is the
// primary one. Addresses of the types that hold names are no node IPs, whatever
// they look like.
func LocalNode(node *corev1.Node) *model.LocalNode {
	return &model.LocalNode{
		Name:  node.Name,
		Zone:  node.Labels[corev1.LabelTopologyZone],
		Addrs: nodeAddrs(node.Status.Addresses).all,

		PodRanges: podRanges(&node.Spec),
		Leaving:   leaving(node),
	}
}

// Node returns what other nodes know of node. Packets in a tunnel go to the first
// InternalIP of IPv4, of IPv6 when it has none, else to an ExternalIP.
func Node(node *corev1.Node) *model.Node {
	addrs := nodeAddrs(node.Status.Addresses)
	p := &model.Node{
		Name:  node.Name,
		Zone:  node.Labels[corev1.LabelTopologyZone],
		Addrs: addrs.all,
		Left:  addrs.left,

		PodRanges: podRanges(&node.Spec),
	}
	if !node.CreationTimestamp.IsZero() {
		p.Created = node.CreationTimestamp.Unix()
	}
	from := addrs.all[:addrs.internal]
	if len(from) == 0 {
		from = addrs.all
	}
	for _, addr := range from {
		if !p.Tunnel.IsValid() || p.Tunnel.Is6() && addr.Is4() {
			p.Tunnel = addr
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

// nodeAddresses are the addresses of a Node: of all that count, which are in order of their types,
// the first ones are InternalIPs.
type nodeAddresses struct {
	all            []netip.Addr
	internal, left int
}

func nodeAddrs(list []corev1.NodeAddress) (found nodeAddresses) {
	for _, t := range nodeIPTypes {
		for _, a := range list {
			addr, ok := parseAddr(a.Address)
			switch {
			case a.Type != t || !ok || slices.Contains(found.all, addr):
			case len(found.all) == maxNodeAddrs:
				found.left++
			default:
				found.all = append(found.all, addr)
			}
		}
		if t == corev1.NodeInternalIP {
			found.internal = len(found.all)
		}
	}
	return found
}
