// Package convert turns Kubernetes API objects into Beeline's model and holds
// the rules for objects that are not served.
//
// The functions are pure. Values that the API server would reject, but that an
// older one let in, are skipped one by one, so that they cost an object no more
// than themselves. The rules are kube-proxy's (v1.36).
package convert

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/beeline-lb/beeline/pkg/model"
)

// LabelServiceProxyName is set, with any value, on a Service that is left to
// another proxy.
const LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// maxAffinitySeconds is the longest time-out that the API allows.
const maxAffinitySeconds = 86400

// Service returns the model of svc, or nil when svc is not to be served: it is
// headless, of type ExternalName, or left to another proxy.
func Service(svc *corev1.Service, allowed Allowed) *model.Service {
	if !served(svc) {
		return nil
	}
	return Declared(svc, allowed)
}

// Declared returns the model of svc as it stands, which may lack addresses or not be served.
func Declared(svc *corev1.Service, allowed Allowed) *model.Service {
	spec := &svc.Spec
	out := &model.Service{
		Name:            model.Name{Namespace: svc.Namespace, Name: svc.Name},
		Created:         svc.CreationTimestamp.UTC(),
		Type:            string(spec.Type),
		ClusterIPs:      parseAddrs(clusterIPs(spec)),
		LoadBalancerIPs: unicast(parseAddrs(ingressIPs(svc.Status.LoadBalancer.Ingress))),
		SourceRanges:    parsePrefixes(spec.LoadBalancerSourceRanges),
		Ports:           servicePorts(spec.Ports),
		InternalLocal:   internalLocal(spec),
		ExternalLocal:   externalLocal(spec),
		AffinitySeconds: affinitySeconds(spec),
		HealthCheckPort: healthCheckPort(spec),
	}
	if !allowed.NoExternalIPs {
		out.ExternalIPs = unicast(parseAddrs(spec.ExternalIPs))
	}
	annotateService(out, svc.Annotations, allowed.Annotations)
	return out
}

func served(svc *corev1.Service) bool {
	if Foreign(svc) {
		return false
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return false
	}
	ip := clusterIPs(&svc.Spec)[0]
	return ip != "" && ip != corev1.ClusterIPNone
}

// clusterIPs returns at least one string, which may be empty.
func clusterIPs(spec *corev1.ServiceSpec) []string {
	if len(spec.ClusterIPs) > 0 {
		return spec.ClusterIPs
	}
	return []string{spec.ClusterIP}
}

// ingressIPs returns the IPs whose packets arrive at the node unchanged. With
// ipMode Proxy the load balancer sends to the node's own address (KEP-1860).
func ingressIPs(ingress []corev1.LoadBalancerIngress) []string {
	var ips []string
	for i := range ingress {
		mode := ingress[i].IPMode
		if mode == nil || *mode == corev1.LoadBalancerIPModeVIP {
			ips = append(ips, ingress[i].IP)
		}
	}
	return ips
}

func servicePorts(ports []corev1.ServicePort) []model.ServicePort {
	out := make([]model.ServicePort, 0, len(ports))
	for i := range ports {
		p := &ports[i]
		proto, err := model.ParseProtocol(string(p.Protocol))
		if err != nil || !validPort(p.Port) {
			continue
		}
		port := model.ServicePort{Name: p.Name, Protocol: proto, Port: uint16(p.Port)}
		if validPort(p.NodePort) {
			port.NodePort = uint16(p.NodePort)
		}
		out = append(out, port)
	}
	return slices.Clip(out)
}

func validPort(port int32) bool { return 0 < port && port <= math.MaxUint16 }

func internalLocal(spec *corev1.ServiceSpec) bool {
	policy := spec.InternalTrafficPolicy
	return policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal
}

// externalLocal is false for a Service that cannot be reached from outside: the
// API ignores its externalTrafficPolicy.
func externalLocal(spec *corev1.ServiceSpec) bool {
	external := spec.Type == corev1.ServiceTypeNodePort ||
		spec.Type == corev1.ServiceTypeLoadBalancer ||
		len(spec.ExternalIPs) > 0
	return external && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// affinitySeconds returns the default for a time-out that is missing or that
// the API does not allow.
func affinitySeconds(spec *corev1.ServiceSpec) uint32 {
	if spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		if s := *c.ClientIP.TimeoutSeconds; 0 < s && s <= maxAffinitySeconds {
			return uint32(s)
		}
	}
	return uint32(corev1.DefaultClientIPServiceAffinitySeconds)
}

// healthCheckPort is 0 for a Service that needs no health check: that is one whose
// traffic any node can take.
func healthCheckPort(spec *corev1.ServiceSpec) uint16 {
	if spec.Type != corev1.ServiceTypeLoadBalancer || !externalLocal(spec) || !validPort(spec.HealthCheckNodePort) {
		return 0
	}
	return uint16(spec.HealthCheckNodePort)
}
