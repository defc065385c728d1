package differential

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// minimise returns the smallest cluster that it finds of which fails is true, as it is of the
// one given: no Service, slice, endpoint, address or field can be left out of it. fails must
// not change its argument.
func minimise(c *cluster, fails func(*cluster) bool) *cluster {
	for smaller := true; smaller; {
		smaller = false
		for i := 0; ; {
			next := c.clone()
			steps := reductions(next)
			if i >= len(steps) {
				break
			}
			if !steps[i]() || !fails(next) {
				i++
				continue
			}
			c, smaller = next, true
		}
	}
	return c
}

// reductions returns the ways to make a cluster smaller, the largest first. Each says
// whether it has an effect.
func reductions(c *cluster) (steps []func() bool) {
	for _, s := range c.services {
		steps = append(steps, func() bool { c.remove(s.Name); return true })
	}
	for i := range c.slices {
		steps = append(steps, func() bool { c.slices = slices.Delete(c.slices, i, i+1); return true })
	}
	for _, e := range c.slices {
		for i := range e.Endpoints {
			steps = append(steps, func() bool { e.Endpoints = slices.Delete(e.Endpoints, i, i+1); return true })
		}
	}
	for _, s := range c.services {
		steps = append(steps, serviceReductions(c, s)...)
	}
	for _, e := range c.slices {
		steps = append(steps, func() bool { had := len(e.Annotations) > 0; e.Annotations = nil; return had })
		for i := range e.Endpoints {
			steps = append(steps, endpointReductions(&e.Endpoints[i])...)
		}
	}
	for i := range c.addrs {
		steps = append(steps, func() bool { c.addrs = slices.Delete(c.addrs, i, i+1); return true })
	}
	return append(steps, reset(&c.zone, zones[0]))
}

// reset sets what differs to a value.
func reset[T comparable](p *T, to T) func() bool {
	return func() bool {
		had := *p
		*p = to
		return had != to
	}
}

// unset sets what is set to nil.
func unset[T any](p **T) func() bool {
	return func() bool {
		had := *p != nil
		*p = nil
		return had
	}
}

func serviceReductions(c *cluster, s *corev1.Service) (steps []func() bool) {
	if len(s.Spec.Ports) > 1 {
		for i := range s.Spec.Ports {
			steps = append(steps, func() bool { s.Spec.Ports = slices.Delete(s.Spec.Ports, i, i+1); return true })
		}
	}
	if len(s.Spec.ClusterIPs) > 1 {
		for i := range s.Spec.ClusterIPs {
			steps = append(steps, func() bool {
				s.Spec.ClusterIPs = slices.Delete(s.Spec.ClusterIPs, i, i+1)
				s.Spec.IPFamilies = slices.Delete(s.Spec.IPFamilies, i, i+1)
				s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
				s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicySingleStack)
				return true
			})
		}
	}
	for i := range s.Spec.ExternalIPs {
		steps = append(steps, func() bool { s.Spec.ExternalIPs = slices.Delete(s.Spec.ExternalIPs, i, i+1); return true })
	}
	ingress := &s.Status.LoadBalancer.Ingress
	for i := range *ingress {
		steps = append(steps, func() bool { *ingress = slices.Delete(*ingress, i, i+1); return true }, unset(&(*ingress)[i].IPMode))
	}
	for i := range s.Spec.LoadBalancerSourceRanges {
		steps = append(steps, func() bool {
			s.Spec.LoadBalancerSourceRanges = slices.Delete(s.Spec.LoadBalancerSourceRanges, i, i+1)
			return true
		})
	}
	return append(steps,
		func() bool {
			had := s.Spec.SessionAffinity != ""
			s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = "", nil
			return had
		},
		func() bool { return reset(s.Spec.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)() },
		func() bool {
			return s.Spec.ExternalTrafficPolicy != "" && reset(&s.Spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)()
		},
		func() bool { had := len(s.Labels) > 0; s.Labels = nil; return had },
		func() bool { had := len(s.Annotations) > 0; s.Annotations = nil; return had },
	)
}

func endpointReductions(e *discoveryv1.Endpoint) []func() bool {
	return []func() bool{
		unset(&e.Hints), unset(&e.NodeName),
		unset(&e.Conditions.Ready), unset(&e.Conditions.Serving), unset(&e.Conditions.Terminating),
	}
}
