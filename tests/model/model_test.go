package model_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/tests/lab"
)

// model is what clients and backends may see. It holds the contract and nothing of how
// programs keep it:
//
//   - A packet that opens a flow reaches a backend of its Service, from an address and
//     port of which the backend can tell it from all other flows.
//   - All further ones take the same path, until the flow expires or begins again.
//   - What the backend sends there comes to the client from where it sent to; errors quote
//     what their receiver sent.
//   - Addresses, ports, checksums and hops are all that changes. A wrong checksum stays
//     wrong by as much.
//   - What is of no flow, of no Service, or cut short, stays as it is.
type model struct {
	node  *node
	flows []flow // by conversation
	ids   uint16
	// forgotten: a flow was taken out of the table without the programs knowing.
	forgotten bool
}

// flow is how far a conversation has come.
type flow struct {
	// live: its packets are to be translated. halved: the forward entry is gone, so only
	// the backend's are.
	live, halved bool
	// backend and source are what the backend sees, of the last packet that it got.
	backend, source netip.AddrPort
	replied         bool
	established     bool // the client has gone on after a reply
	closing         bool // a FIN or a reset was seen
	// unsure: after a packet that no client sends, the table says whether there is a flow.
	unsure bool
	// loose: nothing is promised of the backend's packets after that.
	loose bool
	// remade: the forward entry was made from the reply's, which does not know the
	// endpoint, so a datagram may go to another one.
	remade         bool
	request, reply []byte
}

func nodeAddr(c conversation) netip.Addr {
	if c.client.Addr().Is4() {
		return lab.Node4
	}
	return lab.Node6
}

// ownerOf returns the conversation whose flow a backend's packet is of; -1 is none.
func (m *model) ownerOf(q sequence, protocol byte, backend, source netip.AddrPort) int {
	return slices.IndexFunc(q.conversations, func(c conversation) bool {
		f := &m.flows[slices.IndexFunc(q.conversations, func(o conversation) bool { return o.String() == c.String() })]
		return (f.live || f.halved) && c.protocol == protocol && f.backend == backend && f.source == source
	})
}

// run runs a sequence on a node without flows and returns what is wrong, and at which step.
func run(n *node, q sequence) (at int, err error) {
	if err := n.forget(nil, false); err != nil {
		return 0, err
	}
	flowmap.New(n.maps).CountHalfOpen(flowmap.New(n.maps).HalfOpen(), 0)
	if q.crowded {
		flowmap.New(n.maps).CountHalfOpen(flowmap.New(n.maps).HalfOpen(), n.maps.MaxFlows())
	}
	m := &model{node: n, flows: make([]flow, len(q.conversations))}
	for i, s := range q.steps {
		var cpu unix.CPUSet
		cpu.Set(n.cpus[s.cpu%len(n.cpus)])
		if err := unix.SchedSetaffinity(0, &cpu); err != nil {
			return i, err
		}
		if err := m.step(q, s); err != nil {
			return i, err
		}
		if err := m.compare(q); err != nil {
			return i, err
		}
	}
	return -1, nil
}

// step lets a step happen.
func (m *model) step(q sequence, s step) error {
	c, f := q.conversations[s.conversation], &m.flows[s.conversation]
	switch s.kind {
	case fromClient:
		return m.fromClient(q, s, c, f)
	case fromBackend:
		if !f.source.IsValid() {
			return nil
		}
		return m.fromBackend(q, s, c, f)
	case errorToClient:
		if !f.live || f.halved || f.request == nil {
			return nil
		}
		return m.errorToClient(s, c, f)
	case errorToServer:
		if !f.live || f.halved || f.reply == nil {
			return nil
		}
		return m.errorToServer(s, c, f)
	case toStranger:
		p := s.packet(c)
		p.to = strangers[s.icmp%len(strangers)](c)
		if !c.service.far && p.to == c.service.backends[0] {
			return nil // a conversation of its own, see directTo
		}
		what, out, err := m.node.receive(p.ip(), s.xdp, s.complete)
		if err != nil {
			return err
		}
		return wantUntouched(what, out, p.ip())
	case expires, evicts:
		m.forgotten = !q.crowded
		key := flowKey{c.client, c.service.addr, c.protocol}
		if err := m.node.forget(&key, s.kind == evicts); err != nil {
			return err
		}
		if s.kind == expires && !f.halved {
			f.live, f.halved = false, false
		} else if s.kind == evicts {
			f.halved = f.live || f.halved
		}
	}
	return nil
}

// opens reports whether a client's packet may begin a flow; odd, whether it is one that no
// client sends, of which nothing is promised but that it is not mangled.
func opens(c conversation, flags byte) (opens, odd bool) {
	if c.protocol == unix.IPPROTO_UDP {
		return true, false
	}
	return flags&(syn|ack|rst|fin) == syn, flags == 0 || flags&syn != 0 && flags != syn
}

