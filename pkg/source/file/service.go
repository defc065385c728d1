package file

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/beeline-lb/beeline/pkg/model"
)

// maxAffinitySeconds is the API's longest timeoutSeconds.
const maxAffinitySeconds = 86400

// defaultService fills in what the API server would.
func defaultService(svc *corev1.Service) {
	spec := &svc.Spec
	if svc.Namespace == "" {
		svc.Namespace = metav1.NamespaceDefault
	}
	if spec.Type == "" {
		spec.Type = corev1.ServiceTypeClusterIP
	}
	if spec.SessionAffinity == "" {
		spec.SessionAffinity = corev1.ServiceAffinityNone
	}
	for i := range spec.Ports {
		if spec.Ports[i].Protocol == "" {
			spec.Ports[i].Protocol = corev1.ProtocolTCP
		}
	}
}

// checkService checks what the API server checks of a new Service, as far as it
// bears on how it is served. svc has its defaults.
func (r *rules) checkService(svc *corev1.Service, root *field.Path) field.ErrorList {
	spec := root.Child("spec")
	errs := checkMeta(&svc.ObjectMeta, validation.IsDNS1123Label, root.Child("metadata"))
	errs = append(errs, oneOf(spec.Child("type"), svc.Spec.Type, corev1.ServiceTypeClusterIP,
		corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName)...)
	errs = append(errs, r.checkPorts(&svc.Spec, spec.Child("ports"))...)
	errs = append(errs, checkClusterIPs(&svc.Spec, spec)...)
	errs = append(errs, checkFamilies(&svc.Spec, spec)...)
	errs = append(errs, checkExternalIPs(svc.Spec.ExternalIPs, spec.Child("externalIPs"))...)
	errs = append(errs, checkAffinity(&svc.Spec, spec)...)
	errs = append(errs, checkPolicies(&svc.Spec, spec)...)
	errs = append(errs, checkLoadBalancer(&svc.Spec, spec)...)
	return append(errs, checkIngress(svc.Status.LoadBalancer.Ingress,
		root.Child("status", "loadBalancer", "ingress"))...)
}

func checkMeta(meta *metav1.ObjectMeta, validName func(string) []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if meta.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), "give the object a name"))
	} else {
		errs = append(errs, invalid(path.Child("name"), meta.Name, validName(meta.Name))...)
	}
	errs = append(errs, invalid(path.Child("namespace"), meta.Namespace, validation.IsDNS1123Label(meta.Namespace))...)
	return append(errs, metavalidation.ValidateLabels(meta.Labels, path.Child("labels"))...)
}

// invalid returns an error at path for each of reasons.
func invalid(path *field.Path, value any, reasons []string) field.ErrorList {
	var errs field.ErrorList
	for _, reason := range reasons {
		errs = append(errs, field.Invalid(path, value, reason))
	}
	return errs
}

func oneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, allowed)}
}

