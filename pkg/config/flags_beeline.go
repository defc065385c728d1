package config

import (
	"strings"

	"github.com/beeline-lb/beeline/pkg/model"
)

// addBeeline adds the flags that kube-proxy has no counterpart of.
func (f *flagSet) addBeeline(b *BeelineConfiguration) {
	bind(f, f.StringVar, &b.Manifests, "manifests", "BeelineConfiguration.manifests",
		"folder of Service and EndpointSlice files to serve in place of a cluster's")
	bind(f, f.StringVar, &b.StateDir, "state-dir", "BeelineConfiguration.stateDir",
		"folder that keeps the addresses and NodePorts assigned to the Services of --manifests")
	bind(f, f.StringVar, &b.Master, "master", "BeelineConfiguration.master",
		"address of the API server, in place of the kubeconfig's")
	bind(f, f.StringSliceVar, &b.NodeIPs, "node-ip", "BeelineConfiguration.nodeIPs",
		"this node's own IP, one of each family (default the Node object's)")
	bind(f, f.StringSliceVar, &b.ServiceClusterIPRanges, "service-cluster-ip-range", "BeelineConfiguration.serviceClusterIPRanges",
		"CIDRs of cluster IPs, one of each family: unallocated addresses in them are dropped, and --manifests assigns from them")
	bind(f, f.StringVar, &b.ServiceNodePortRange, "service-node-port-range", "BeelineConfiguration.serviceNodePortRange",
		"range of NodePorts for the Services of --manifests, as of kube-apiserver")
	bind(f, f.StringVar, &b.Algorithm, "algorithm", "BeelineConfiguration.algorithm",
		"load-balancing algorithm of Services without the annotation: "+strings.Join(model.Algorithms(), ", ")+" (default random, or what --ipvs-scheduler says)")
	bind(f, f.StringVar, &b.OutlierDetection, "outlier-detection", "BeelineConfiguration.outlierDetection",
		"eject endpoints that do not answer TCP connections, or refuse them, for Services without the annotation: off, on, or a list such as failures=5,time=30s,percent=50")
	bind(f, f.StringSliceVar, &b.AllowedAnnotations, "allowed-annotations", "BeelineConfiguration.allowedAnnotations",
		"annotations of Services and EndpointSlices that have an effect, or none; service.beeline.io/forwarding-mode and service.beeline.io/zone-spill-over, which open --dsr-port and --zone-spill-over-port on all nodes, and service.beeline.io/outlier-detection only when they are named here")
	bind(f, f.Int32Var, &b.ZoneSpillOverPort, "zone-spill-over-port", "BeelineConfiguration.zoneSpillOverPort",
		"UDP port at which agents ask each other how many active connections there are to Services with zone spill-over, the same on all nodes")
	f.addForwarding(b)
	bind(f, f.StringVar, &b.CgroupRoot, "cgroup-root", "BeelineConfiguration.cgroupRoot",
		"cgroup2 folder whose processes are served (default where cgroup2 is mounted, else it is mounted at /run/beeline/cgroupv2)")
	bind(f, f.StringVar, &b.BPFFS, "bpffs", "BeelineConfiguration.bpffs",
		"folder on a BPF file system for the pinned programs and maps, which outlive the agent; one is mounted at the default place if nothing is")
	bind(f, f.StringVar, &b.WebBindAddress, "web-bind-address", "BeelineConfiguration.webBindAddress",
		"IP and port (default 10245) of the page that beeline web serves, without a password; empty is off")
	f.addDevices(b)
	f.addTables(&b.Tables)
	bind(f, f.Uint32Var, &b.TrafficSampling, "traffic-sampling", "BeelineConfiguration.trafficSampling",
		"count packets and bytes for Services and backends: of clients outside of the node one flow in so many, taken as so many (1: all flows), and each TCP connection of the node's own sockets when it ends (default none)")
	f.addServiceMetrics(&b.ServiceMetrics)
}

func (f *flagSet) addForwarding(b *BeelineConfiguration) {
	bind(f, f.StringVar, &b.ForwardingMode, "forwarding-mode", "BeelineConfiguration.forwardingMode",
		"how packets of clients outside of the node reach endpoints on other nodes, for Services without the annotation: snat; dsr (direct server return) in a tunnel to the endpoint's node, which answers the client itself; or hybrid, dsr for TCP alone (default snat)")
	bind(f, f.Int32Var, b.DSRPort, "dsr-port", "BeelineConfiguration.dsrPort",
		"UDP port of the tunnel, the same on all nodes; 0: this node neither sends nor accepts tunnel traffic")
	bind(f, f.BoolVar, b.DSRClampMSS, "dsr-clamp-mss", "BeelineConfiguration.dsrClampMSS",
		"clamp the MSS of TCP connections that come by the tunnel to its MTU")
	bind(f, f.StringVar, &b.DSRSecretFile, "dsr-secret-file", "BeelineConfiguration.dsrSecretFile",
		"file with the secret of the cluster, the same on all nodes: tunnel traffic without the secret is dropped; two lines are two secrets, both accepted, the first is sent")
}