func (m *model) fromClient(q sequence, s step, c conversation, f *flow) error {
	p := s.packet(c)
	m.ids++
	p.id = m.ids
	if s.fragment > 0 && len(p.segment()) > s.fragment && s.cut == 0 {
		return m.fragments(q, s, c, f, p)
	}
	in := spoiled(p.ip(), s.spoil)
	if cut := len(in) - s.cut; s.cut > 0 {
		if cut < len(in)-len(p.segment())+1 {
			return nil // the kernel runs no program on less
		}
		what, out, err := m.node.receive(in[:cut], s.xdp, s.complete)
		if err != nil {
			return err
		}
		return wantUntouched(what, out, in[:cut])
	}
	in = append(in, make([]byte, s.padding)...)
	what, out, err := m.node.receive(in, s.xdp, s.complete)
	if err != nil {
		return err
	}
	return m.judge(q, s, c, f, p, what, in, out)
}

// judge checks what became of a client's packet, and notes it.
func (m *model) judge(q sequence, s step, c conversation, f *flow, p packet, what effect, in, out []byte) error {
	open, odd := opens(c, s.flags)
	known := f.live && !f.halved
	if bytes.Equal(out, in) {
		if !m.mayStay(q, c, f, open, odd) {
			return fmt.Errorf("the client's packet is not translated, but %s", what)
		}
		f.unsure = odd
		return wantUntouched(what, out, in)
	}
	t, ok := parse(out)
	switch {
	case !ok:
		return fmt.Errorf("the client's packet becomes % x", out)
	case what == dropped:
		return errors.New("the client's packet is dropped")
	case !known && !open && !odd || !known && !odd && c.service.direct && !m.crosses(q, c):
		return fmt.Errorf("a packet of no flow becomes %s", t)
	case !slices.Contains(c.service.backends, t.to):
		return fmt.Errorf("the client's packet goes to %s, which is no backend", t.to)
	case c.service.far && (what != sent || t.from.Addr() != nodeAddr(c)):
		return fmt.Errorf("the packet for a backend elsewhere is %s, as %s", what, t)
	case !c.service.far && (what != passed || t.from.Addr() != c.client.Addr()):
		return fmt.Errorf("the packet for a backend on this node is %s, as %s", what, t)
	}
	anew := m.mayBeginAnew(c, f, open || odd)
	if known && !anew && (t.to != f.backend || t.from != f.source) {
		return fmt.Errorf("the flow goes as %s, before as %s > %s", t, f.source, f.backend)
	}
	for i, other := range m.flows {
		if other.live && !other.halved && q.conversations[i].String() != c.String() && q.conversations[i].protocol == c.protocol &&
			other.backend == t.to && other.source == t.from {
			return fmt.Errorf("%s is also that of %s", t, q.conversations[i])
		}
	}
	p.from, p.to = t.from, t.to
	if err := wantSame(what, out, append(spoiled(p.ip(), s.spoil), make([]byte, s.padding)...)); err != nil {
		return fmt.Errorf("the client's packet: %w", err)
	}
	m.note(s, c, f, t.tuple, out[:len(out)-s.padding], known && t.to == f.backend && t.from == f.source && !((open || odd) && f.closing))
	return nil
}

// crosses reports whether the backend that a client sends to knows the client's address and port
// by a flow already.
func (m *model) crosses(q sequence, c conversation) bool {
	for i, other := range q.conversations {
		f := &m.flows[i]
		if (f.live || f.halved) && other.protocol == c.protocol && other.String() != c.String() &&
			f.backend == c.service.addr && f.source == c.client {
			return true
		}
	}
	return false
}

// mayStay reports whether a client's packet may be left as it is. With that, a flow to a
// backend's own address may end.
func (m *model) mayStay(q sequence, c conversation, f *flow, open, odd bool) bool {
	known := f.live && !f.halved
	if !c.service.direct || !open || m.crosses(q, c) {
		return (!known || odd) && !open
	}
	if known && !m.mayBeginAnew(c, f, true) {
		return false
	}
	if known {
		*f = flow{}
	}
	return true
}

// mayBeginAnew reports whether a packet of a known flow may take another path than those
// before it.
func (m *model) mayBeginAnew(c conversation, f *flow, opens bool) bool {
	if c.protocol == unix.IPPROTO_UDP {
		return f.remade
	}
	return opens && (!f.established || f.closing)
}

