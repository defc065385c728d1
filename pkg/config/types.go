package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Group, version and kind of a [BeelineConfiguration].
const (
	beelineGroup      = "config.beeline.io"
	BeelineAPIVersion = beelineGroup + "/v1alpha1"
	BeelineKind       = "BeelineConfiguration"
)

// BeelineConfiguration holds the settings that kube-proxy has no counterpart of. A
// field that is not given, null, or its type's zero value is at its default.
type BeelineConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	// master is the address of the API server, in place of the kubeconfig's.
	Master string `json:"master"`
	// manifests is a folder of Service and EndpointSlice files to serve in place of a
	// cluster's.
	Manifests string `json:"manifests"`
	// stateDir is the folder that keeps the addresses and NodePorts assigned to the Services
	// of manifests. Defaults to /var/lib/beeline.
	StateDir string `json:"stateDir"`
	// nodeIPs are this node's own IPs, one of each family. For a family without one it is
	// bindAddress, else the Node object's.
	NodeIPs []string `json:"nodeIPs"`
	// serviceClusterIPRanges are the CIDRs of cluster IPs, one of each family:
	// unallocated addresses in them are dropped, and manifests assigns from them.
	ServiceClusterIPRanges []string `json:"serviceClusterIPRanges"`
	// serviceNodePortRange is the range of NodePorts for the Services of manifests, written as
	// for kube-apiserver: first-last, first+size or a single port. Defaults to 30000-32767.
	ServiceNodePortRange string `json:"serviceNodePortRange"`

	// algorithm is the load-balancing algorithm of Services without the annotation:
	// random, the default, rr, wrr, sh, dh, maglev, lc, wlc, sed, nq, lblc, lblcr or ewma. When it is not given,
	// kube-proxy's ipvs.scheduler is used where Beeline has it. The annotation can ask for lblc
	// and lblcr only where this is one of them.
	Algorithm string `json:"algorithm"`

	// outlierDetection ejects endpoints that do not answer TCP connections, or refuse them, for Services
	// without the annotation: off, the default, on, or a list such as failures=5,time=30s,percent=50,
	// which is what on means.
	OutlierDetection string `json:"outlierDetection"`

	// allowedAnnotations are the annotations of Services and EndpointSlices that have an effect,
	// by their full names, or none alone. One of Beeline's that is left out is reported as a
	// fault where a Service has it, and its default is used; unknown names are ignored.
	// Defaults to service.beeline.io/ with algorithm, maglev-size, zone-weights, slow-start and weight.
	// To be named are forwarding-mode and zone-spill-over, which open a port on every node and make every
	// agent follow all Nodes, and outlier-detection, for which a program runs at each connect() of TCP.
	AllowedAnnotations []string `json:"allowedAnnotations"`

	// zoneSpillOverPort is the UDP port at which agents ask each other how many active connections there
	// are to Services with zone spill-over, the same on all nodes. Defaults to 6092.
	ZoneSpillOverPort int32 `json:"zoneSpillOverPort"`

	// forwardingMode is how packets of clients outside of the node reach endpoints on other
	// nodes, for Services without the annotation: snat, the default, from an address of this
	// node; dsr (direct server return) in a tunnel to the endpoint's node, which answers the
	// client itself; hybrid is dsr for TCP and snat for all else. A node that does not accept
	// tunnel traffic gets snat.
	ForwardingMode string `json:"forwardingMode"`
	// dsrPort is the UDP port of the tunnel, the same on all nodes. With 0 the node neither
	// sends nor accepts tunnel traffic. Defaults to 6091.
	DSRPort *int32 `json:"dsrPort"`
	// dsrClampMSS clamps the MSS of TCP connections that come by the tunnel to its MTU, for
	// clients without working path MTU discovery. Defaults to true.
	DSRClampMSS *bool `json:"dsrClampMSS"`
	// dsrSecretFile is a file with the secret of the cluster, by which nodes tell each other's
	// packets in the tunnel from forged ones: 16 bytes or more on a line. Two lines are two
	// secrets, both accepted, of which the first is sent. The file is followed for changes.
	// Without one, packets are accepted from any sender with a node's address.
	DSRSecretFile string `json:"dsrSecretFile"`

	// devices are the names of the devices that face clients or other nodes. Patterns
	// like eth* are allowed; auto, the default, finds them; none serves only processes
	// of this node.
	Devices []string `json:"devices"`
	// podDevices are the names of the host's side of pods' devices, patterns allowed,
	// for pods whose sockets cannot or must not get socket-level load balancing: their
	// packets are load-balanced there. Those of sandboxes are found by their first packet.
	PodDevices []string `json:"podDevices"`
	// socketLB says which sockets get socket-level load balancing: all, the default; auto for all
	// but those in network namespaces with rules of nat OUTPUT of their own, as a mesh's sidecar
	// has, whose packets are load-balanced at their devices; or host-namespace-only for those of
	// the node's own network namespace.
	SocketLB SocketLB `json:"socketLB"`
	// xdp is whether packets that go on to other nodes are served in the devices'
	// drivers: off, the default; auto where the driver can; or native, on veth devices
	// too. Attaching makes some drivers restart the device. generic serves devices of any
	// driver, gains little over off and slows down the node's own traffic.
	XDP string `json:"xdp"`
	// tcMode is how programs are attached to devices: tcx, clsact or auto, the default.
	TCMode string `json:"tcMode"`
	// snatPortRange are the source ports of SNAT, first and last, for clients' connections to
	// endpoints on other nodes that cannot keep their own. Those of the ephemeral port range
	// (net.ipv4.ip_local_port_range) are taken last, and those of ip_local_reserved_ports
	// never. Defaults to 1024-65535.
	SNATPortRange string `json:"snatPortRange"`

	// acceptForwarded lets connections of Services through a firewall of iptables whose chain
	// FORWARD drops or rejects packets, as kube-proxy does: auto, the default, adds a chain
	// BEELINE-FORWARD there unless manifests are served; never leaves iptables alone.
	AcceptForwarded AcceptForwarded `json:"acceptForwarded"`

	// cgroupRoot is the cgroup2 folder whose processes are served. Defaults to where
	// cgroup2 is mounted; where it is not, it is mounted at /run/beeline/cgroupv2.
	CgroupRoot string `json:"cgroupRoot"`
	// bpffs is a folder on a BPF file system for the pinned programs and maps, which outlive the
	// agent. Defaults to /sys/fs/bpf, where one is mounted if nothing is. Elsewhere it has to be
	// there.
	BPFFS string `json:"bpffs"`
	// webBindAddress is the address and port of the page that beeline web serves, for as long as
	// the agent runs: an IP alone takes port 10245. Who reaches it reads the names of Services, the
	// addresses of endpoints, and the clients that are refused, without a password. Empty, the
	// default, is off.
	WebBindAddress string `json:"webBindAddress"`
	// tables are the sizes of the tables in the kernel.
	Tables TablesConfiguration `json:"tables"`
	// flowTimeouts are idle timeouts of flows of clients outside of the node, beside those in
	// kube-proxy's conntrack section.
	FlowTimeouts FlowTimeoutsConfiguration `json:"flowTimeouts"`
	// trafficSampling makes packets and bytes be counted for Services and backends, as beeline top
	// shows them: of clients outside of the node one flow in so many, taken as so many, and each TCP
	// connection of the node's own sockets when it ends. 1 counts all flows; a flow in the sample costs
	// more for each packet. Defaults to 0, none.
	TrafficSampling uint32 `json:"trafficSampling"`
	// serviceMetrics are the Services that have metrics of their own; by default none has.
	ServiceMetrics ServiceMetricsConfiguration `json:"serviceMetrics"`
}

