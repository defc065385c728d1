package statusmap

import (
	"slices"

	"github.com/beeline-lb/beeline/pkg/bpf"
)

// Effect is the outcome of a connection or packet that is counted.
type Effect string

// The effects.
const (
	Refused Effect = "refused" // the client was told
	Dropped Effect = "dropped" // the client got no answer
	Served  Effect = "served"
	Passed  Effect = "passed" // left to others, untouched
)

// Reason is a counter of connections or packets by their outcome and its reason.
type Reason struct {
	Name   string // as in metrics
	Count  uint64
	Effect Effect
}

// reasons names the counters; the index is enum bl_reason. One without a name counts no
// event.
var reasons = [bpf.SockBlReasonBL_REASON_COUNT]Reason{
	bpf.SockBlReasonBL_REASON_NO_ENDPOINT:           {Name: "no_endpoint", Effect: Refused},
	bpf.SockBlReasonBL_REASON_NO_LOCAL_ENDPOINT:     {Name: "no_local_endpoint", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_SOURCE_RANGE:          {Name: "source_range", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_UNDECLARED_PORT:       {Name: "undeclared_port", Effect: Refused},
	bpf.SockBlReasonBL_REASON_UNALLOCATED_ADDRESS:   {Name: "unallocated_address", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_BROKEN_TABLE:          {Name: "broken_table", Effect: Refused},
	bpf.SockBlReasonBL_REASON_SOCK_NOT_STORED:       {Name: "sock_not_stored", Effect: Served},
	bpf.SockBlReasonBL_REASON_UDP_PEER_NOT_STORED:   {Name: "udp_peer_not_stored", Effect: Served},
	bpf.SockBlReasonBL_REASON_AFFINITY_NOT_STORED:   {Name: "affinity_not_stored", Effect: Served},
	bpf.SockBlReasonBL_REASON_NO_SOURCE_PORT:        {Name: "no_source_port", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_FLOW_NOT_STORED:       {Name: "flow_not_stored", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_XDP_SENT:              {Name: "xdp_sent", Effect: Served},
	bpf.SockBlReasonBL_REASON_FRAGMENT_NOT_KEPT:     {Name: "fragment_not_kept", Effect: Passed},
	bpf.SockBlReasonBL_REASON_PACKET_TRANSLATED:     {Name: "packet_translated", Effect: Served},
	bpf.SockBlReasonBL_REASON_PACKET_PASSED:         {Name: "packet_passed", Effect: Passed},
	bpf.SockBlReasonBL_REASON_TUNNEL_SENT:           {Name: "tunnel_sent", Effect: Served},
	bpf.SockBlReasonBL_REASON_TUNNEL_RECEIVED:       {Name: "tunnel_received", Effect: Served},
	bpf.SockBlReasonBL_REASON_TUNNEL_UNKNOWN_SENDER: {Name: "tunnel_unknown_sender", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_TUNNEL_MALFORMED:      {Name: "tunnel_malformed", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_TUNNEL_NO_BACKEND:     {Name: "tunnel_no_backend", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_FLOW_OVERFLOW:         {Name: "flow_overflow", Effect: Served},
	bpf.SockBlReasonBL_REASON_NO_SOURCE_ADDRESS:     {Name: "no_source_address", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_TUNNEL_NO_SERVICE:     {Name: "tunnel_no_service", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_TUNNEL_NO_FLOW:        {Name: "tunnel_no_flow", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_TUNNEL_WRONG_SECRET:   {Name: "tunnel_wrong_secret", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_TUNNEL_SPOOFED:        {Name: "tunnel_spoofed", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_SOURCE_SHARE:          {Name: "source_share", Effect: Served},
	bpf.SockBlReasonBL_REASON_SOURCE_FRONTEND:       {Name: "source_frontend", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_RESET_HELD:            {Name: "reset_held", Effect: Dropped},
	bpf.SockBlReasonBL_REASON_ICMP_LIMITED:          {Name: "icmp_limited", Effect: Dropped},
}

// ReasonName returns the name of a counter, "" of one that counts no event.
func ReasonName(reason bpf.SockBlReason) string {
	if int(reason) >= len(reasons) {
		return ""
	}
	return reasons[reason].Name
}

// ReasonsNamed returns the counters that have one of these names.
func ReasonsNamed(names []string) (named []bpf.SockBlReason) {
	for i, r := range reasons {
		if r.Name != "" && slices.Contains(names, r.Name) {
			named = append(named, bpf.SockBlReason(i))
		}
	}
	return named
}

// Reasons returns the counters, in the order of enum bl_reason.
func (t Table) Reasons() ([]Reason, error) {
	list := make([]Reason, 0, len(reasons))
	for i, r := range reasons {
		if r.Name == "" {
			continue
		}
		var err error
		if r.Count, err = t.maps.Counter(bpf.SockBlReason(i)); err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}
