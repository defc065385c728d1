package inspect

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/explain"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/policy"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// What would become of a connection.
const (
	VerdictServed    = "served"
	VerdictRefused   = "refused" // the client is told
	VerdictDropped   = "dropped" // the client gets no answer; a socket fails with EHOSTUNREACH
	VerdictNoService = "no-service"
)

// Why the kernel drops what the programs let pass to an endpoint. No counter of Beeline has these.
const (
	ReasonMartianDestination = "martian_destination" // the endpoint's address is a loopback one
	ReasonNotForwarded       = "not_forwarded"       // the endpoint is elsewhere, and forwarding is off
)

// Explanation is what would happen to a new connection, by the steps that the programs take.
type Explanation struct {
	Client   ExplainedClient `json:"client"`
	Address  netip.Addr      `json:"address"`
	Port     uint16          `json:"port"`
	Protocol string          `json:"protocol"`
	// Verdict is served, refused, dropped or no-service.
	Verdict string `json:"verdict"`
	// Unseen says that no program sees the connection, whatever Services there are. The verdict is
	// no-service then.
	Unseen bool `json:"unseen,omitempty"`
	// Reason is the counter that stands for why it is refused or dropped, or
	// [ReasonMartianDestination] or [ReasonNotForwarded].
	Reason string `json:"reason,omitempty"`
	// Steps say in words what was looked up, in this order, and what it led to.
	Steps []ExplainedStep `json:"steps"`
	// Service, Frontend, Algorithm and Set are absent where no Service was found, or not asked.
	Service  *PortName `json:"service,omitempty"`
	Frontend *Frontend `json:"frontend,omitempty"`
	// Clashes are the Services that want the frontend, too, and go without it.
	Clashes []ExplainedClash `json:"clashes,omitempty"`
	// Internal says that the client is under the internal traffic policy.
	Internal  bool   `json:"internal,omitempty"`
	Set       string `json:"set,omitempty"` // cluster, local
	Algorithm string `json:"algorithm,omitempty"`
	// Affinity is what is remembered of the client.
	Affinity *ExplainedAffinity `json:"affinity,omitempty"`
	// Backends are those of the Service port, in the set or not.
	Backends []ExplainedBackend `json:"backends"`
	// Chosen is the backend of this try. Certain says that the next connection of this client
	// goes there, too, while nothing changes, or the next packet of its flow; else to any one, by the
	// shares.
	Chosen  *Backend       `json:"chosen,omitempty"`
	Certain bool           `json:"certain,omitempty"`
	Path    *ExplainedPath `json:"path,omitempty"`
	// Counters would move by the connection, or its first packet.
	Counters []string `json:"counters"`

	reading *reading
	answer  *explain.Answer
}

// ExplainedClient is who connects.
type ExplainedClient struct {
	Kind string `json:"kind"` // socket, packet, pod-packet, node-packet
	// Address and Port are those of packets, and what a socket is bound to; absent when it is not.
	Address netip.Addr `json:"address,omitzero"`
	Port    uint16     `json:"port,omitempty"`
	Device  string     `json:"device,omitempty"` // by which packets come in
	XDP     string     `json:"xdp,omitempty"`    // native, generic or off, there
	Netns   string     `json:"netns,omitempty"`  // cookie of a socket's network namespace
}

// ExplainedStep is one step: what was looked up, and what it led to.
type ExplainedStep struct {
	Step   string `json:"step"`
	Result string `json:"result"`
}

// ExplainedAffinity is what session affinity remembers of the client.
type ExplainedAffinity struct {
	Backend     *Backend `json:"backend,omitempty"` // absent: its id is not in use any more
	IdleSeconds int64    `json:"idleSeconds"`
	Used        bool     `json:"used"` // the connection goes there
}

// ExplainedBackend is an endpoint with its share of new connections.
type ExplainedBackend struct {
	Backend
	Share float64 `json:"share"` // 0 to 1
	// Why says why it gets none.
	Why string `json:"why,omitempty"`
}