// SocketLB says which sockets get socket-level load balancing.
type SocketLB string

// The values of socketLB.
const (
	SocketLBAll  SocketLB = "all"
	SocketLBAuto SocketLB = "auto"
	SocketLBHost SocketLB = "host-namespace-only"
)

// AcceptForwarded says whether the agent opens a firewall that drops connections of Services.
type AcceptForwarded string

// The values of acceptForwarded.
const (
	AcceptForwardedAuto  AcceptForwarded = "auto"
	AcceptForwardedNever AcceptForwarded = "never"
)

// TablesConfiguration is how many entries tables have room for. One Service gets an eighth of
// maxFrontends, maxServices, maxBackends and maxSourceRanges at most.
type TablesConfiguration struct {
	// maxFrontends is the number of addresses and ports that can be served.
	MaxFrontends uint32 `json:"maxFrontends"`
	// maxServices is the number of Service ports, each IP family counted.
	MaxServices uint32 `json:"maxServices"`
	// maxBackends is the number of endpoints of all Service ports.
	MaxBackends uint32 `json:"maxBackends"`
	// maxSlots is the number of slots of all sets, one or more per endpoint.
	MaxSlots uint32 `json:"maxSlots"`
	// maxSlotsPerService is the number of slots that rings and weights of one Service may
	// take, beyond one for each endpoint. Defaults to an eighth of maxSlots.
	MaxSlotsPerService uint32 `json:"maxSlotsPerService"`
	// maxSlotsPerNamespace is the same of all Services of a namespace. Defaults to a quarter
	// of maxSlots.
	MaxSlotsPerNamespace uint32 `json:"maxSlotsPerNamespace"`
	// reservedSlots is the number of slots that rings and weights never take. Defaults to a
	// quarter of maxSlots.
	ReservedSlots uint32 `json:"reservedSlots"`
	// maxAffinityEntries is the number of clients with session affinity; the least
	// recently used is evicted. Defaults to a quarter of maxFlows as it follows from the memory.
	MaxAffinityEntries uint32 `json:"maxAffinityEntries"`
	// maxUDPPeers is the number of entries for Service addresses that unconnected UDP
	// sockets use beyond their first, two per address; least recently used entries are
	// evicted. Defaults as maxAffinityEntries.
	MaxUDPPeers uint32 `json:"maxUDPPeers"`
	// maxSourceRanges is the number of loadBalancerSourceRanges of all Service ports.
	MaxSourceRanges uint32 `json:"maxSourceRanges"`
	// maxFlows is the number of entries in the flow table, two per connection of a client
	// outside of the node; least recently used entries are evicted. When it is not given, it
	// follows from conntrack.maxPerCore and conntrack.min if one of them is not kube-proxy's
	// default, else from the memory, of which the LRU maps take 0.25 %, but at least 64 MiB or
	// 2 %, whichever is less, and no more than a quarter of the limit of the agent's cgroup: 512
	// bytes a connection.
	MaxFlows uint32 `json:"maxFlows"`
	// maxClients is the number of clients outside of the node with session affinity; the
	// least recently used is evicted. Defaults as maxAffinityEntries.
	MaxClients uint32 `json:"maxClients"`
}

