package apiserver

import (
	"net/netip"
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// testServiceCIDRs: those of the cluster are known at the start, and followed; one in
// which another proxy has a Service stays, but for its address.
func testServiceCIDRs(t *testing.T, c *cluster) {
	sink := c.follow(t, c.server.Config, "node-a")
	cidrs := c.client.NetworkingV1().ServiceCIDRs()
	await := func(what string, want ...string) {
		t.Helper()
		var prefixes []netip.Prefix
		for _, w := range want {
			prefixes = append(prefixes, netip.MustParsePrefix(w))
		}
		slices.SortFunc(prefixes, netip.Prefix.Compare)
		sink.await(t, what, func() bool { return slices.Equal(sink.cidrs, prefixes) })
	}
	foreign := func(what string, sink *recorder, want ...netip.Addr) {
		t.Helper()
		sink.await(t, what, func() bool { return slices.Equal(sink.foreign, want) && len(sink.cidrs) == 3 })
	}
	const v4, v6, extra = "10.96.0.0/16", "fd00:10:96::/112", "10.111.0.0/24"
	await("the ranges of the API server", v4, v6)

	_, err := cidrs.Create(t.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "extra"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{extra}},
	}, metav1.CreateOptions{})
	must(t, err)
	await("one more", v4, v6, extra)

	proxied := c.service("proxied")
	proxied.Spec.ClusterIP = "10.96.77.7" // not of the range that was added
	proxied.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	proxied = c.createService(t, proxied)
	foreign("another proxy's Service in one", sink, netip.MustParseAddr("10.96.77.7"))
	foreign("another proxy's Service, known at the start", c.follow(t, c.server.Config, "node-a"), netip.MustParseAddr("10.96.77.7"))
	proxied.Labels = nil
	c.updateService(t, proxied)
	foreign("no other proxy any more", sink)

	must(t, cidrs.Delete(t.Context(), "extra", metav1.DeleteOptions{}))
	await("deleted", v4, v6)
}

// testNoRightToServiceCIDRs: the other objects are followed all the same.
func testNoRightToServiceCIDRs(t *testing.T, c *cluster) {
	rbac := c.client.RbacV1()
	_, err := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "limited"},
		Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"list", "watch"}, APIGroups: []string{"", "discovery.k8s.io"},
			Resources: []string{"services", "endpointslices", "nodes"},
		}},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "limited"},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "limited"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "limited"},
	}, metav1.CreateOptions{})
	must(t, err)
	c.createService(t, c.service("web"))
	limited := rest.CopyConfig(c.server.Config)
	limited.Impersonate.UserName = "limited"
	sink := c.follow(t, limited, "node-a")
	sink.mu.Lock()
	defer sink.mu.Unlock()
	if sink.atSync[c.name("web")] == nil || len(sink.cidrs) > 0 {
		t.Errorf("synced with ranges %v and Services %v", sink.cidrs, sink.atSync)
	}
}