// note keeps what a client's packet that was translated says of its flow.
func (m *model) note(s step, c conversation, f *flow, t tuple, out []byte, goesOn bool) {
	if !goesOn {
		*f = flow{}
	}
	f.live, f.halved, f.remade, f.backend, f.source = true, false, false, t.to, t.from
	f.request = bytes.Clone(out)
	if open, _ := opens(c, s.flags); c.protocol == unix.IPPROTO_UDP || !open {
		f.established = f.established || f.replied
	}
	f.closing = f.closing || c.protocol == unix.IPPROTO_TCP && s.flags&(fin|rst) != 0
}

// fragments sends a client's packet in fragments, in order. All go where the first one does.
func (m *model) fragments(q sequence, s step, c conversation, f *flow, p packet) error {
	in := p.fragments(s.fragment)
	if first, ok := parseFragment(in[0]); !ok || first < 8 || c.protocol == unix.IPPROTO_TCP && first < 20+len(p.tcpOptions) {
		return nil // its header is in several: nobody sends that
	}
	var out [][]byte
	for _, part := range in {
		what, got, err := m.node.receive(part, s.xdp, s.complete)
		if err != nil {
			return err
		}
		if what == dropped {
			return errors.New("a fragment is dropped")
		}
		out = append(out, got)
	}
	open, odd := opens(c, s.flags)
	known := f.live && !f.halved
	if bytes.Equal(out[0], in[0]) {
		if !m.mayStay(q, c, f, open, odd) {
			return errors.New("the first fragment is not translated")
		}
		f.unsure = odd
		for i := range in {
			if !bytes.Equal(out[i], in[i]) {
				return fmt.Errorf("fragment %d is changed, the first one not", i)
			}
		}
		return nil
	}
	if !known && !open && !odd {
		return errors.New("a fragment of no flow is translated")
	}
	t, ok := parse(out[0])
	if !ok || !slices.Contains(c.service.backends, t.to) {
		return fmt.Errorf("the first fragment goes as %s", t)
	}
	anew := m.mayBeginAnew(c, f, open || odd)
	if known && !anew && (t.to != f.backend || t.from != f.source) {
		return fmt.Errorf("the fragments go as %s, before as %s > %s", t, f.source, f.backend)
	}
	want := p
	want.from, want.to = t.from, t.to
	for i, part := range want.fragments(s.fragment) {
		if !sameButHops(out[i], part) {
			return fmt.Errorf("fragment %d becomes\n% x, want\n% x", i, out[i], part)
		}
	}
	m.note(s, c, f, t.tuple, out[0], known && t.to == f.backend && t.from == f.source && !((open || odd) && f.closing))
	return nil
}

func (m *model) fromBackend(q sequence, s step, c conversation, f *flow) error {
	p := s.packet(c)
	p.from, p.to = f.backend, f.source
	if s.cut > 0 {
		return nil
	}
	if s.fragment > 0 && len(p.segment()) > s.fragment {
		m.ids++
		p.id = m.ids
		return m.replyFragments(q, s, c, f, p)
	}
	in := append(spoiled(p.ip(), s.spoil), make([]byte, s.padding)...)
	what, out, err := m.byBackend(c, in, s)
	if err != nil {
		return err
	}
	owner := m.ownerOf(q, c.protocol, f.backend, f.source)
	if bytes.Equal(out, in) {
		if owner < 0 || m.mayPass(c, &m.flows[owner], s) {
			return wantUntouched(what, out, in)
		}
		return fmt.Errorf("the reply is not translated, but %s", what)
	}
	if owner < 0 {
		return fmt.Errorf("a packet of a backend, of no flow, becomes\n% x, was\n% x", out, in)
	}
	c, f = q.conversations[owner], &m.flows[owner]
	if want := map[bool]effect{true: sent, false: passed}[c.service.far]; what != want {
		return fmt.Errorf("the reply is %s, not %s", what, want)
	}
	p.from, p.to = c.service.addr, c.client
	if err := wantSame(what, out, append(spoiled(p.ip(), s.spoil), make([]byte, s.padding)...)); err != nil {
		return fmt.Errorf("the reply: %w", err)
	}
	f.live, f.replied = true, true
	f.reply = bytes.Clone(out[:len(out)-s.padding])
	f.closing = f.closing || c.protocol == unix.IPPROTO_TCP && s.flags&(fin|rst) != 0
	return nil
}

