package inspect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// flow tells of the flow that has the packet's addresses and ports.
func (x *Explanation) flow() string {
	const there = "there is one with these addresses and ports"
	switch {
	case !x.goesOn():
		return "there was one with these addresses and ports, and it is over: closed, its endpoint serves no more, or the frontend is another Service's; another one begins"
	case x.Verdict == VerdictDropped:
		return there + ", and this node no longer has the address that its endpoint knows it by"
	}
	if b, ok := x.reading.Backends[x.answer.Backend.Id]; ok && uint16(b.Generation) == uint16(x.answer.Backend.Generation) {
		return fmt.Sprintf("%s, to an endpoint of %s: its packets go on there", there, x.reading.portName(b.Service))
	}
	return there + ": its packets go on to its endpoint"
}

// found tells which frontend was found, or why none.
func (x *Explanation) found() {
	r, frontend := x.reading, x.answer.Frontend
	protocol, _ := model.ParseProtocol(x.Protocol) // it was made of one
	if frontend.Kind == uint8(bpf.SockBlFrontendKindBL_FRONTEND_NONE) {
		x.say("frontend", "none: %s", x.noFrontend(protocol))
		return
	}
	service := r.portName(frontend.Service)
	x.Service = &service
	key, ok := x.frontendKey(protocol)
	if !ok { // it has changed since
		x.say("frontend", "of %s", service)
		return
	}
	found := r.frontend(key, r.Frontends[key])
	x.Frontend = &found
	text := fmt.Sprintf("%s %s of %s", found.Kind, netip.AddrPortFrom(x.Address, x.Port), service)
	if found.IsNodePort() {
		text += fmt.Sprintf(": %s is an address of this node at which NodePorts are served", x.Address)
	}
	x.say("frontend", "%s", text)
	if !found.Restricted {
		return
	}
	in := "the client is in one of them"
	if x.answer.Reason == uint32(bpf.SockBlReasonBL_REASON_SOURCE_RANGE) {
		in = "the client is in none of them"
		if x.Client.Kind == string(clientSocket) && !x.Client.Address.IsValid() {
			in = "no address of the client's network namespace is in one of them"
		}
	}
	x.say("source ranges", "%s: %s", clientRanges(found), in)
}

// nodePortAt tells of the node's other addresses at which a NodePort is served.
func (x *Explanation) nodePortAt(others []NodeAddress) {
	if x.Frontend == nil {
		return
	}
	var all, host, at []string
	for _, o := range others {
		if o.HostOnly {
			host = append(host, o.Address.String())
		} else {
			all = append(all, o.Address.String())
		}
	}
	if len(all) > 0 {
		at = append(at, "at "+shortened(all))
	}
	if len(host) > 0 {
		at = append(at, "to processes in the node's network namespace alone at "+shortened(host))
	}
	if len(at) > 0 {
		x.insert("frontend", "node port", "explained at this address of the node, and served, too, "+strings.Join(at, "; "))
	}
}

func clientRanges(f Frontend) string {
	if len(f.SourceRanges) == 0 {
		return "none, which lets in nobody"
	}
	var list []string
	for _, p := range f.SourceRanges {
		list = append(list, p.String())
	}
	return strings.Join(list, ", ")
}

// noFrontend says why an address, port and protocol are no frontend for the client.
func (x *Explanation) noFrontend(protocol model.Protocol) string {
	r := x.reading
	node, isNode := r.NodeAddrs[x.Address]
	var at, nodePorts []string // of the Services with this address, or this NodePort
	for key, f := range r.Frontends {
		switch {
		case f.Kind == tables.FrontendAddress:
		case key.Addr == x.Address && f.Kind != tables.FrontendNodePort:
			at = append(at, fmt.Sprintf("%d/%s of %s", key.Port, key.Protocol, r.portName(f.Service)))
		case f.Kind == tables.FrontendNodePort && key.Port == x.Port && key.Addr.Is4() == x.Address.Is4():
			nodePorts = append(nodePorts, fmt.Sprintf("%d/%s of %s", key.Port, key.Protocol, r.portName(f.Service)))
		}
	}
	slices.Sort(at)
	slices.Sort(nodePorts)
	port := fmt.Sprintf("%d/%s", x.Port, protocol)
	switch {
	case len(at) > 0:
		return fmt.Sprintf("%s is no port at %s, which has %s", port, x.Address, shortened(at))
	case len(nodePorts) > 0 && isNode && node.HostOnly:
		return fmt.Sprintf("NodePort %s: %s means this node only to processes in the node's network namespace", shortened(nodePorts), x.Address)
	case len(nodePorts) > 0 && isNode:
		return fmt.Sprintf("%s is no NodePort, only %s", port, shortened(nodePorts))
	case len(nodePorts) > 0:
		return fmt.Sprintf("NodePort %s: %s is not a node address at which NodePorts are served (see nodePortAddresses, and beeline status)", shortened(nodePorts), x.Address)
	case isNode:
		return fmt.Sprintf("%s is an address of this node, and no Service has the NodePort %s", x.Address, port)
	}
	for _, p := range r.ServiceCIDRs {
		if p.Contains(x.Address) {
			return fmt.Sprintf("no Service has the address %s, which is in the Service CIDR %s", x.Address, p)
		}
	}
	return fmt.Sprintf("%s is an address of no Service and not of this node", x.Address)
}

