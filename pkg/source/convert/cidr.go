package convert

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
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