func (f *flagSet) addDevices(b *BeelineConfiguration) {
	bind(f, f.StringSliceVar, &b.Devices, "devices", "BeelineConfiguration.devices",
		"names of the devices that face clients or other nodes, patterns like eth* allowed; auto finds them (default routes, node IPs, overlays, routes to pods, addresses of their own; but veth, tap and bridges without an uplink only in networks of --nodeport-addresses), none serves only processes of this node")
	bind(f, f.StringSliceVar, &b.PodDevices, "pod-devices", "BeelineConfiguration.podDevices",
		"names of the host's side of pods' devices, patterns like veth* allowed, for pods whose sockets cannot or must not get socket-level load balancing: their packets are load-balanced")
	f.bindValue(text[SocketLB]{&b.SocketLB}, "socket-lb", "BeelineConfiguration.socketLB",
		"which sockets get socket-level load balancing: all; auto, all but those in network namespaces with rules of nat OUTPUT of their own, as a mesh's sidecar has, whose packets are load-balanced; or host-namespace-only for those of the node's network namespace (then name --pod-devices)")
	bind(f, f.StringVar, &b.XDP, "xdp", "BeelineConfiguration.xdp",
		"serve packets that go on to other nodes in the devices' drivers: off, auto where the driver can, native on veth devices too, or generic on devices of any driver, which gains little")
	bind(f, f.StringVar, &b.TCMode, "tc-mode", "BeelineConfiguration.tcMode",
		"how to attach to devices: tcx, clsact or auto")
	_ = f.MarkHidden("tc-mode")
	f.bindValue(text[AcceptForwarded]{&b.AcceptForwarded}, "accept-forwarded", "BeelineConfiguration.acceptForwarded",
		"let connections of Services through a firewall of iptables whose chain FORWARD drops packets, as kube-proxy does: auto, or never, which leaves iptables alone")
	bind(f, f.StringVar, &b.SNATPortRange, "snat-port-range", "BeelineConfiguration.snatPortRange",
		"source ports of SNAT for clients' connections to endpoints on other nodes that cannot keep their own; those of the ephemeral port range (net.ipv4.ip_local_port_range) last, of ip_local_reserved_ports never")
}

func (f *flagSet) addTables(t *TablesConfiguration) {
	bind(f, f.Uint32Var, &t.MaxFrontends, "max-frontends", "BeelineConfiguration.tables.maxFrontends",
		"addresses and ports that can be served")
	bind(f, f.Uint32Var, &t.MaxServices, "max-services", "BeelineConfiguration.tables.maxServices",
		"Service ports that can be served, each IP family counted")
	bind(f, f.Uint32Var, &t.MaxBackends, "max-backends", "BeelineConfiguration.tables.maxBackends",
		"endpoints of all Service ports")
	bind(f, f.Uint32Var, &t.MaxSlots, "max-slots", "BeelineConfiguration.tables.maxSlots",
		"slots of all sets, one or more per endpoint")
	bind(f, f.Uint32Var, &t.MaxSlotsPerService, "max-slots-per-service", "BeelineConfiguration.tables.maxSlotsPerService",
		"slots that rings and weights of one Service may take, beyond one for each endpoint (default an eighth of --max-slots)")
	bind(f, f.Uint32Var, &t.MaxSlotsPerNamespace, "max-slots-per-namespace", "BeelineConfiguration.tables.maxSlotsPerNamespace",
		"slots that rings and weights of all Services of a namespace may take (default a quarter of --max-slots)")
	bind(f, f.Uint32Var, &t.ReservedSlots, "reserved-slots", "BeelineConfiguration.tables.reservedSlots",
		"slots that rings and weights never take (default a quarter of --max-slots)")
	bind(f, f.Uint32Var, &t.MaxAffinityEntries, "max-affinity-entries", "BeelineConfiguration.tables.maxAffinityEntries",
		"clients with session affinity; the least recently used is evicted (default by the machine's memory)")
	bind(f, f.Uint32Var, &t.MaxUDPPeers, "max-udp-peers", "BeelineConfiguration.tables.maxUDPPeers",
		"entries for Service addresses that unconnected UDP sockets use beyond their first, two per address; least recently used entries are evicted (default by the machine's memory)")
	bind(f, f.Uint32Var, &t.MaxSourceRanges, "max-source-ranges", "BeelineConfiguration.tables.maxSourceRanges",
		"loadBalancerSourceRanges of all Service ports")
	bind(f, f.Uint32Var, &t.MaxFlows, "max-flows", "BeelineConfiguration.tables.maxFlows",
		"entries in the flow table, two per connection of a client outside of the node; least recently used entries are evicted (default by the machine's memory, or what --conntrack-max-per-core and --conntrack-min say)")
	bind(f, f.Uint32Var, &t.MaxClients, "max-clients", "BeelineConfiguration.tables.maxClients",
		"clients outside of the node with session affinity; the least recently used is evicted (default by the machine's memory)")
}

func (f *flagSet) addServiceMetrics(m *ServiceMetricsConfiguration) {
	bind(f, f.Uint32Var, &m.Limit, "service-metrics-limit", "BeelineConfiguration.serviceMetrics.limit",
		"how many Service ports have metrics of their own, each IP family counted: those of --service-metrics, then those with the most connections (default none)")
	bind(f, f.StringSliceVar, &m.Services, "service-metrics", "BeelineConfiguration.serviceMetrics.services",
		"Services that have metrics of their own first, each NAMESPACE/NAME")
	bind(f, f.Uint32Var, &m.Backends, "service-metrics-backends", "BeelineConfiguration.serviceMetrics.backends",
		"how many backends of the Service ports with metrics have them, too: those with the most active connections (default none)")
}