// ExplainedPath is how the connection gets to the backend.
type ExplainedPath struct {
	Hook string `json:"hook"` // socket, tc, xdp
	// SNAT, DSR or none: what the backend sees, which is Source.
	Forwarding string         `json:"forwarding"`
	Source     netip.AddrPort `json:"source,omitzero"`
	Node       string         `json:"node,omitempty"` // to which the tunnel leads
	Device     string         `json:"device,omitempty"`
	Gateway    netip.Addr     `json:"gateway,omitzero"`
}

// ExplainOptions is the question.
type ExplainOptions struct {
	// From is the client: "" is a process in the calling thread's network namespace; or a path of
	// such a namespace, or its name below /run/netns; or an address, of this node, of a pod of it,
	// or of a host elsewhere, with a source port or without.
	From string
	// To is asked for by the protocol.
	To       netip.AddrPort
	Protocol model.Protocol
}

// protocols are the numbers of IP.
var protocols = map[model.Protocol]uint8{model.TCP: 6, model.UDP: 17, model.SCTP: 132}

// Explainer explains connections. It is to be called from the network namespace of the node.
type Explainer struct {
	datapath *Datapath
	programs *explain.Programs
}

// Explainer returns one, to be closed before the datapath is.
func (d *Datapath) Explainer() *Explainer {
	return &Explainer{d, explain.New(d.maps, d.bpffs)}
}

// Close unloads the programs.
func (e *Explainer) Close() error { return e.programs.Close() }

// Explain says what would happen to a connection. Nothing is stored.
func (e *Explainer) Explain(o ExplainOptions) (*Explanation, error) {
	if err := e.datapath.needAll(); err != nil {
		return nil, err
	}
	r, err := e.datapath.read()
	if err != nil {
		return nil, err
	}
	return e.explain(r, o)
}

// explain is Explain by a reading, which may be large: explanations of one question share it.
func (e *Explainer) explain(r *reading, o ExplainOptions) (*Explanation, error) {
	who, err := e.datapath.client(o)
	if err != nil {
		return nil, err
	}
	defer who.close()
	question := explain.Question{From: who.from, To: o.To, Protocol: protocols[o.Protocol]}
	x := &Explanation{
		Client: who.explained(), Address: o.To.Addr().Unmap(), Port: o.To.Port(), Protocol: o.Protocol.String(),
		Backends: []ExplainedBackend{}, Counters: []string{}, reading: r,
	}
	x.say("client", "%s", who.text)
	if who.unserved != "" {
		x.Verdict, x.Unseen = VerdictNoService, true
		x.say("datapath", "%s", who.unserved)
		return x, nil
	}
	if x.answer, err = e.ask(who, question); errors.Is(err, datapath.ErrNotAttached) {
		x.Verdict, x.Unseen = VerdictNoService, true
		x.say("datapath", "%v: nothing is served", err)
		return x, nil
	} else if err != nil {
		return nil, err
	}
	return x, x.fill(e.datapath, who)
}

// ExplainService returns an explanation for each frontend of a Service, also for those that it wants
// and other Services have. The error is a [NoFrontendError] when there is none to explain.
func (e *Explainer) ExplainService(name model.Name, from string) ([]*Explanation, error) {
	r, err := e.datapath.readServices()
	if err != nil {
		return nil, err
	}
	s, err := e.datapath.service(r, name)
	if err != nil {
		return nil, err
	}
	if err := e.datapath.needAll(); err != nil {
		return nil, err
	}
	var own []tables.FrontendKey
	for _, p := range s.Ports {
		for _, f := range p.Frontends {
			if f.IsAddress() {
				continue
			}
			protocol, err := model.ParseProtocol(f.Protocol)
			if err != nil {
				return nil, err
			}
			own = append(own, tables.FrontendKey{Addr: f.Address, Port: f.Port, Protocol: protocol})
		}
	}
	keys := append(own, r.lost(s)...)
	var list []*Explanation
	for _, key := range keys {
		x, err := e.explainFrontend(r, key, from)
		if err != nil {
			return nil, err
		}
		list = append(list, x...)
	}
	if len(list) == 0 {
		return nil, noFrontend(name, s.Unapplied, keys, from)
	}
	return list, nil
}

