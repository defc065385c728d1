// Package tables turns Services and their endpoints into the entries of the
// tables that the datapath reads, and keeps those entries true as they change.
//
// [Compile] is a pure function from the model to what one Service wants.
// [Tables] gives ids and slots to it and brings a [Store] from what it holds to
// what is wanted, in an order in which a reader never meets a half-made Service:
// backends, then slots, then the set word, then frontends; in reverse order when
// something is removed. What is taken out is used again only after
// [Store.Barrier], so an id that a program read stays what it was until that
// program ends.
//
// It exports many names because every kind of entry, with its key, its flags and its limit, is a
// type that a Store is handed.
package tables

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
)

// FrontendKey is the destination of a connection. Addr of a NodePort is the
// unspecified address of its family. Port and Protocol 0 stand for the address
// itself: see [FrontendAddress].
type FrontendKey struct {
	Addr     netip.Addr
	Port     uint16
	Protocol model.Protocol
}

// AnyAddress returns the key of the NodePort of the same number, family and protocol.
func (k FrontendKey) AnyAddress() FrontendKey {
	k.Addr = unspecified(model.FamilyOf(k.Addr))
	return k
}

// String returns "10.0.0.1:80/TCP".
func (k FrontendKey) String() string {
	if k.Protocol == 0 {
		return k.Addr.String()
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(k.Addr, k.Port), k.Protocol)
}

// Compare orders by address, port, protocol.
func (k FrontendKey) Compare(o FrontendKey) int {
	return cmp.Or(k.Addr.Compare(o.Addr), cmp.Compare(k.Port, o.Port),
		cmp.Compare(k.Protocol, o.Protocol))
}

// FrontendKind says where a frontend comes from.
type FrontendKind uint8

// The kinds, numbered as enum bl_frontend_kind.
const (
	FrontendClusterIP FrontendKind = iota + 1
	FrontendNodePort
	FrontendExternalIP
	FrontendLoadBalancer
	// FrontendAddress is an address of a Service, whatever its ports.
	FrontendAddress
)

// String returns the kind as Kubernetes spells it.
func (k FrontendKind) String() string {
	switch k {
	case FrontendClusterIP:
		return "ClusterIP"
	case FrontendNodePort:
		return "NodePort"
	case FrontendExternalIP:
		return "ExternalIP"
	case FrontendLoadBalancer:
		return "LoadBalancer"
	case FrontendAddress:
		return "Address"
	}
	return fmt.Sprintf("FrontendKind(%d)", uint8(k))
}

// FrontendFlags say which set a client gets.
type FrontendFlags uint8

// The flags, numbered as enum bl_frontend_flag.
const (
	InternalLocal FrontendFlags = 1 << iota // clients inside the cluster: local set
	ExternalLocal                           // clients outside: local set
	SourceRanges                            // only sources in the source ranges
	RefuseOthers                            // of a [FrontendAddress] that no host has: refuse ports that are no frontends, answer echo requests
)

// Frontend leads to a Service port.
type Frontend struct {
	Service uint32
	Kind    FrontendKind
	Flags   FrontendFlags
}

// Set is a run of slots, or the reason why there is none.
type Set struct {
	Kind  policy.Kind
	First uint32
	Count uint32
}

// Service is one family of one Service port.
type Service struct {
	Cluster         Set
	Local           Set
	AffinitySeconds uint32
	Algorithm       model.Algorithm
	// Tunnels says that packets to backends on other nodes go in a tunnel.
	Tunnels bool
	// Outliers says that connections which fail are counted, see [Outlier].
	Outliers bool
	// Trial is 1 and the id of the backend that gets a connection when [Outlier.Trial] is
	// [TrialOffered]; 0: none.
	Trial uint32
}

// Trial is how far the trial of an endpoint is whose ejection is over.
type Trial uint8

// How far it is. A connection that is answered ends it, and so does the agent.
const (
	NoTrial      Trial = iota
	TrialOffered       // the next new connection goes to the endpoint
	TrialTaken         // that has been sent there
)

// Outlier is what outlier detection knows of a backend.
type Outlier struct {
	Failures uint32 // connections in a row that failed, as programs count them
	Trial    Trial
	// Until is when the ejection ends, by CLOCK_MONOTONIC, to a second; 0: it is not ejected.
	Until time.Duration
	Times uint32 // it has been ejected, and not served well since
}

// ServiceName are the names and policies of a Service id.
type ServiceName struct {
	Port          model.PortName
	Family        model.Family
	Type          string
	Number        uint16 // spec.ports[].port
	NodePort      uint16
	InternalLocal bool
	ExternalLocal bool
	// Bound is how many slots a set may take at most, which is less than its ring or its
	// weights ask for; 1 is one for each endpoint; 0: it has as many as it asks for.
	Bound uint32
	// Cut says of which tables the Service gets less than it asks for.
	Cut Cut
}

// ServicePortName identifies one family of one Service port: what has an id.
type ServicePortName struct {
	Port   model.PortName
	Family model.Family
}

// ServicePortName returns the part of the name that identifies.
func (n ServiceName) ServicePortName() ServicePortName { return ServicePortName{n.Port, n.Family} }

// BackendState says which sets a backend is in, and has the endpoint's conditions.
type BackendState uint32

// The bits, numbered as enum bl_backend_state.
const (
	InCluster BackendState = 1 << iota
	InLocal
	Ready
	Serving
	Terminating
	OnNode
	// NoNew is of weight 0: its connections go on.
	NoNew
)

// membership masks the bits that decide whether a backend gets new connections. One that has none
// of them serves, and keeps what goes to it.
const membership = InCluster | InLocal

// InSet reports whether a backend is in a set.
func (s BackendState) InSet() bool { return s&membership != 0 }

// TakesNew reports whether a backend may get new connections of clients that had it before.
func (s BackendState) TakesNew() bool { return s.InSet() && s&NoNew == 0 }

// ComeBack is what the Generation of a backend grows by that comes back to a set, having served on
// meanwhile: what was remembered for new connections is void, and what goes to it is not. That of
// another user of the id grows by 1.
const ComeBack = 1 << 16

// Backend is an endpoint of one family of one Service port. The zero State is an
// id that is not in use.
type Backend struct {
	AddrPort   netip.AddrPort
	Service    uint32
	State      BackendState
	Generation uint32
	Weight     uint16
	// Node is the id of the backend's node, where the Service uses the tunnel; 0 is
	// unknown.
	Node uint16
}

// Node is a node of the cluster. Its id is 1 or more.
type Node struct {
	// Addr is where packets in a tunnel to it go.
	Addr netip.Addr
	Name string
	Self bool // it is this one
}

// SourceRange lets a client prefix reach a Service's load-balancer addresses.
type SourceRange struct {
	Service uint32
	Prefix  netip.Prefix
}

// NodeAddr says how NodePorts answer on an address of the node.
type NodeAddr struct {
	// HostOnly is set for loopback: it means this node only to processes in the
	// node's own network namespace.
	HostOnly bool
}
