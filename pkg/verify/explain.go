package verify

import "strings"

// reason says why a kind of finding matters and how to mend it, where SETTING is the one that it is about.
type reason struct{ why, fix string }

// The agent mends the tables and its programs by itself.
const (
	byAgent = "a running agent corrects it within a minute; if it comes back, restart the agent and report it with \"beeline report\""
	byStart = "start the agent: it writes what differs and disturbs no connection"
)

// reasons are those of a kind, or of the kinds that begin with it.
var reasons = []struct {
	kind string
	reason
}{
	{"frontend-digest", reason{"the programs ignore the entry, whose digest is of another address: connections to it are not served", ""}},
	{"frontend-missing", reason{"connections to this address and port are not served", ""}},
	{"frontend-changed", reason{"connections to this address and port reach endpoints of another Service, or by another traffic policy", ""}},
	{"frontend-surplus", reason{"connections are translated that are not for a Service", ""}},
	{"filter-missing", reason{"the programs skip the lookup: packets and connections to it are not served", ""}},
	{"filter-surplus", reason{"the programs do lookups that find nothing, which costs time", ""}},
	{"service-unapplied", reason{"part of what the Service asks for is not served", "the error says what to change; it is tried again by itself, at least every 30 s, or when the address is free"}},
	{"service-", reason{"the Service port is not served as its spec says, or not at all", ""}},
	{"set-", reason{"new connections go to other endpoints than the Service has, or are refused", ""}},
	{"backend-", reason{"the endpoint gets connections that it should not, or none", ""}},
	{"range-missing", reason{"clients in loadBalancerSourceRanges are dropped", ""}},
	{"range-surplus", reason{"clients outside of loadBalancerSourceRanges are accepted", ""}},
	{"cidr-", reason{"connections to addresses that no Service has leave the node, or those to others are dropped", ""}},
	{"aggregate", reason{"addresses of the Service ranges are not recognised, or there are lookups for others that find nothing", ""}},
	{"node-address-", reason{"NodePorts answer at other addresses than nodePortAddresses selects", ""}},
	{"node-", reason{"direct server return does not reach a node, or accepts packets of a host that is none", ""}},
	{"endpoint-", reason{"direct server return drops packets for an endpoint, or accepts packets for an address that is none", ""}},
	{"pod-range", reason{"direct server return serves clients that are beside their endpoint, which then do not get replies, or leaves others to SNAT", ""}},
	{"hairpin", reason{"the node's own kernel does not reach endpoints on it", ""}},
	{"agent-waiting", reason{"connections go to endpoints that may be gone, and not to new ones", "the agent's log says what it does; if it does nothing, restart it, which disturbs no connection, and report it with \"beeline report\""}},
	{"manifest", reason{"what the file declared before is served, not what it declares now", "correct the file; the agent reads it by itself"}},

	{"foreign-before", reason{"packets that this program drops, redirects or rewrites do not reach Beeline's", "if Services fail, remove the program, or attach it after Beeline's; have one of tc pass packets on (TCX_NEXT, TC_ACT_UNSPEC)"}},
	{"foreign-below", reason{"connections that this program refuses or gives another address, of processes in that cgroup, do not reach a Service as Beeline would have them", "if Services fail there, remove the program, or attach it to the cgroup that Beeline serves, after Beeline's"}},
	{"nested", reason{"processes in that cgroup get the Services of that Beeline where both have one at an address, as they should if a node of another cluster runs there, in a container", "if none does, end that agent and run its binary once to remove what it has left (see the page on migration)"}},
	{"link-", reason{"processes of this node connect to Service addresses without load balancing", "a running agent attaches it again within 5 s; else start the agent"}},
	{"cgroup-gone", reason{"no process of this node is served", "restart the agent with the cgroup that exists (cgroupRoot)"}},
	{"device-unserved", reason{"clients behind this device reach no NodePort and no load-balancer IP", "a running agent attaches within a few seconds; its log says why not"}},
	{"device-failed", reason{"clients behind this device reach no NodePort and no load-balancer IP", "the error says what to do; it is tried again at least every 2 minutes"}},
	{"device-", reason{"packets that come in or leave by this device are not translated, or get a wrong source", "a running agent mends it within 5 s, an entry within a minute; else start the agent"}},
	{"nat-unserved", reason{"a mesh's sidecar in that pod sees endpoints in place of Services", "give the pod a veth or netkit device; the agent's log has its addresses"}},
	{"xdp-detached", reason{"packets of this device are served by tc alone, which takes more CPU time", "a running agent attaches it again within 5 s; else start the agent"}},

	{"forwarding", reason{"the kernel does not forward packets of clients and gives Beeline no route: NodePorts and load-balancer IPs answer for endpoints at this node's own addresses alone", "for a device that has its IPv6 routes from router advertisements sysctl -w net.ipv6.conf.DEVICE.accept_ra=2 before, else it loses the default route; then sysctl -w SETTING=1; both in /etc/sysctl.d, too"}},
	{"rp-filter", reason{"packets of clients with an asymmetric route, and tunnel traffic, are dropped before they reach an endpoint on this node", "set rp_filter of the device, and of \"all\", to 2 (loose) or 0"}},
	{"port-", reason{"SNAT may take a source port that a process of this node uses, and one of the two connections breaks", "a running agent follows the setting within seconds; else start the agent"}},
	{"kube-proxy", reason{"its rules translate connections that Beeline does not, to endpoints that may be gone", "make sure that kube-proxy does not run on this node, then run the agent's binary once to remove what it has left (see the page on migration)"}},
	{"firewall", reason{"clients outside of the node do not reach these endpoints by NodePorts and load-balancer IPs; what is accepted in another table does not help", "have the firewall accept packets with Beeline's mark there: \"nft insert rule\" with that family, table and chain, then \"meta mark and 0x1000 == 0x1000 accept\", and the same in its configuration; with firewalld a policy (see the page on migration, Firewalls)"}},
	{"tunnel-mtu", reason{"the tunnel does not use this device: clients get SNAT", "raise the MTU of the device"}},
	{"ipsec", reason{"clients outside of the node reach endpoints on other nodes past these policies: what they ask and are answered is not encrypted, or dropped where it has to be; sockets of this node are not concerned", "encrypt by a device that routes lead to (WireGuard, an xfrm interface), or set externalTrafficPolicy: Local, by which such clients reach endpoints of their node alone"}},
	{"clock", reason{"certificates and tokens that hold elsewhere may not here, and times in logs and events do not compare", "have the node follow a time server (chrony, systemd-timesyncd)"}},
	{"node", reason{"every endpoint counts as another node's: internalTrafficPolicy and externalTrafficPolicy Local find none, topology hints do not count, and load balancers send this node nothing", "set the agent's hostnameOverride to the name that \"kubectl get nodes\" has for this node, or start its kubelet, which registers it"}},
	{"config-file", reason{"the agent goes on with the configuration that it was started with", "restart the agent, which disturbs no connection; with a mistake in the file it would not start, and says so"}},
	{"conntrack", reason{"SNAT may take a source port of a connection that netfilter translates, and one of the two breaks", "restart the agent: it replaces the programs and disturbs no connection"}},
}

// explain fills in why the finding matters and how to mend it.
func (f *Finding) explain(agent bool) {
	for _, r := range reasons {
		if !strings.HasPrefix(f.Kind, r.kind) {
			continue
		}
		f.Why, f.Fix = r.why, strings.ReplaceAll(r.fix, "SETTING", f.about)
		break
	}
	if f.Fix == "" {
		if f.Fix = byStart; agent {
			f.Fix = byAgent
		}
	}
}
