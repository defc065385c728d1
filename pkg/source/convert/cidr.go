package convert

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/model"
)

// ServiceCIDR returns the ranges of a ServiceCIDR. One that is being deleted still has
// them: the API server keeps it while there are Services in it (KEP-1880).
func ServiceCIDR(c *networkingv1.ServiceCIDR) []netip.Prefix {
	return parsePrefixes(c.Spec.CIDRs)
}

// ClusterIPs returns the cluster IPs of a Service, whoever serves it.
func ClusterIPs(svc *corev1.Service) []netip.Addr {
	return parseAddrs(clusterIPs(&svc.Spec))
}

// Foreign reports whether a Service is left to another proxy.
func Foreign(svc *corev1.Service) bool {
	_, ok := svc.Labels[LabelServiceProxyName]
	return ok
}

// OwnCIDRs returns the ranges, sorted, in which no Service of another proxy has a cluster IP:
// an address that is no Service of ours in one of the others may be one of theirs. foreign
// are the cluster IPs of those Services.
func OwnCIDRs(ranges []netip.Prefix, foreign map[model.Name][]netip.Addr) []netip.Prefix {
	own := []netip.Prefix{}
	for _, p := range ranges {
		shared := false
		for name, ips := range foreign {
			if shared = slices.ContainsFunc(ips, p.Contains); shared {
				klog.V(2).InfoS("Service CIDR has a Service of another proxy, packets to its unallocated addresses are not dropped",
					"cidr", p, "service", name)
				break
			}
		}
		if !shared {
			own = append(own, p)
		}
	}
	slices.SortFunc(own, netip.Prefix.Compare)
	return slices.Compact(own)
}
