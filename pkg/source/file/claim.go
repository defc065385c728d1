package file

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/beeline-lb/beeline/pkg/model"
)

// claim is something that at most one Service may have: a cluster IP (port is
// 0), a frontend, or a node port (addr is not valid).
type claim struct {
	addr  netip.Addr
	port  uint16
	proto model.Protocol
}

func (c claim) String() string {
	switch {
	case c.port == 0:
		return "cluster IP " + c.addr.String()
	case c.addr.IsValid():
		return fmt.Sprintf("%s/%s", netip.AddrPortFrom(c.addr, c.port), c.proto)
	}
	return fmt.Sprintf("node port %d/%s", c.port, c.proto)
}

// placed is a claim and the field path in its Service that makes it.
type placed struct {
	claim
	path string
}

// assignment are the addresses and ports assigned to a Service that did not choose.
type assignment struct {
	// ClusterIPs are those of the families whose address is not in the manifest.
	ClusterIPs []netip.Addr `json:"clusterIPs,omitempty"`
	// NodePorts are those of the ports without one in the manifest, by portKey.
	NodePorts map[string]uint16 `json:"nodePorts,omitempty"`
}

// portKey identifies a port of a Service by what clients know of it, so that its
// node port survives a new name.
func portKey(p *corev1.ServicePort) string { return fmt.Sprintf("%s/%d", p.Protocol, p.Port) }

// wanted returns what of a is still of use to Service o.
func (a assignment) wanted(o *object) assignment {
	var w assignment
	for _, f := range o.unaddressed() {
		for _, ip := range a.ClusterIPs {
			if model.FamilyOf(ip) == f {
				w.ClusterIPs = append(w.ClusterIPs, ip)
			}
		}
	}
	for _, p := range o.portsToAssign() {
		if n := a.NodePorts[portKey(p)]; n != 0 {
			w.setNodePort(p, n)
		}
	}
	return w
}

func (a *assignment) setNodePort(p *corev1.ServicePort, n uint16) {
	if a.NodePorts == nil {
		a.NodePorts = map[string]uint16{}
	}
	a.NodePorts[portKey(p)] = n
}

// unaddressed returns the families that o is to get a cluster IP of.
func (o *object) unaddressed() []model.Family {
	return o.families[min(len(o.families), len(clusterIPs(&o.service.Spec))):]
}

// portsToAssign returns the ports that are to get a node port.
func (o *object) portsToAssign() []*corev1.ServicePort {
	spec := &o.service.Spec
	if allocate := spec.AllocateLoadBalancerNodePorts; !exposed(spec) || allocate != nil && !*allocate {
		return nil
	}
	var ports []*corev1.ServicePort
	for i := range spec.Ports {
		if spec.Ports[i].NodePort == 0 {
			ports = append(ports, &spec.Ports[i])
		}
	}
	return ports
}

// claims returns what Service o needs to itself when a is assigned to it.
func (o *object) claims(a assignment) []placed {
	if len(o.families) == 0 {
		return nil
	}
	spec := &o.service.Spec
	var all []placed
	add := func(addr netip.Addr, path string) {
		for _, p := range spec.Ports {
			all = append(all, placed{claim{addr, uint16(p.Port), protocol(p.Protocol)}, path})
		}
	}
	for i, ip := range clusterIPs(spec) {
		addr, path := netip.MustParseAddr(ip), clusterIPPath(spec, field.NewPath("spec"), i).String()
		all = append(all, placed{claim{addr: addr}, path})
		add(addr, path)
	}
	for _, addr := range a.ClusterIPs {
		all = append(all, placed{claim{addr: addr}, "spec"})
		add(addr, "spec")
	}
	for i, ip := range spec.ExternalIPs {
		add(netip.MustParseAddr(ip), fmt.Sprintf("spec.externalIPs[%d]", i))
	}
	for i, ingress := range o.service.Status.LoadBalancer.Ingress {
		if mode := ingress.IPMode; ingress.IP != "" && (mode == nil || *mode == corev1.LoadBalancerIPModeVIP) {
			add(netip.MustParseAddr(ingress.IP), fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i))
		}
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		if n := max(uint16(p.NodePort), a.NodePorts[portKey(p)]); n != 0 {
			path := fmt.Sprintf("spec.ports[%d].nodePort", i)
			all = append(all, placed{claim{port: n, proto: protocol(p.Protocol)}, path})
		}
	}
	return all
}

// protocol returns the protocol of a checked port.
func protocol(p corev1.Protocol) model.Protocol {
	proto, _ := model.ParseProtocol(string(p))
	return proto
}

// with returns a Service as the API server would hand it out: with a filled in.
func (o *object) with(a assignment) *corev1.Service {
	svc := o.service.DeepCopy()
	spec := &svc.Spec
	spec.ClusterIPs = slices.Clone(clusterIPs(spec))
	for _, ip := range a.ClusterIPs {
		spec.ClusterIPs = append(spec.ClusterIPs, ip.String())
	}
	if len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	spec.IPFamilies = nil
	for _, f := range o.families {
		spec.IPFamilies = append(spec.IPFamilies, apiFamily(f))
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		if n, ok := a.NodePorts[portKey(p)]; ok {
			p.NodePort = int32(n)
		}
	}
	return svc
}
