// Package model is Beeline's view of a cluster: Services, EndpointSlices
// and the node it runs on, reduced to what a node service proxy acts on.
//
// Every source (the Kubernetes API, a folder of files) produces these types and
// everything behind the sources consumes them. The package has no I/O and knows
// no Kubernetes types. Values are immutable once handed over: a change is a new
// value.
//
// It exports many names because each object of a cluster, and each choice that one may hold, is
// a type with its values.
package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Name is the namespace and name of an object.
type Name struct {
	Namespace string
	Name      string
}

// String returns "namespace/name", as kubectl users write it.
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders names by namespace, then name.
func (n Name) Compare(o Name) int {
	if c := strings.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	return strings.Compare(n.Name, o.Name)
}

// Protocol is an IP protocol number that a Service can carry.
type Protocol uint8

// The protocols of Service ports, by IANA protocol number.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the Kubernetes spelling of the protocol.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return fmt.Sprintf("Protocol(%d)", uint8(p))
}

// ParseProtocol returns the protocol of a Kubernetes spelling. The empty string
// is TCP, as in the API.
func ParseProtocol(s string) (Protocol, error) {
	switch s {
	case "TCP", "":
		return TCP, nil
	case "UDP":
		return UDP, nil
	case "SCTP":
		return SCTP, nil
	}
	return 0, fmt.Errorf("protocol %s is none of TCP, UDP, SCTP", Quote(s))
}

// Family is an IP address family. Each family of a Service is served on its own.
type Family uint8

// The families; the values are the IP version.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families lists both families in the order in which they are handled and shown.
var Families = [...]Family{IPv4, IPv6}

// String returns the Kubernetes spelling of the family.
func (f Family) String() string { return fmt.Sprintf("IPv%d", uint8(f)) }

// FamilyOf returns the family of a. An IPv4-mapped IPv6 address counts as IPv4.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}

// broadcast is the address of all hosts of a link.
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// IsUnicast reports whether addr is an address that one host can have.
func IsUnicast(addr netip.Addr) bool {
	return !addr.IsUnspecified() && !addr.IsMulticast() && addr != broadcast
}

// Service is a Service that is to be served: neither headless, nor ExternalName,
// nor left to another proxy.
type Service struct {
	Name    Name
	Created time.Time // zero is unknown
	// Type is the API's spelling, for display only: what is served follows from
	// the addresses and ports below.
	Type string

	ClusterIPs []netip.Addr
	// ExternalIPs are spec.externalIPs.
	ExternalIPs []netip.Addr
	// LoadBalancerIPs are the ingress IPs of the status whose ipMode is VIP.
	LoadBalancerIPs []netip.Addr
	// SourceRanges are the valid spec.loadBalancerSourceRanges of both families.
	// They bind LoadBalancerIPs only.
	SourceRanges []netip.Prefix

	Ports []ServicePort

	// InternalLocal and ExternalLocal say that the policy of that kind of traffic
	// is Local; false is Cluster.
	InternalLocal bool
	ExternalLocal bool

	// AffinitySeconds is the ClientIP affinity's time-out; 0 is no affinity.
	AffinitySeconds uint32

	// HealthCheckPort is where load balancers ask whether this node has endpoints;
	// 0 is nowhere.
	HealthCheckPort uint16

	Algorithm Algorithm
	// RingSize is the number of slots of a hashing algorithm's ring; 0 leaves it to
	// the number of endpoints.
	RingSize uint32
	// ZoneWeights multiply the weights of the endpoints of a zone; one that is not
	// named has 1.
	ZoneWeights map[string]uint8
	Forwarding  Forwarding
	// SlowStart is how long an endpoint that becomes ready takes to come to its share of new
	// connections; 0: it has it at once.
	SlowStart time.Duration
	// Starting are the shares of the endpoints that are on their way there, in parts of
	// [FullShare]. Sources leave it nil.
	Starting map[netip.Addr]uint16
	// SpillOver is when new connections leave the zone that topology hints keep them in.
	SpillOver SpillOver
	// ZoneShares are the shares of new connections that other zones get by it, in parts of
	// [SpillParts]. Sources leave it nil.
	ZoneShares map[string]uint16
	// Outliers is how endpoints are ejected that do not answer; nil leaves it to the configuration.
	Outliers *Outliers
	// Ejected are the endpoints that are. Sources leave it nil.
	Ejected map[netip.AddrPort]bool
	// OnTrial are those of them that get one connection, which decides. Sources leave it nil.
	OnTrial map[netip.AddrPort]bool
	// Faults are settings that were wrong and do not count.
	Faults []Fault
}

// HasFamily reports whether the family is one of those that the Service has a cluster
// IP of: only these are served.
func (s *Service) HasFamily(family Family) bool {
	return slices.ContainsFunc(s.ClusterIPs, func(a netip.Addr) bool { return FamilyOf(a) == family })
}

// ServicePort is one port of a Service. Ports of a Service differ in Name.
type ServicePort struct {
	Name     string
	Protocol Protocol
	Port     uint16
	NodePort uint16 // 0 is none
}

// PortName identifies a Service port.
type PortName struct {
	Service  Name
	Port     string // "" for the only, unnamed port
	Protocol Protocol
}

// String returns "namespace/name:port/PROTOCOL", without the port when unnamed.
func (p PortName) String() string {
	if p.Port == "" {
		return fmt.Sprintf("%s/%s", p.Service, p.Protocol)
	}
	return fmt.Sprintf("%s:%s/%s", p.Service, p.Port, p.Protocol)
}

// Compare orders port names by Service, port name, protocol.
func (p PortName) Compare(o PortName) int {
	return cmp.Or(p.Service.Compare(o.Service), strings.Compare(p.Port, o.Port),
		cmp.Compare(p.Protocol, o.Protocol))
}

// Slice is an EndpointSlice. A Service may have many; the union counts.
type Slice struct {
	Name      Name
	Service   string // Service in the same namespace that the slice belongs to
	Family    Family
	Ports     []SlicePort
	Endpoints []Endpoint // in the order of their addresses
	// Triggered is when that happened which made the slice what it is; zero is
	// unknown. It is no part of what is served.
	Triggered time.Time
	// Weight of each endpoint beside those of other slices; nil is 1.
	Weight *uint8
	// Faults are settings that were wrong and do not count.
	Faults []Fault
}

// ServiceName returns the name of the Service that the slice belongs to.
func (s *Slice) ServiceName() Name { return Name{s.Name.Namespace, s.Service} }

// SlicePort is a port that every endpoint of a slice serves. It joins the Service
// port of the same name and protocol.
type SlicePort struct {
	Name     string
	Protocol Protocol
	Port     uint16 // never 0
}

// Endpoint is one address of a slice with the API's defaults filled in.
type Endpoint struct {
	Addr     netip.Addr
	NodeName string // "" is unknown
	Zone     string

	Ready       bool
	Serving     bool
	Terminating bool

	NodeHints []string
	ZoneHints []string
}

// LocalNode is the node that the proxy runs on.
type LocalNode struct {
	Name string
	Zone string // label topology.kubernetes.io/zone; "" is unknown
	// Addrs are the node's own IPs, the primary one of each family first.
	Addrs []netip.Addr
	// PodRanges are those that the node's pods have their addresses from, as far as
	// the cluster hands them out by node.
	PodRanges []netip.Prefix
	// Leaving says that the node is about to be removed from the cluster.
	Leaving bool
}
