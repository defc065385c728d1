package model

import "net/netip"

// AnnotationForwarding is the annotation that a Service names its [Forwarding] by. Whether
// it can be had depends on the configuration, so not the sources alone tell of faults.
const AnnotationForwarding = "service.beeline.io/forwarding-mode"

// Forwarding is how packets reach a backend on another node.
type Forwarding uint8

// The forwarding modes.
const (
	// DefaultForwarding leaves the choice to the agent's configuration.
	DefaultForwarding Forwarding = iota
	// SNAT sends packets from an address of this node, to which the backend answers.
	SNAT
	// DSR, direct server return, sends packets in a tunnel to the backend's node, which
	// answers the client itself.
	DSR
	// Hybrid is DSR for TCP and SNAT for all else.
	Hybrid
)

var forwardingNames = names[Forwarding]{SNAT: "snat", DSR: "dsr", Hybrid: "hybrid"}

// String returns the name that [ParseForwarding] reads; "" for [DefaultForwarding].
func (f Forwarding) String() string { return forwardingNames.of(f) }

// Forwardings returns the names of the modes.
func Forwardings() []string { return forwardingNames.all() }

// ParseForwarding returns the mode of a name.
func ParseForwarding(name string) (Forwarding, error) { return forwardingNames.parse(name) }

// Tunnels reports whether packets of some protocol go in a tunnel.
func (f Forwarding) Tunnels() bool { return f == DSR || f == Hybrid }

// TunnelsProtocol reports whether packets of the protocol go in a tunnel.
func (f Forwarding) TunnelsProtocol(p Protocol) bool {
	return f == DSR || f == Hybrid && p == TCP
}

// Node is a node of the cluster, this one among them, as the others know it.
type Node struct {
	Name string
	// Tunnel is where packets in a tunnel to the node go; not valid when it has no
	// address.
	Tunnel netip.Addr
	// Addrs are the node's addresses; Left is how many more the object lists, which do not count.
	Addrs   []netip.Addr
	Left    int
	Created int64  // in seconds since 1970; 0 is unknown
	Zone    string // as of [LocalNode]
	// PodRanges are as of [LocalNode].
	PodRanges []netip.Prefix
}