// shortened joins the first items of a list.
func shortened(list []string) string {
	const most = 8
	if len(list) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
	}
	return strings.Join(list, ", ")
}

// policy tells under which traffic policy the client is.
func (x *Explanation) policy(c *client) {
	name := x.reading.Names[x.answer.Frontend.Service]
	which, local, why := "external", name.ExternalLocal, ""
	if x.Internal {
		which, local = "internal", name.InternalLocal
	}
	switch {
	case c.kind == clientSocket:
		why = "a client with a socket on this node is inside of the cluster"
	case c.kind == clientNode:
		why = "what leaves this node is from inside of the cluster"
	case c.kind == clientPod:
		why = "a pod is inside of the cluster"
	case x.Internal:
		why = fmt.Sprintf("clients behind %s are inside of the cluster", x.Client.Device)
	case name.InternalLocal == name.ExternalLocal:
		x.say("policy", "%s, for clients inside and outside of the cluster alike; its set is %s", trafficPolicy(local), x.Set)
		return
	default:
		why = fmt.Sprintf("clients behind %s are outside of the cluster", x.Client.Device)
	}
	leads := x.Set
	if x.Frontend != nil && local != (x.Set == setLocal) {
		leads += ", as for every client of this kind of address"
	}
	x.say("policy", "%s, %s: %s; its set is %s", which, trafficPolicy(local), why, leads)
}

// endpoints tells which endpoints are in the set, with their shares, and which are not.
func (x *Explanation) endpoints(set tables.Set) {
	r, id := x.reading, x.answer.Frontend.Service
	share := shares(r.Slots(set), evenly)
	for bid, b := range r.Backends {
		if b.Service != id {
			continue
		}
		e := ExplainedBackend{Backend: r.backend(bid, b), Share: share[bid]}
		if e.Share == 0 {
			e.Why = x.whyNot(e.Backend)
		}
		x.Backends = append(x.Backends, e)
	}
	slices.SortFunc(x.Backends, func(a, b ExplainedBackend) int { return a.compare(b.Backend) })
	text := r.set(set)
	switch {
	case text.Reason != "":
		x.say("set", "%s: %s", x.Set, text.Reason)
	case int(text.Slots) == len(text.Backends):
		x.say("set", "%s: %s", x.Set, Amount(len(text.Backends), "backend"))
	default:
		x.say("set", "%s: %s in %s", x.Set, Amount(len(text.Backends), "backend"), Amount(int(text.Slots), "slot"))
	}
}

// whyNot says why a backend has no slot in the set.
func (x *Explanation) whyNot(b Backend) string {
	in := slices.Contains(b.Sets, x.Set)
	switch {
	case in && b.Weight == 0 && b.Outlier != nil && b.Outlier.OnTrial:
		return "ejected, as connections to it have failed, and on trial: one new connection goes to it"
	case in && b.Weight == 0 && b.Outlier != nil && b.Outlier.Ejected:
		return fmt.Sprintf("ejected for %d s more: connections to it have failed", b.Outlier.EjectedSeconds)
	case in && b.Weight == 0 && x.reading.Services[x.answer.Frontend.Service].Algorithm == model.CountedRandom:
		return "its weight is 0, or nothing spills over to its zone"
	case in && b.Weight == 0:
		return "its weight is 0"
	case in:
		return "the tables have no room for it"
	case x.Set == setLocal && !b.OnNode:
		return "on another node, and the policy is Local"
	case b.Terminating:
		return "terminating, and others are ready"
	case !b.Ready:
		return "not ready"
	}
	return "topology hints give it to other nodes or zones"
}

// affinity tells what is remembered of the client.
func (x *Explanation) affinity(seconds uint32) error {
	a, r := x.answer, x.reading
	if !a.Has(bpf.SockBlExplainStepBL_EXPLAIN_AFFINITY) {
		x.say("affinity", "ClientIP, %d s: nothing is remembered of the client; it keeps what it gets now", seconds)
		return nil
	}
	now, err := bpf.Clock()
	if err != nil {
		return err
	}
	idle := max(0, now-time.Duration(a.Affinity.LastUsed))
	x.Affinity = &ExplainedAffinity{IdleSeconds: int64(idle / time.Second), Used: a.Has(bpf.SockBlExplainStepBL_EXPLAIN_RECALLED)}
	what := "a backend that is gone"
	if b, ok := r.Backends[a.Affinity.Backend.Id]; ok && b.Generation == a.Affinity.Backend.Generation {
		found := r.backend(a.Affinity.Backend.Id, b)
		x.Affinity.Backend, what = &found, b.AddrPort.String()
	}
	end := "and is used"
	switch {
	case x.Affinity.Used:
	case idle >= time.Duration(seconds)*time.Second:
		end = "and has expired"
	default:
		end = "which gets no new connections from this set"
	}
	x.say("affinity", "ClientIP, %d s: the client had %s %d s ago, %s", seconds, what, x.Affinity.IdleSeconds, end)
	return nil
}

