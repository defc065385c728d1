package tables

import (
	"cmp"
	"math"
	"net/netip"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

// Desired is the desired state of one Service in the tables.
type Desired struct {
	Name    model.Name
	Created time.Time // of Services that wait for one address the oldest gets it next
	Ports   []ServicePort
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
	return compile(svc, slices, node, unlimited)
}

// compiler compiles a Service.
type compiler struct {
	svc    *model.Service
	node   *model.LocalNode
	joined [len(model.Families)]policy.Joined
	// each is how many backends a port may have.
	each uint64

	// Of the family that is compiled.
	family       model.Family
	sourceRanges []netip.Prefix
	restricted   bool
	addresses    addresses
}

// compile makes no more of the Service than is given. What that leaves out follows from what the
// Service asks for, which is counted before anything is made.
func compile(svc *model.Service, slices []*model.Slice, node *model.LocalNode, given Demand) Desired {
	c := compiler{svc: svc, node: node, each: math.MaxUint64}
	for i, family := range model.Families {
		c.joined[i] = policy.Join(svc, family, slices)
	}
	asked := demand(svc, &c.joined)
	ports := portsOf(svc, given[ofPorts])
	if asked[ofBackends] > given[ofBackends] {
		c.each = backendsEach(svc, &c.joined, uint64(given[ofBackends]))
	}
	var last *lastFrontend
	if asked[ofFrontends] > given[ofFrontends] {
		last = lastOf(svc, &ports, int(given[ofFrontends]))
	}
	desired := Desired{Name: svc.Name, Created: svc.Created, Ports: make([]ServicePort, 0, len(ports[0])+len(ports[1]))}
	for i, family := range model.Families {
		if len(ports[i]) == 0 {
			continue
		}
		c.family, c.addresses = family, addressesOf(svc, family, last)
		c.sourceRanges, c.restricted = policy.SourceRanges(svc, family)
		if asked[ofSourceRanges] > given[ofSourceRanges] {
			c.sourceRanges = nil
		}
		for number, port := range ports[i] {
			sp := c.port(port)
			if number == 0 {
				sp.Frontends = append(sp.Frontends, c.addresses.alone()...)
			}
			sp.Sets = c.joined[i].Select(number, node, c.each, sp.usesLocal())
			sp.try(svc.OnTrial)
			desired.Ports = append(desired.Ports, sp)
		}
	}
	return desired
}

// portsOf returns the first ports of a Service, so many of all families: none of those that it does
// not have.
func portsOf(svc *model.Service, most uint32) (ports [len(model.Families)][]model.ServicePort) {
	for i, family := range model.Families {
		if svc.HasFamily(family) {
			ports[i] = svc.Ports[:min(len(svc.Ports), int(most))]
			most -= uint32(len(ports[i]))
		}
	}
	return ports
}

// port returns the desired state of a port without its sets.
func (c *compiler) port(port model.ServicePort) ServicePort {
	svc := c.svc
	sp := ServicePort{
		Name: ServiceName{
			Port:          model.PortName{Service: svc.Name, Port: port.Name, Protocol: port.Protocol},
			Family:        c.family,
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
		SourceRanges:    c.sourceRanges,
	}
	var internal, external FrontendFlags
	if svc.InternalLocal {
		internal = InternalLocal | ExternalLocal
	}
	if svc.ExternalLocal {
		external = ExternalLocal
	}
	add := func(rank frontendRank, number uint16, kind FrontendKind, flags FrontendFlags) {
		for _, a := range c.addresses.of[rank] {
			if key := (FrontendKey{a, number, port.Protocol}); c.addresses.last.keeps(rank, key) {
				sp.Frontends = append(sp.Frontends, DesiredFrontend{key, kind, flags})
			}
		}
	}
	add(ofClusterIP, port.Port, FrontendClusterIP, internal)
	// An address that is an external IP, too, is restricted all the same.
	if c.restricted {
		add(ofLoadBalancer, port.Port, FrontendLoadBalancer, external|SourceRanges)
	} else {
		add(ofLoadBalancer, port.Port, FrontendLoadBalancer, external)
	}
	add(ofExternalIP, port.Port, FrontendExternalIP, external)
	if port.NodePort != 0 {
		add(ofNodePort, port.NodePort, FrontendNodePort, external)
	}
	return sp
}

func unspecified(family model.Family) netip.Addr {
	if family == model.IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
