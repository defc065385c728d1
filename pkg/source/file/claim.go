package file

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

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

// placed is a claim and the field of its Service that makes it.
type placed struct {
	claim
	at place
}

// place is a field of a Service; those in a list have an index.
type place struct {
	field string
	index int
}

// The fields that make claims.
const (
	inSpec       = "spec"
	inClusterIP  = "spec.clusterIP"
	inClusterIPs = "spec.clusterIPs[%d]"
	inExternal   = "spec.externalIPs[%d]"
	inIngress    = "status.loadBalancer.ingress[%d].ip"
	inNodePort   = "spec.ports[%d].nodePort"
	inHealth     = "spec.healthCheckNodePort"
)

func (p place) String() string {
	if strings.Contains(p.field, "%d") {
		return fmt.Sprintf(p.field, p.index)
	}
	return p.field
}

// assignment are the addresses and ports assigned to a Service that did not choose.
type assignment struct {
	// ClusterIPs are those of the families whose address is not in the manifest.
	ClusterIPs []netip.Addr `json:"clusterIPs,omitempty"`
	// NodePorts are those of the ports without one in the manifest, by portKey.
	NodePorts map[string]uint16 `json:"nodePorts,omitempty"`
	// HealthCheckNodePort is 0 for a Service that needs none or has one in the manifest.
	HealthCheckNodePort uint16 `json:"healthCheckNodePort,omitempty"`
}

// empty reports whether the Service chose everything.
func (a assignment) empty() bool {
	return len(a.ClusterIPs)+len(a.NodePorts) == 0 && a.HealthCheckNodePort == 0
}

func (a assignment) equal(b assignment) bool {
	return slices.Equal(a.ClusterIPs, b.ClusterIPs) && maps.Equal(a.NodePorts, b.NodePorts) &&
		a.HealthCheckNodePort == b.HealthCheckNodePort
}

// portKey identifies a port of a Service by what clients know of it, so that its
// node port survives a new name.
func portKey(p *model.ServicePort) string { return fmt.Sprintf("%s/%d", p.Protocol, p.Port) }

// wanted returns what of a is still of use to s.
func (a assignment) wanted(s *declared) assignment {
	var w assignment
	for _, f := range s.unaddressed() {
		for _, ip := range a.ClusterIPs {
			if model.FamilyOf(ip) == f {
				w.ClusterIPs = append(w.ClusterIPs, ip)
			}
		}
	}
	for p := range s.portsToAssign() {
		if n := a.NodePorts[portKey(p)]; n != 0 && !s.chose(n, p.Protocol) {
			w.setNodePort(p, n)
		}
	}
	if n := a.HealthCheckNodePort; s.healthCheck && !s.chose(n, model.TCP) {
		w.HealthCheckNodePort = n
	}
	return w
}

// chose reports whether the manifest of s gives a node port to something.
func (s *declared) chose(n uint16, protocol model.Protocol) bool {
	return protocol == model.TCP && n == s.model.HealthCheckPort ||
		slices.ContainsFunc(s.model.Ports, func(p model.ServicePort) bool { return p.NodePort == n && p.Protocol == protocol })
}

func (a *assignment) setNodePort(p *model.ServicePort, n uint16) {
	if a.NodePorts == nil {
		a.NodePorts = map[string]uint16{}
	}
	a.NodePorts[portKey(p)] = n
}

// nodePort returns the node port of a port that chose or was assigned one; 0 is none.
func (a assignment) nodePort(p *model.ServicePort) uint16 {
	if p.NodePort != 0 || len(a.NodePorts) == 0 {
		return p.NodePort
	}
	return a.NodePorts[portKey(p)]
}

// unaddressed returns the families that s is to get a cluster IP of.
func (s *declared) unaddressed() []model.Family {
	return s.families[min(len(s.families), len(s.model.ClusterIPs)):]
}

// portsToAssign returns the ports that are to get a node port.
func (s *declared) portsToAssign() iter.Seq[*model.ServicePort] {
	return func(yield func(*model.ServicePort) bool) {
		for i := range s.model.Ports {
			if p := &s.model.Ports[i]; s.allocate && p.NodePort == 0 && !yield(p) {
				return
			}
		}
	}
}

// claims returns what s needs to itself when a is assigned to it.
func (s *declared) claims(a assignment) []placed {
	if len(s.families) == 0 {
		return nil
	}
	m := s.model
	all := make([]placed, 0, 4)
	add := func(addr netip.Addr, at place) {
		for i := range m.Ports {
			all = append(all, placed{claim{addr, m.Ports[i].Port, m.Ports[i].Protocol}, at})
		}
	}
	for i, addr := range m.ClusterIPs {
		at := place{field: inClusterIP}
		if s.listed {
			at = place{inClusterIPs, i}
		}
		all = append(all, placed{claim{addr: addr}, at})
		add(addr, at)
	}
	for _, addr := range a.ClusterIPs {
		all = append(all, placed{claim{addr: addr}, place{field: inSpec}})
		add(addr, place{field: inSpec})
	}
	for i, addr := range m.ExternalIPs {
		add(addr, place{inExternal, i})
	}
	for i, addr := range m.LoadBalancerIPs {
		add(addr, place{inIngress, s.ingress[i]})
	}
	for i := range m.Ports {
		if n := a.nodePort(&m.Ports[i]); n != 0 {
			all = append(all, placed{claim{port: n, proto: m.Ports[i].Protocol}, place{inNodePort, i}})
		}
	}
	if n := max(m.HealthCheckPort, a.HealthCheckNodePort); n != 0 {
		all = append(all, placed{claim{port: n, proto: model.TCP}, place{field: inHealth}})
	}
	return all
}

// with returns a Service as the API server would hand it out: with a filled in.
func (s *declared) with(a assignment) *model.Service {
	if a.empty() {
		return s.model
	}
	svc := *s.model
	svc.ClusterIPs = slices.Concat(svc.ClusterIPs, a.ClusterIPs)
	svc.HealthCheckPort = max(svc.HealthCheckPort, a.HealthCheckNodePort)
	if len(a.NodePorts) > 0 {
		svc.Ports = slices.Clone(svc.Ports)
		for i := range svc.Ports {
			svc.Ports[i].NodePort = a.nodePort(&svc.Ports[i])
		}
	}
	return &svc
}