// NoFrontendError is a Service that the client finds no frontend of. It is an [ErrNotFound].
type NoFrontendError struct {
	Name model.Name
	// Client is the client's address when the Service has frontends of the other family alone.
	Client netip.Addr
	// Unapplied is why the Service is not served in full; nil: it is.
	Unapplied *Unapplied
}

// noFrontend returns the error of a Service of whose frontends none could be explained.
func noFrontend(name model.Name, unapplied *Unapplied, keys []tables.FrontendKey, from string) error {
	e := &NoFrontendError{Name: name, Unapplied: unapplied}
	client, _, err := parseFrom(from)
	sameFamily := func(key tables.FrontendKey) bool { return key.Addr.Is4() == client.Addr().Is4() }
	if err == nil && len(keys) > 0 && !slices.ContainsFunc(keys, sameFamily) {
		e.Client = client.Addr()
	}
	return e
}

// Error names the Service, and says why the client finds no frontend of it.
func (e *NoFrontendError) Error() string {
	text, why := fmt.Sprintf("service %s has no frontend on this node", e.Name), ": "
	if e.Client.IsValid() {
		text = fmt.Sprintf("service %s has no %s frontend for the client %s", e.Name, model.FamilyOf(e.Client), e.Client)
		why = "; it is not served in full: "
	}
	if e.Unapplied != nil {
		text += why + e.Unapplied.Error
	}
	return text
}

// Unwrap makes errors.Is(err, ErrNotFound) true.
func (e *NoFrontendError) Unwrap() error { return ErrNotFound }

// explainFrontend explains one frontend; a NodePort at an address of the node, if there is one.
func (e *Explainer) explainFrontend(r *reading, key tables.FrontendKey, from string) ([]*Explanation, error) {
	addr := key.Addr
	var others []NodeAddress
	if addr.IsUnspecified() {
		found := r.nodeAddresses(addr)
		if len(found) == 0 {
			return nil, nil
		}
		addr, others = found[0].Address, found[1:]
	}
	x, err := e.explain(r, ExplainOptions{From: from, To: netip.AddrPortFrom(addr, key.Port), Protocol: key.Protocol})
	if errors.Is(err, errFamily) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	x.nodePortAt(others)
	return []*Explanation{x}, nil
}

// nodeAddresses returns the addresses of the family of any at which NodePorts are served, those that are
// for this node alone last.
func (r *reading) nodeAddresses(any netip.Addr) []NodeAddress {
	var found []NodeAddress
	for _, a := range nodeAddresses(r.Snapshot) {
		if a.Address.Is4() == any.Is4() {
			found = append(found, a)
		}
	}
	slices.SortStableFunc(found, func(a, b NodeAddress) int {
		switch {
		case a.HostOnly == b.HostOnly:
			return 0
		case a.HostOnly:
			return 1
		}
		return -1
	})
	return found
}

// ask has the programs answer. A packet that belongs to a flow that is there, by chance, gets
// another source port.
func (e *Explainer) ask(c *client, q explain.Question) (answer *explain.Answer, err error) {
	if c.kind == clientSocket {
		err = c.run(func() error {
			answer, err = e.programs.Socket(q, c.cookie)
			return err
		})
		return answer, err
	}
	for range 64 {
		answer, err = e.programs.Packet(q, c.ifindex, hooks[c.kind])
		if err != nil || c.hasPort || !answer.Has(bpf.SockBlExplainStepBL_EXPLAIN_KNOWN_FLOW) {
			return answer, err
		}
		q.From = netip.AddrPortFrom(q.From.Addr(), q.From.Port()+1)
	}
	return answer, err
}

// say adds a step.
func (x *Explanation) say(step, format string, args ...any) {
	x.Steps = append(x.Steps, ExplainedStep{step, fmt.Sprintf(format, args...)})
}

