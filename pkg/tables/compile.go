package tables

import (
	"cmp"
	"math"
	"net/netip"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

// Desired is the desired state of one Service in the tables.
type Desired struct {
	Name  model.Name
	Ports []ServicePort
}

// ServicePort is the desired state of one family of one port of a Service.
type ServicePort struct {
	Name            ServiceName
	Sets            policy.Sets
	AffinitySeconds uint32
	Algorithm       model.Algorithm
	// Tunnels says that packets to backends on other nodes go in a tunnel.
	Tunnels      bool
	Outliers     bool           // connections which fail are counted
	Trial        netip.AddrPort // the backend that is on trial; zero: none, see [Service]
	RingSize     uint32         // 0 is by the number of backends
	SourceRanges []netip.Prefix
	Frontends    []DesiredFrontend

	// rings are those of the cluster and the local set, once prepared.
	rings [2][]uint32
}

// try puts the first of the backends on trial that are to be.
func (sp *ServicePort) try(onTrial map[netip.AddrPort]bool) {
	if !sp.Outliers || len(onTrial) == 0 {
		return
	}
	for i := range sp.Sets.Backends {
		if addr := sp.Sets.Backends[i].AddrPort; onTrial[addr] {
			sp.Trial = addr
			return
		}
	}
}

// DesiredFrontend is an address at which a Service port answers.
type DesiredFrontend struct {
	Key   FrontendKey
	Kind  FrontendKind
	Flags FrontendFlags
}

// Compile computes the desired state of a Service. slices are all of its slices, ordered
// by name. It has no side effects.
func Compile(svc *model.Service, slices []*model.Slice, node *model.LocalNode) Desired {
	return compile(svc, slices, node, math.MaxUint64)
}

// compile leaves out backends beyond so many.
func compile(svc *model.Service, slices []*model.Slice, node *model.LocalNode, most uint64) Desired {
	each := uint64(math.MaxUint64)
	if most < math.MaxUint64 {
		each = backendsEach(svc, slices, most)
	}
	desired := Desired{Name: svc.Name}
	for _, family := range model.Families {
		if !svc.HasFamily(family) {
			continue
		}
		for i, port := range svc.Ports {
			sp := compilePort(svc, port, family)
			sp.Sets = policy.Select(svc, port, family, slices, node)
			sp.keep(each)
			sp.try(svc.OnTrial)
			if i == 0 {
				sp.Frontends = append(sp.Frontends, addressFrontends(svc, family)...)
			}
			desired.Ports = append(desired.Ports, sp)
		}
	}
	return desired
}

func compilePort(svc *model.Service, port model.ServicePort, family model.Family) ServicePort {
	sp := ServicePort{
		Name: ServiceName{
			Port:          model.PortName{Service: svc.Name, Port: port.Name, Protocol: port.Protocol},
			Family:        family,
			Type:          svc.Type,
			Number:        port.Port,
			NodePort:      port.NodePort,
			InternalLocal: svc.InternalLocal,
			ExternalLocal: svc.ExternalLocal,
		},
		AffinitySeconds: svc.AffinitySeconds,
		Algorithm:       cmp.Or(svc.Algorithm, model.Random),
		RingSize:        svc.RingSize,
		Tunnels:         svc.Forwarding.TunnelsProtocol(port.Protocol),
		Outliers:        svc.Outliers != nil && svc.Outliers.Used() && port.Protocol == model.TCP,
	}
	var internal, external FrontendFlags
	if svc.InternalLocal {
		internal = InternalLocal | ExternalLocal
	}
	if svc.ExternalLocal {
		external = ExternalLocal
	}
	add := func(addrs []netip.Addr, number uint16, kind FrontendKind, flags FrontendFlags) {
		for _, a := range addrs {
			if model.FamilyOf(a) == family {
				key := FrontendKey{a.Unmap(), number, port.Protocol}
				sp.Frontends = append(sp.Frontends, DesiredFrontend{key, kind, flags})
			}
		}
	}
	add(svc.ClusterIPs, port.Port, FrontendClusterIP, internal)
	// An address that is an external IP, too, is restricted all the same.
	restricted := false
	if sp.SourceRanges, restricted = policy.SourceRanges(svc, family); restricted {
		add(svc.LoadBalancerIPs, port.Port, FrontendLoadBalancer, external|SourceRanges)
	} else {
		add(svc.LoadBalancerIPs, port.Port, FrontendLoadBalancer, external)
	}
	add(svc.ExternalIPs, port.Port, FrontendExternalIP, external)
	if port.NodePort != 0 {
		add([]netip.Addr{unspecified(family)}, port.NodePort, FrontendNodePort, external)
	}
	return sp
}

func unspecified(family model.Family) netip.Addr {
	if family == model.IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// addressFrontends make the addresses of a Service answer echo requests, and the
// ports of a ClusterIP that the Service does not declare refused. Several Services
// may share the other addresses, and hosts may have them.
func addressFrontends(svc *model.Service, family model.Family) []DesiredFrontend {
	var fs []DesiredFrontend
	add := func(addrs []netip.Addr, flags FrontendFlags) {
		for _, a := range addrs {
			if model.FamilyOf(a) == family {
				fs = append(fs, DesiredFrontend{FrontendKey{Addr: a.Unmap()}, FrontendAddress, flags})
			}
		}
	}
	add(svc.ClusterIPs, RefuseOthers)
	add(svc.ExternalIPs, 0)
	add(svc.LoadBalancerIPs, 0)
	return fs
}