// replyFragments sends a backend's packet in fragments, in order.
func (m *model) replyFragments(q sequence, s step, c conversation, f *flow, p packet) error {
	in := p.fragments(s.fragment)
	if first, ok := parseFragment(in[0]); !ok || first < 8 || c.protocol == unix.IPPROTO_TCP && first < 20+len(p.tcpOptions) {
		return nil
	}
	var out [][]byte
	for _, part := range in {
		what, got, err := m.byBackend(c, part, s)
		if err != nil {
			return err
		}
		if what == dropped {
			return errors.New("a fragment of a reply is dropped")
		}
		out = append(out, got)
	}
	owner := m.ownerOf(q, c.protocol, f.backend, f.source)
	untouched := bytes.Equal(out[0], in[0])
	switch {
	case untouched && owner >= 0 && !m.mayPass(c, &m.flows[owner], s):
		return errors.New("the first fragment of a reply is not translated")
	case !untouched && owner < 0:
		return fmt.Errorf("the first fragment of no reply becomes % x", out[0])
	case !untouched:
		c, f = q.conversations[owner], &m.flows[owner]
		p.from, p.to = c.service.addr, c.client
	}
	for i, part := range p.fragments(s.fragment) {
		if !sameButHops(out[i], part) {
			return fmt.Errorf("fragment %d of a reply becomes\n% x, want\n% x", i, out[i], part)
		}
	}
	if untouched {
		return nil
	}
	f.live, f.replied, f.reply = true, true, bytes.Clone(out[0])
	f.closing = f.closing || c.protocol == unix.IPPROTO_TCP && s.flags&(fin|rst) != 0
	return nil
}

// mayPass reports whether a backend's packet may be left to the node: the first answer to a
// SYN that is none.
func (m *model) mayPass(c conversation, f *flow, s step) bool {
	return f.loose || c.protocol == unix.IPPROTO_TCP && (!f.replied || f.halved) && s.flags != syn|ack
}

// byBackend returns what becomes of a packet that a backend, or something behind the node,
// sends.
func (m *model) byBackend(c conversation, in []byte, s step) (effect, []byte, error) {
	if c.service.far {
		return m.node.receive(in, s.xdp, s.complete)
	}
	return m.node.run("bl_egress", in, s.complete)
}

// errorToClient has an ICMP error about the last request come from beyond the node.
func (m *model) errorToClient(s step, c conversation, f *flow) error {
	from := f.backend.Addr()
	in := icmpError(from, f.source.Addr(), icmpKinds[s.icmp], quoted(f.request, s.quote))
	what, out, err := m.byBackend(c, in, s)
	if err != nil {
		return err
	}
	want := map[bool]effect{true: sent, false: passed}[c.service.far]
	return wantError(what, want, out, in, c.client.Addr(), tuple{c.client, c.service.addr, c.protocol})
}

// errorToServer has an ICMP error about the last reply come from the client's side.
func (m *model) errorToServer(s step, c conversation, f *flow) error {
	in := icmpError(c.client.Addr(), c.service.addr.Addr(), icmpKinds[s.icmp], quoted(f.reply, s.quote))
	what, out, err := m.node.receive(in, s.xdp, s.complete)
	if err != nil {
		return err
	}
	want := map[bool]effect{true: sent, false: passed}[c.service.far]
	return wantError(what, want, out, in, f.backend.Addr(), tuple{f.backend, f.source, c.protocol})
}

// quoted returns the beginning of a packet, its IP header and so many bytes more.
func quoted(ip []byte, size int) []byte {
	p, _ := parse(ip)
	return bytes.Clone(ip[:min(len(ip), p.body+size, 1000)])
}

// compare compares the table with the model, and the count of flows that are half-open with
// the table.
func (m *model) compare(q sequence) error {
	all, err := m.node.flows()
	if err != nil {
		return err
	}
	halfOpen := 0
	for _, f := range all {
		if f.State.HalfOpen() && !f.Overflow {
			halfOpen++
		}
	}
	if before := flowmap.New(m.node.maps).HalfOpen(); m.forgotten {
		flowmap.New(m.node.maps).CountHalfOpen(before, halfOpen) // as the agent's walk does
		m.forgotten = false
	} else if !q.crowded && before.Count != int64(halfOpen) {
		return fmt.Errorf("%d flows count as half-open, the table has %d", before.Count, halfOpen)
	}
	for i, c := range q.conversations {
		f, key := &m.flows[i], flowKey{c.client, c.service.addr, c.protocol}
		entry, there := all[key]
		delete(all, key)
		if f.unsure {
			f.unsure, f.live, f.halved = false, there, !there && (f.live || f.halved)
			f.loose = f.loose || f.halved
		}
		if there && f.halved { // a reply has made it again, within a second or not
			f.halved, f.remade = false, true
		}
		if there != (f.live && !f.halved) {
			return fmt.Errorf("%s: the table has a flow: %t, the model: %t", c, there, f.live && !f.halved)
		}
		if there && (entry.Backend != f.backend || entry.Source != f.source) {
			return fmt.Errorf("%s: the table has %s > %s, packets go as %s > %s", c, entry.Source, entry.Backend, f.source, f.backend)
		}
	}
	for key := range all {
		return fmt.Errorf("the table has a flow of nobody: %v", key)
	}
	return nil
}