func checkProtocol(path *field.Path, p corev1.Protocol) field.ErrorList {
	return oneOf(path, p, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
}

func (r *rules) checkPorts(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(spec.Ports) == 0 && addressed(spec) {
		errs = append(errs, field.Required(path, "a Service with a cluster IP needs a port"))
	}
	type number struct {
		port  int32
		proto corev1.Protocol
	}
	names, ports, nodePorts := map[string]bool{}, map[number]bool{}, map[number]bool{}
	for i := range spec.Ports {
		p, at := &spec.Ports[i], path.Index(i)
		errs = append(errs, r.checkPort(spec, p, at)...)
		if p.Name == "" && len(spec.Ports) > 1 {
			errs = append(errs, field.Required(at.Child("name"), "each of several ports needs a name"))
		} else if names[p.Name] {
			errs = append(errs, field.Duplicate(at.Child("name"), p.Name))
		}
		names[p.Name] = true
		if key := (number{p.Port, p.Protocol}); ports[key] {
			errs = append(errs, field.Duplicate(at.Child("port"), fmt.Sprintf("%d/%s", p.Port, p.Protocol)))
		} else {
			ports[key] = true
		}
		if key := (number{p.NodePort, p.Protocol}); p.NodePort != 0 && nodePorts[key] {
			errs = append(errs, field.Duplicate(at.Child("nodePort"), fmt.Sprintf("%d/%s", p.NodePort, p.Protocol)))
		} else {
			nodePorts[key] = true
		}
	}
	return errs
}

func (r *rules) checkPort(spec *corev1.ServiceSpec, p *corev1.ServicePort, at *field.Path) field.ErrorList {
	errs := invalid(at.Child("port"), p.Port, validation.IsValidPortNum(int(p.Port)))
	errs = append(errs, checkProtocol(at.Child("protocol"), p.Protocol)...)
	if p.Name != "" {
		errs = append(errs, invalid(at.Child("name"), p.Name, validation.IsDNS1123Label(p.Name))...)
	}
	switch t := p.TargetPort; {
	case t.Type == intstr.String:
		errs = append(errs, invalid(at.Child("targetPort"), t.StrVal, validation.IsValidPortName(t.StrVal))...)
	case t.IntVal != 0: // 0 is not given
		errs = append(errs, invalid(at.Child("targetPort"), t.IntVal, validation.IsValidPortNum(int(t.IntVal)))...)
	}
	switch {
	case p.NodePort == 0:
	case !exposed(spec):
		errs = append(errs, field.Forbidden(at.Child("nodePort"), "only a Service of type NodePort or LoadBalancer has one"))
	case p.NodePort < int32(r.nodePorts.min) || int32(r.nodePorts.max) < p.NodePort:
		errs = append(errs, field.Invalid(at.Child("nodePort"), p.NodePort, fmt.Sprintf("must lie in %s", r.nodePorts)))
	}
	return errs
}

// addressed reports whether a Service is to have cluster IPs.
func addressed(spec *corev1.ServiceSpec) bool {
	ips := clusterIPs(spec)
	headless := len(ips) > 0 && ips[0] == corev1.ClusterIPNone
	return spec.Type != corev1.ServiceTypeExternalName && !headless
}

// clusterIPs returns the cluster IPs that a manifest gives, in either field.
func clusterIPs(spec *corev1.ServiceSpec) []string {
	if len(spec.ClusterIPs) == 0 && spec.ClusterIP != "" {
		return []string{spec.ClusterIP}
	}
	return spec.ClusterIPs
}

// clusterIPPath returns the path of the i-th of clusterIPs.
func clusterIPPath(spec *corev1.ServiceSpec, path *field.Path, i int) *field.Path {
	if len(spec.ClusterIPs) == 0 {
		return path.Child("clusterIP")
	}
	return path.Child("clusterIPs").Index(i)
}

// exposed reports whether a Service may have node ports.
func exposed(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer
}

func checkClusterIPs(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	ips := clusterIPs(spec)
	if len(ips) == 0 {
		return nil
	}
	var errs field.ErrorList
	at := clusterIPPath(spec, path, 0)
	if spec.ClusterIP != "" && spec.ClusterIP != ips[0] {
		errs = append(errs, field.Invalid(at, ips[0], "must be the value of clusterIP"))
	}
	if spec.Type == corev1.ServiceTypeExternalName {
		errs = append(errs, field.Forbidden(at, "a Service of type ExternalName has none"))
	}
	if slices.Contains(ips, corev1.ClusterIPNone) {
		if len(ips) > 1 {
			errs = append(errs, field.Invalid(path.Child("clusterIPs"), ips, "None must stand alone"))
		}
		if exposed(spec) {
			errs = append(errs, field.Invalid(at, corev1.ClusterIPNone,
				fmt.Sprintf("a Service of type %s cannot be headless", spec.Type)))
		}
		return errs
	}
	for i, ip := range ips {
		errs = append(errs, checkUnicast(clusterIPPath(spec, path, i), ip)...)
	}
	if len(errs) == 0 && (len(ips) > 2 || len(ips) == 2 && familyOf(ips[0]) == familyOf(ips[1])) {
		errs = append(errs, field.Invalid(path.Child("clusterIPs"), ips, "at most one of each IP family"))
	}
	return errs
}

// familyOf returns the family of a valid address.
func familyOf(ip string) model.Family { return model.FamilyOf(netip.MustParseAddr(ip)) }

// checkUnicast checks that ip is an address that one host can have.
func checkUnicast(path *field.Path, ip string) field.ErrorList {
	errs := validation.IsValidIPForLegacyField(path, ip, true, nil)
	if len(errs) > 0 {
		return errs
	}
	if !model.IsUnicast(netip.MustParseAddr(ip)) {
		return field.ErrorList{field.Invalid(path, ip, "must be a unicast address")}
	}
	return nil
}

func checkExternalIPs(ips []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, ip := range ips {
		errs = append(errs, checkExternal(path.Index(i), ip)...)
	}
	return errs
}

// checkExternal checks that ip is an address by which others reach a host.
func checkExternal(path *field.Path, ip string) field.ErrorList {
	errs := checkUnicast(path, ip)
	if len(errs) == 0 && netip.MustParseAddr(ip).IsLoopback() {
		errs = field.ErrorList{field.Invalid(path, ip, "must not be a loopback address")}
	}
	return errs
}

func checkAffinity(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	errs := oneOf(path.Child("sessionAffinity"), spec.SessionAffinity,
		corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP)
	config, at := spec.SessionAffinityConfig, path.Child("sessionAffinityConfig")
	if config == nil || config.ClientIP == nil {
		return errs
	}
	if spec.SessionAffinity == corev1.ServiceAffinityNone {
		return append(errs, field.Forbidden(at, "needs sessionAffinity: ClientIP"))
	}
	if s := config.ClientIP.TimeoutSeconds; s != nil {
		errs = append(errs, invalid(at.Child("clientIP", "timeoutSeconds"), *s,
			validation.IsInRange(int(*s), 1, maxAffinitySeconds))...)
	}
	return errs
}

func checkPolicies(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p := spec.InternalTrafficPolicy; p != nil {
		errs = append(errs, oneOf(path.Child("internalTrafficPolicy"), *p,
			corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)...)
	}
	p, at := spec.ExternalTrafficPolicy, path.Child("externalTrafficPolicy")
	if p == "" {
		return errs
	}
	errs = append(errs, oneOf(at, p, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)...)
	if !exposed(spec) && len(spec.ExternalIPs) == 0 {
		errs = append(errs, field.Forbidden(at, "needs type NodePort or LoadBalancer, or externalIPs"))
	}
	return errs
}

// healthChecked reports whether load balancers are to ask each node whether it has endpoints.
func healthChecked(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeLoadBalancer && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func checkLoadBalancer(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if at := path.Child("healthCheckNodePort"); spec.HealthCheckNodePort != 0 {
		if !healthChecked(spec) {
			errs = append(errs, field.Forbidden(at, "needs type LoadBalancer and externalTrafficPolicy: Local"))
		}
		errs = append(errs, invalid(at, spec.HealthCheckNodePort, validation.IsValidPortNum(int(spec.HealthCheckNodePort)))...)
		if slices.ContainsFunc(spec.Ports, func(p corev1.ServicePort) bool {
			return p.NodePort == spec.HealthCheckNodePort && p.Protocol == corev1.ProtocolTCP
		}) {
			errs = append(errs, field.Duplicate(at, spec.HealthCheckNodePort))
		}
	}
	for i, cidr := range spec.LoadBalancerSourceRanges {
		errs = append(errs, validation.IsValidCIDRForLegacyField(
			path.Child("loadBalancerSourceRanges").Index(i), strings.TrimSpace(cidr), false, nil)...)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		return errs
	}
	const reason = "needs type LoadBalancer"
	if len(spec.LoadBalancerSourceRanges) > 0 {
		errs = append(errs, field.Forbidden(path.Child("loadBalancerSourceRanges"), reason))
	}
	if spec.AllocateLoadBalancerNodePorts != nil {
		errs = append(errs, field.Forbidden(path.Child("allocateLoadBalancerNodePorts"), reason))
	}
	if spec.LoadBalancerClass != nil {
		errs = append(errs, field.Forbidden(path.Child("loadBalancerClass"), reason))
	}
	return errs
}

func checkIngress(ingress []corev1.LoadBalancerIngress, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range ingress {
		if ip := ingress[i].IP; ip != "" {
			errs = append(errs, checkExternal(path.Index(i).Child("ip"), ip)...)
		}
		if mode := ingress[i].IPMode; mode != nil {
			errs = append(errs, oneOf(path.Index(i).Child("ipMode"), *mode,
				corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy)...)
		}
	}
	return errs
}