// rules say how algorithms choose.
var rules = map[model.Algorithm]string{
	model.Random:             "any, by the shares",
	model.RoundRobin:         "one after the other, on each CPU for itself",
	model.WeightedRoundRobin: "one after the other by weight, on each CPU for itself",
	model.SourceHash:         "by a hash of the client's address: always the same",
	model.DestinationHash:    "by a hash of the Service's address: always the same",
	model.Maglev:             "by a hash of addresses and ports: another source port, another backend",
	model.LeastConn:          "the fewest active connections",
	model.WeightedLeastConn:  "the fewest active connections for the weight",
	model.ShortestDelay:      "the fewest active connections for the weight, this one among them",
	model.NeverQueue:         "an idle backend, else the fewest active connections for the weight, this one among them",
	model.Locality:           "the same backend until it is overloaded",
	model.LocalityReplicated: "one of a few backends, which become more when they are overloaded",
	model.EWMA:               "of two at random, the one with the lower round-trip time times active connections",
	model.CountedRandom:      "any, by the shares, which zone spill-over gives to other zones, too",
}

// balances tells by which algorithm a backend is chosen, and whether the choice is certain.
func (x *Explanation) balances(c *client) {
	service := x.reading.Services[x.answer.Frontend.Service]
	rule := rules[service.Algorithm]
	switch {
	case x.Affinity != nil && x.Affinity.Used:
		x.Certain = true
		return
	case service.Algorithm == model.Maglev && c.kind == clientSocket:
		rule = "a socket gets any, by the shares"
	case service.Algorithm == model.Maglev && service.AffinitySeconds > 0:
		rule = "with affinity by a hash of the client's address: always the same"
		x.Certain = true
	case service.Algorithm == model.Maglev:
		x.Certain = c.hasPort
	case service.Algorithm == model.SourceHash, service.Algorithm == model.DestinationHash:
		x.Certain = true
	}
	if len(slices.DeleteFunc(slices.Clone(x.Backends), func(b ExplainedBackend) bool { return b.Share == 0 })) == 1 {
		x.Certain = true
	}
	x.say("algorithm", "%s: %s", x.Algorithm, rule)
}

// chose tells the backend.
func (x *Explanation) chose() {
	r, a := x.reading, x.answer
	to := netip.AddrPortFrom(a.ToDst.Netip(), bpf.Hton16(a.ToDstPort))
	if b, ok := r.Backends[a.Backend.Id]; ok && b.AddrPort == to {
		found := r.backend(a.Backend.Id, b)
		x.Chosen = &found
	} else {
		x.Chosen = &Backend{ID: a.Backend.Id, Address: to.Addr(), TargetPort: to.Port(), Sets: []string{}}
	}
	how := "this time"
	if x.Certain {
		how = "always"
	}
	if x.goesOn() {
		how = "the flow's"
	}
	x.say("backend", "%s (%s)", to, how)
}

// refusal says why the connection is not served, and what the client meets.
func (x *Explanation) refusal(c *client) string {
	text := x.Reason
	for _, reason := range x.answer.Counted {
		if t := refusalReasons[statusmap.ReasonName(reason)]; t != "" {
			text = t
		}
	}
	meets := map[string]string{
		VerdictRefused: "TCP reset, or ICMP port unreachable",
		VerdictDropped: "no answer",
	}
	if c.kind == clientSocket {
		meets = map[string]string{VerdictRefused: "ECONNREFUSED", VerdictDropped: "EHOSTUNREACH"}
		if x.Protocol == model.UDP.String() && x.Service == nil {
			meets[VerdictRefused] += " when it sends; connect() of UDP alone sends nothing, and is let"
		}
	}
	return fmt.Sprintf("%s: %s; the client meets: %s", x.Verdict, text, meets[x.Verdict])
}

// afterChoice are the reasons for which a program drops a packet when it has chosen the backend.
var afterChoice = []bpf.SockBlReason{
	bpf.SockBlReasonBL_REASON_NO_SOURCE_PORT, bpf.SockBlReasonBL_REASON_NO_SOURCE_ADDRESS, bpf.SockBlReasonBL_REASON_FLOW_NOT_STORED,
}

// counted tells which counters would move. A Service port counts a connection when its backend is
// chosen, whatever the program, or the kernel after it, does with the packet.
func (x *Explanation) counted() {
	list := slices.Clone(x.Counters)
	if x.Service != nil {
		late := slices.ContainsFunc(x.answer.Counted, func(r bpf.SockBlReason) bool { return slices.Contains(afterChoice, r) })
		switch verdict := verdicts[bpf.SockBlVerdict(x.answer.Verdict)]; {
		case x.goesOn(): // counted when it began
		case verdict == VerdictServed, late:
			list = append(list, "connections of the Service port")
		case verdict == VerdictRefused, verdict == VerdictDropped:
			list = append(list, "refused of the Service port")
		}
	}
	if len(list) > 0 {
		x.say("counters", "%s", strings.Join(list, ", "))
	}
}
