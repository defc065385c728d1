package convert

import (
	"cmp"
	"maps"
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

// SortedCIDRs returns the ranges, each once.
func SortedCIDRs(ranges []netip.Prefix) []netip.Prefix {
	sorted := append([]netip.Prefix{}, ranges...)
	slices.SortFunc(sorted, netip.Prefix.Compare)
	return slices.Compact(sorted)
}

// MaxForeignIPs is how many addresses of Services of other proxies are let pass.
const MaxForeignIPs = 4096

// ForeignIPs returns the cluster IPs, sorted, that are let pass of Services that are left to other
// proxies. Anybody may leave a Service so: of too many, namespaces have their turns, and Services
// the order of their names.
func ForeignIPs(foreign map[model.Name][]netip.Addr) []netip.Addr {
	type service struct {
		model.Name
		place int // among those of its namespace
	}
	list, places := make([]service, 0, len(foreign)), make(map[string]int)
	for _, name := range slices.SortedFunc(maps.Keys(foreign), model.Name.Compare) {
		list = append(list, service{name, places[name.Namespace]})
		places[name.Namespace]++
	}
	slices.SortStableFunc(list, func(a, b service) int { return cmp.Compare(a.place, b.place) })
	var ips []netip.Addr
	for _, s := range list {
		if len(ips)+len(foreign[s.Name]) > MaxForeignIPs {
			klog.InfoS("Services of other proxies are too many, packets to the last ones' cluster IPs are dropped", "passing", len(ips), "first", s.Name)
			break
		}
		ips = append(ips, foreign[s.Name]...)
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	return slices.Compact(ips)
}
