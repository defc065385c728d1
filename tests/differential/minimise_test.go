package differential

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestMinimise: of clusters that fail for a Service with a Local policy and an endpoint that
// terminates, that Service and endpoint are left, with nothing else.
func TestMinimise(t *testing.T) {
	terminates := func(e *discoveryv1.EndpointSlice, service string) (n int) {
		for i := range e.Endpoints {
			if e.Labels[discoveryv1.LabelServiceName] == service && or(e.Endpoints[i].Conditions.Terminating, false) {
				n++
			}
		}
		return n
	}
	fails := func(c *cluster) bool {
		for _, s := range c.services {
			for _, e := range c.slices {
				if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && terminates(e, s.Name) > 0 {
					return true
				}
			}
		}
		return false
	}
	tried := 0
	for number := range uint64(200) {
		c := generate(1, number, nil)
		if !fails(c) {
			continue
		}
		tried++
		before := c.String()
		small := minimise(c, fails)
		if c.String() != before {
			t.Fatal("the cluster given has changed")
		}
		if !fails(small) || len(small.services) != 1 || len(small.slices) != 1 || len(small.slices[0].Endpoints) != 1 || len(small.addrs) != 0 {
			t.Fatalf("cluster %d became\n%s", number, small)
		}
		s, e := small.services[0].Spec, small.slices[0].Endpoints[0]
		if len(s.Ports) != 1 || len(s.ClusterIPs) != 1 || s.SessionAffinity != "" || e.Hints != nil || e.NodeName != nil || e.Conditions.Ready != nil {
			t.Fatalf("cluster %d became\n%s", number, small)
		}
	}
	if tried == 0 {
		t.Error("no cluster fails")
	}
}