// FlowTimeoutsConfiguration is how long a flow may be idle in states that kube-proxy
// has no setting for. They default to the kernel's for nf_conntrack.
type FlowTimeoutsConfiguration struct {
	// tcpSynSent is for connections that were not answered yet. Defaults to 2m.
	TCPSynSent metav1.Duration `json:"tcpSynSent"`
	// tcpSynReceived is for connections that the client has yet to confirm. Defaults to
	// 1m.
	TCPSynReceived metav1.Duration `json:"tcpSynReceived"`
	// tcpClose is for connections that both sides have closed, or one has reset.
	// Defaults to 10s.
	TCPClose metav1.Duration `json:"tcpClose"`
	// sctp is for associations that the client has yet to confirm. Defaults to 30s.
	SCTP metav1.Duration `json:"sctp"`
	// sctpStream is for the others. Defaults to 3m30s.
	SCTPStream metav1.Duration `json:"sctpStream"`
}

// ServiceMetricsConfiguration is which Services have metrics of their own. Those of all Services
// together are always there.
type ServiceMetricsConfiguration struct {
	// limit is how many Service ports have them on this node, each IP family counted: those of
	// services, then those with the most connections. Defaults to 0, none.
	Limit uint32 `json:"limit"`
	// services are Services that have them first, each NAMESPACE/NAME.
	Services []string `json:"services"`
	// backends is how many backends of these Service ports have them on this node, too: those
	// with the most active connections. Defaults to 0, none.
	Backends uint32 `json:"backends"`
}
