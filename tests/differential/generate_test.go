package differential

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestGenerateRepeats: a cluster follows from its seed and number.
func TestGenerateRepeats(t *testing.T) {
	a := generate(7, 3, nil)
	if b := generate(7, 3, nil); a.String() != b.String() {
		t.Errorf("the same numbers make\n%s\nand\n%s", a, b)
	}
	if b := generate(8, 3, nil); a.String() == b.String() {
		t.Error("another seed makes the same cluster")
	}
	before := a.String()
	if next := generate(7, 4, a); next.String() == before || a.String() != before {
		t.Errorf("changes of\n%s\nmade\n%s\nand left\n%s", before, next, a)
	}
}

// TestGenerateIsAllowed: no two Services want one address, port and protocol, ports have
// NodePorts as the type says, and slices belong to Services.
func TestGenerateIsAllowed(t *testing.T) {
	seen := make(map[string]bool)
	var c *cluster
	for number := range uint64(2000) {
		if number%fresh == 0 {
			c = nil
		}
		c = generate(1, number, c)
		taken := make(map[any]string)
		for _, s := range c.services {
			for _, f := range frontends(c, s) {
				if f.kind == kindUndeclared || f.kind == kindUnallocated {
					continue
				}
				key := [2]any{f.udp, f.to}
				if owner := taken[key]; owner != "" && owner != s.Name {
					t.Fatalf("cluster %d: %s and %s want %s", number, owner, s.Name, f.to)
				}
				taken[key] = s.Name
				seen[string(f.kind)] = true
			}
			for _, p := range s.Spec.Ports {
				if s.Spec.Type == corev1.ServiceTypeClusterIP && p.NodePort != 0 || s.Spec.Type == corev1.ServiceTypeNodePort && p.NodePort == 0 {
					t.Fatalf("cluster %d: %s of type %s has NodePort %d", number, s.Name, s.Spec.Type, p.NodePort)
				}
			}
			seen[string(s.Spec.Type)], seen["affinity "+string(s.Spec.SessionAffinity)] = true, true
			seen["external "+string(s.Spec.ExternalTrafficPolicy)] = true
			seen["internal "+string(*s.Spec.InternalTrafficPolicy)] = true
		}
		for _, e := range c.slices {
			if c.service(e.Labels[discoveryv1.LabelServiceName]) == nil {
				t.Fatalf("cluster %d: slice %s is of no Service", number, e.Name)
			}
		}
	}
	for _, want := range []string{
		"ClusterIP", "NodePort", "LoadBalancer", "external IP", "load-balancer IP", "affinity ClientIP", "affinity ",
		"external Cluster", "external Local", "internal Cluster", "internal Local",
	} {
		if !seen[want] {
			t.Errorf("no cluster has %q", want)
		}
	}
}

// TestReductionsAreAllowed: what makes a cluster smaller leaves it one.
func TestReductionsAreAllowed(t *testing.T) {
	c := generate(1, 0, nil)
	for i := range reductions(c) {
		next := c.clone()
		if changed := reductions(next)[i](); changed == (next.String() == c.String()) {
			t.Errorf("reduction %d says %t of\n%s", i, changed, next)
		}
		if slices.ContainsFunc(next.services, func(s *corev1.Service) bool {
			return len(s.Spec.Ports) == 0 || s.Spec.ClusterIP != s.Spec.ClusterIPs[0]
		}) {
			t.Errorf("reduction %d makes\n%s", i, next)
		}
	}
}
