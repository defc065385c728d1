package inspect

import (
	"maps"
	"slices"
)

// RefusalReasons are why connections or packets are refused or dropped, sorted.
func RefusalReasons() []string { return slices.Sorted(maps.Keys(refusalReasons)) }

// refusalReasons says in words why connections or packets are refused or dropped, by the names of
// their counters.
var refusalReasons = map[string]string{
	"no_endpoint":           "no endpoint of the Service can be used, on no node",
	"no_local_endpoint":     "the policy is Local, and no endpoint on this node can be used",
	"source_range":          "the client is not in loadBalancerSourceRanges",
	"source_frontend":       "the client's address and port are a Service's: forged, to have Services answer each other",
	"reset_held":            "an endpoint refused the connection: the client's next SYN goes to another one",
	"icmp_limited":          "no ICMP error was sent: net.ipv4.icmp_msgs_per_sec allows no more",
	"undeclared_port":       "the Service does not have the port",
	"unallocated_address":   "no Service has the address of the Service CIDR",
	"no_source_port":        "all source ports towards the backend are in use",
	"no_source_address":     "the device to the backend has no address of the family for SNAT",
	"broken_table":          "an id led to no entry: beeline verify says more",
	"flow_not_stored":       "the kernel had no memory for the flow",
	"tunnel_unknown_sender": "a packet at the tunnel's port is of no node of the cluster",
	"tunnel_malformed":      "a packet of the tunnel is cut short, fragmented, nested or not as Beeline makes it",
	"tunnel_wrong_secret":   "a packet of the tunnel is without the cluster's secret",
	"tunnel_no_service":     "a packet of the tunnel is to an address of no Service",
	"tunnel_no_backend":     "a packet of the tunnel is to an endpoint that is not on this node",
	"tunnel_no_flow":        "an ICMP message in the tunnel is about no known flow",
	"tunnel_spoofed":        "a pod or process of this node sent to the tunnel's port of another one",
}
