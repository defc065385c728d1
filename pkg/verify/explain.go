package verify

import "strings"

// reason says why a kind of finding matters and how to mend it.
type reason struct{ why, fix string }

// The agent mends the tables and its programs by itself.
const (
	byAgent = "a running agent writes it anew within a minute; if it comes back, restart the agent and report it with \"beeline report\""
	byStart = "start the agent: it writes what differs and disturbs no connection"
)

// reasons are those of a kind, or of the kinds that begin with it.
var reasons = []struct {
	kind string
	reason
}{
	{"frontend-digest", reason{"the programs take the entry for one of another address: connections to it are not served", ""}},
	{"frontend-missing", reason{"who connects to this address and port is not served", ""}},
	{"frontend-changed", reason{"who connects to this address and port gets endpoints of another Service, or by another traffic policy", ""}},
	{"frontend-surplus", reason{"connections are taken that are none of a Service's", ""}},
	{"filter-missing", reason{"the programs look no further: packets and connections to it are not served", ""}},
	{"filter-surplus", reason{"the programs look up more than they need, which costs time", ""}},
	{"service-unapplied", reason{"part of what the Service asks for is not served", "the error says what to change; it is tried again by itself, at least every 30 s"}},
	{"service-", reason{"the Service port is served otherwise than it asks for, or not at all", ""}},
	{"set-", reason{"new connections go to other endpoints than the Service has, or are refused", ""}},
	{"backend-", reason{"the endpoint gets connections that it should not, or none", ""}},
	{"range-missing", reason{"clients that loadBalancerSourceRanges lets in are dropped", ""}},
	{"range-surplus", reason{"clients get in that loadBalancerSourceRanges shuts out", ""}},
	{"cidr-", reason{"connections to addresses that no Service has leave the node, or those to others are dropped", ""}},
	{"aggregate", reason{"addresses of the Service ranges are not recognised, or others are looked up in vain", ""}},
	{"node-address-", reason{"NodePorts answer at other addresses than nodePortAddresses selects", ""}},
	{"node-", reason{"direct server return does not reach a node, or takes packets of somebody else", ""}},
	{"endpoint-", reason{"direct server return drops packets for an endpoint, or takes those for none", ""}},
	{"hairpin", reason{"the node's own kernel does not reach endpoints on it", ""}},
	{"manifest", reason{"what the file declared before is served, not what it declares now", "correct the file; the agent reads it by itself"}},

	{"foreign-before", reason{"what this program drops, redirects or rewrites never comes to Beeline", "if Services fail, remove the program, or attach it after Beeline's"}},
	{"link-", reason{"processes of this node connect to Service addresses without load balancing", "a running agent attaches it again within 5 s; else start the agent"}},
	{"cgroup-gone", reason{"no process of this node is served", "restart the agent with the cgroup that exists (cgroupRoot)"}},
	{"device-unserved", reason{"who comes in by this device reaches no NodePort and no load-balancer IP", "a running agent attaches within a few seconds; its log says why not"}},
	{"device-failed", reason{"who comes in by this device reaches no NodePort and no load-balancer IP", "the error says what to do; it is tried again at least every 2 minutes"}},
	{"device-", reason{"packets that come in or leave by this device are not translated, or get a wrong source", "a running agent mends it within 5 s, an entry within a minute; else start the agent"}},
	{"nat-unserved", reason{"a mesh's sidecar in that pod sees endpoints in place of Services", "give the pod a veth or netkit device; the agent's log has its addresses"}},
	{"xdp-detached", reason{"packets of this device are served by tc alone, which takes more CPU time", "a running agent attaches it again within 5 s; else start the agent"}},

	{"forwarding", reason{"the kernel does not pass on packets of clients, and finds Beeline no route: NodePorts and load-balancer IPs do not answer", "sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1, and in /etc/sysctl.d"}},
	{"rp-filter", reason{"packets of clients whose way back leaves by another device are dropped before they reach an endpoint on this node, and so is what comes by the tunnel", "set rp_filter of the device, and of \"all\", to 2 (loose) or 0"}},
	{"port-", reason{"SNAT may take a source port that a process of this node uses, and one of the two connections breaks", "a running agent follows the setting within seconds; else start the agent"}},
	{"kube-proxy", reason{"its rules translate what Beeline leaves alone, to endpoints that may be gone", "make sure that kube-proxy does not run on this node, then run the agent's binary once to remove what it has left (see the page on migration)"}},
	{"tunnel-mtu", reason{"nothing goes in the tunnel by this device: clients get SNAT", "raise the MTU of the device"}},
	{"conntrack", reason{"SNAT may take a source port of a connection that netfilter translates, and one of the two breaks", "restart the agent: it loads the programs anew and disturbs no connection"}},
}

// explain fills in why the finding matters and how to mend it.
func (f *Finding) explain(agent bool) {
	for _, r := range reasons {
		if !strings.HasPrefix(f.Kind, r.kind) {
			continue
		}
		f.Why, f.Fix = r.why, r.fix
		break
	}
	if f.Fix == "" {
		if f.Fix = byStart; agent {
			f.Fix = byAgent
		}
	}
}