// verdicts are those of programs.
var verdicts = map[bpf.SockBlVerdict]string{
	bpf.SockBlVerdictBL_VERDICT_PASSES:     VerdictNoService,
	bpf.SockBlVerdictBL_VERDICT_TRANSLATED: VerdictServed,
	bpf.SockBlVerdictBL_VERDICT_DROPPED:    VerdictDropped,
	bpf.SockBlVerdictBL_VERDICT_REFUSED:    VerdictRefused,
}

// fill names what the answer has.
func (x *Explanation) fill(d *Datapath, c *client) error {
	a := x.answer
	x.Verdict = verdicts[bpf.SockBlVerdict(a.Verdict)]
	for _, reason := range a.Counted {
		name := statusmap.ReasonName(reason)
		if name == "" {
			continue
		}
		x.Counters = append(x.Counters, name)
		if x.Verdict == VerdictRefused || x.Verdict == VerdictDropped {
			x.Reason = name
		}
	}
	x.Client.Port = bpf.Hton16(a.Query.SrcPort)
	if a.Has(bpf.SockBlExplainStepBL_EXPLAIN_NOT_SERVED) {
		x.Unseen = true
		x.say("datapath", "sockets of this network namespace are left alone: those of the node alone are served, or its nat rules are to see the Service's address")
		return nil
	}
	if a.Has(bpf.SockBlExplainStepBL_EXPLAIN_KNOWN_FLOW) {
		if x.Certain = x.goesOn(); x.Certain && x.Verdict == VerdictDropped {
			x.Reason = statusmap.ReasonName(bpf.SockBlReasonBL_REASON_NO_SOURCE_ADDRESS)
		}
		x.say("flow", "%s", x.flow())
	}
	x.found()
	if err := x.clashes(d); err != nil {
		return err
	}
	if a.Has(bpf.SockBlExplainStepBL_EXPLAIN_SET) {
		if err := x.balanced(c); err != nil {
			return err
		}
	}
	switch x.Verdict {
	case VerdictServed:
		x.chose()
		if err := x.path(d, c); err != nil {
			return err
		}
	case VerdictRefused, VerdictDropped:
		x.say("verdict", "%s", x.refusal(c))
	case VerdictNoService:
		if x.Service != nil {
			x.say("verdict", "%s: a connection of this node has these addresses and ports, so its packets go to the stack", x.Verdict)
		}
	}
	x.counted()
	return nil
}

// goesOn reports whether the packet is one of a flow that is there.
func (x *Explanation) goesOn() bool {
	return x.answer.Has(bpf.SockBlExplainStepBL_EXPLAIN_KNOWN_FLOW) && !x.answer.Has(bpf.SockBlExplainStepBL_EXPLAIN_FLOW_OVER)
}

// frontendKey returns the key of the frontend that was found.
func (x *Explanation) frontendKey(protocol model.Protocol) (tables.FrontendKey, bool) {
	for _, key := range frontendsAt(netip.AddrPortFrom(x.Address, x.Port), protocol) {
		if f, ok := x.reading.Frontends[key]; ok && f.Service == x.answer.Frontend.Service {
			return key, true
		}
	}
	return tables.FrontendKey{}, false
}

// balanced tells of set, endpoints, affinity and algorithm.
func (x *Explanation) balanced(c *client) error {
	a, r := x.answer, x.reading
	id := a.Frontend.Service
	service := r.Services[id]
	x.Internal = a.Has(bpf.SockBlExplainStepBL_EXPLAIN_INTERNAL)
	x.Algorithm = service.Algorithm.String()
	x.Set = setCluster
	set := service.Cluster
	if a.Member == uint32(bpf.SockBlBackendStateBL_BACKEND_LOCAL) {
		x.Set, set = setLocal, service.Local
	}
	x.policy(c)
	x.endpoints(set)
	if service.AffinitySeconds == 0 {
		x.say("affinity", "none")
	} else if err := x.affinity(service.AffinitySeconds); err != nil {
		return err
	}
	if set.Kind == policy.Backends {
		x.balances(c)
	}
	return nil
}
