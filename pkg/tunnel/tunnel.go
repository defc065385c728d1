// Package tunnel probes which nodes accept tunnel traffic (direct server return): it asks their
// agents at the tunnel's own port, and answers theirs.
//
// An answer proves that Beeline runs there with the tunnel on, and that the network lets the
// port through. While it is missing, packets reach that node's backends by SNAT.
package tunnel

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/pkg/udpsocket"
)

const (
	// A node is asked every interval; while it has not answered yet every eager, but
	// eagerly no more than eagerTries times.
	interval   = 10 * time.Second
	eager      = 2 * time.Second
	eagerTries = 5
	// timeout is how long an answer may take.
	timeout = time.Second
	// missable is after how many questions without an answer a node counts as unreachable.
	// An agent may be away for two, about 20 s: its programs go on without it.
	missable = 3
	// UnreachableAfter is the longest time for which other nodes may use the tunnel to one
	// whose agent has ended.
	UnreachableAfter = missable*interval*11/10 + timeout
	// pace is the shortest time between two answers to one node that has shown the secret, and
	// between two to one that has not.
	pace = 200 * time.Millisecond
	// retry is how long to wait before the port is asked for again that another program
	// has.
	retry = 10 * time.Second
)

// Nodes are the datapath's nodes; [nodemap.Table] implements it.
type Nodes interface {
	// NodeOf returns the id of the node that has an address; 0 is none.
	NodeOf(addr netip.Addr) (uint16, error)
	// Answer returns the answer that was set last.
	Answer(id uint16) nodemap.Answer
	SetAnswer(id uint16, addr netip.Addr, answer nodemap.Answer)
}

// Options configure a [Prober].
type Options struct {
	// Port is the UDP port of the tunnel.
	Port  uint16
	Nodes Nodes
	// Accepts reports whether this node accepts tunnel traffic that comes in by a device.
	Accepts func(ifindex int) bool
	// Secrets are those of the cluster at first; see [Prober.SetSecrets].
	Secrets Secrets
}

// Prober asks and answers. Make one with [New].
type Prober struct {
	opts Options
	// Tests change these.
	listenOn                 []netip.Addr
	interval, eager, timeout time.Duration

	mu       sync.Mutex
	secrets  Secrets
	nodes    int        // of the cluster
	self     netip.Addr // where the tunnel to this node ends
	peers    map[uint16]*peer
	answered map[asker]time.Time // the last answer
	sockets  udpsocket.Pair

	wake chan struct{}
}

// asker is who gets answers at a pace of its own. Anybody can forge a node's address, so what
// does not show the secret uses up no answer of what does.
type asker struct {
	id       uint16
	verified bool
}

// peer is a node that is asked.
type peer struct {
	id     uint16
	addr   netip.Addr
	answer nodemap.Answer

	next    time.Time // when to ask again
	until   time.Time // when the answer has to be there; zero: none is due
	nonce   uint64    // of the last question
	asked   int       // since it last said that it accepts tunnel traffic
	missing int       // questions since the last answer that have timed out
}

// New returns a prober, which asks no node before Run.
func New(o Options) *Prober {
	return &Prober{
		opts:     o,
		secrets:  o.Secrets,
		listenOn: []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()},
		interval: interval, eager: eager, timeout: timeout,
		peers:    make(map[uint16]*peer),
		answered: make(map[asker]time.Time),
		wake:     make(chan struct{}, 1),
	}
}

// SetNodes replaces the nodes of the cluster. Those with backends that packets are to be
// tunneled to are asked. What a node has said before, also to a former agent, holds until
// it is unreachable.
func (p *Prober) SetNodes(list []tables.NodeUse) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.peers
	p.nodes = len(list)
	p.self = netip.Addr{}
	p.peers = make(map[uint16]*peer)
	for _, t := range list {
		if t.Self {
			p.self = t.Addr
		}
		if t.Self || !t.Used {
			if p.opts.Nodes.Answer(t.ID) != nodemap.NotAsked {
				p.opts.Nodes.SetAnswer(t.ID, t.Addr, nodemap.NotAsked)
			}
			continue
		}
		known := before[t.ID]
		if known == nil || known.addr != t.Addr {
			known = &peer{id: t.ID, addr: t.Addr, answer: p.opts.Nodes.Answer(t.ID), next: now.Add(jitter(len(list)))}
			if known.answer == nodemap.NotAsked {
				p.say(known, nodemap.Asked)
			}
		}
		p.peers[t.ID] = known
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// SetSecrets replaces the secrets of the cluster. When another one is sent from now on, nodes
// get no packets by the tunnel until they have said that they accept it: so it is to be called
// before packets have it.
func (p *Prober) SetSecrets(s Secrets) {
	p.mu.Lock()
	defer p.mu.Unlock()
	same := p.secrets.sent() == s.sent()
	p.secrets = s
	if same {
		return
	}
	for _, peer := range p.peers {
		p.say(peer, nodemap.Asked)
		peer.nonce, peer.until, peer.next, peer.asked = 0, time.Time{}, time.Now(), 0
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// jitter returns how long to wait before a node is asked for the first time, so that many
// nodes are not asked all at once.
func jitter(nodes int) time.Duration {
	return rand.N(min(time.Duration(nodes)*time.Millisecond, eager))
}

// Run asks and answers until ctx ends. The port is open while there are nodes only.
func (p *Prober) Run(ctx context.Context) {
	told := ""
	for ctx.Err() == nil {
		if !p.wanted() {
			select {
			case <-ctx.Done():
			case <-p.wake:
			}
			continue
		}
		var err error
		if p.sockets, err = udpsocket.Open(ctx, p.listenOn, p.opts.Port); err == nil {
			told = ""
			p.serve(ctx)
			continue
		}
		if err.Error() != told {
			klog.ErrorS(err, "Other nodes cannot be asked whether they accept tunnel traffic, trying again", "port", p.opts.Port)
			told = err.Error()
		}
		pause.For(ctx, retry)
	}
}

// wanted reports whether there are nodes.
func (p *Prober) wanted() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.nodes > 0
}

// serve asks and answers by the open sockets, and closes them.
func (p *Prober) serve(ctx context.Context) {
	var readers sync.WaitGroup
	for _, s := range p.sockets {
		if s != nil {
			readers.Go(func() { p.receive(s) })
		}
	}
	p.ask(ctx)
	p.sockets.Close()
	readers.Wait()
}

// ask asks the nodes whose time has come, while there are any.
func (p *Prober) ask(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for p.wanted() {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		case <-timer.C:
		}
		due, next := p.due(time.Now())
		for _, q := range due {
			p.question(q)
		}
		// Nodes whose time comes almost together are asked together.
		timer.Reset(max(time.Until(next), 20*time.Millisecond))
	}
}

// question is one to be asked.
type question struct {
	from, addr netip.Addr
	message
}

// due returns the questions of now, and when the next ones are.
func (p *Prober) due(now time.Time) (list []question, next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next = now.Add(p.interval)
	for _, peer := range p.peers {
		if !peer.until.IsZero() && !now.Before(peer.until) {
			peer.until = time.Time{}
			if peer.missing++; peer.missing >= missable {
				p.say(peer, nodemap.Unreachable)
			}
		}
		if !now.Before(peer.next) {
			peer.nonce = rand.Uint64()
			peer.asked++
			peer.until, peer.next = now.Add(p.timeout), now.Add(p.pause(peer))
			q := message{version: version, kind: kindQuestion, nonce: peer.nonce, signed: true}
			q.code = p.secrets.sent().sign(q, peer.addr)
			list = append(list, question{p.source(peer.addr), peer.addr, q})
		}
		for _, t := range []time.Time{peer.next, peer.until} {
			if !t.IsZero() && t.Before(next) {
				next = t
			}
		}
	}
	return list, next
}

// source returns the address from which packets in the tunnel to an address come, so that an answer says that
// this one is accepted. Not valid where the device decides; see bl_tunnel_source.
func (p *Prober) source(to netip.Addr) netip.Addr {
	if p.self.Is4() == to.Is4() {
		return p.self
	}
	return netip.Addr{}
}

// pause returns how long to wait before a node is asked again.
func (p *Prober) pause(peer *peer) time.Duration {
	if peer.answer != nodemap.Accepts && peer.asked < eagerTries {
		return p.eager
	}
	return p.interval*9/10 + rand.N(p.interval/5)
}

// question asks a node. One that cannot be sent is a question without an answer.
func (p *Prober) question(q question) {
	s := p.sockets.Of(q.addr)
	if s == nil {
		return
	}
	if err := s.Send(q.marshal(), q.from, netip.AddrPortFrom(q.addr, p.opts.Port)); err != nil {
		klog.V(2).ErrorS(err, "A node cannot be asked whether it accepts tunnel traffic", "node", q.addr)
	}
}

// receive takes messages until the socket is closed.
func (p *Prober) receive(s *udpsocket.Socket) {
	s.Each(func(b []byte, from netip.AddrPort, to udpsocket.Origin) {
		m, ok := parse(b)
		if !ok {
			return
		}
		id, err := p.opts.Nodes.NodeOf(from.Addr())
		if err != nil || id == 0 {
			return // a stranger
		}
		switch m.kind {
		case kindQuestion:
			p.reply(s, id, m, from, to)
		case kindAnswer:
			p.heard(id, m)
		}
	})
}

// reply answers a node; with no, when the question has no secret that is accepted here.
func (p *Prober) reply(s *udpsocket.Socket, id uint16, m message, from netip.AddrPort, to udpsocket.Origin) {
	p.mu.Lock()
	secrets := p.secrets
	p.mu.Unlock()
	verified := secrets.verify(m, to.Addr)
	if !p.mayAnswer(asker{id, verified}, time.Now()) {
		return
	}
	a := message{version: version, kind: kindAnswer, nonce: m.nonce, signed: m.signed}
	if verified && p.opts.Accepts(to.Ifindex) {
		a.flags |= flagAccepts
	}
	if a.signed {
		a.code = secrets.sent().sign(a, to.Addr)
	}
	if err := s.Send(a.marshal(), to.Addr, from); err != nil {
		klog.V(2).ErrorS(err, "A node that asks about the tunnel cannot be answered", "node", from)
	}
}

// mayAnswer reports whether an answer keeps to the pace, and notes it then.
func (p *Prober) mayAnswer(to asker, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.answered[to]) < pace {
		return false
	}
	p.answered[to] = now
	return true
}

// heard notes an answer to the last question. One without the cluster's secret says no, for the
// node does not accept what is sent.
func (p *Prober) heard(id uint16, m message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	peer := p.peers[id]
	if peer == nil || m.nonce != peer.nonce || peer.until.IsZero() {
		return
	}
	peer.until, peer.missing = time.Time{}, 0
	answer := nodemap.Refuses
	if m.version == version && m.flags&flagAccepts != 0 && p.secrets.verify(m, peer.addr) {
		answer, peer.asked = nodemap.Accepts, 0
	}
	p.say(peer, answer)
	peer.next = time.Now().Add(p.pause(peer))
}

// say records the answer of a node, also the same one again: somebody may have changed the entry. The caller has
// the lock.
func (p *Prober) say(peer *peer, answer nodemap.Answer) {
	if peer.answer == nodemap.Accepts && answer != nodemap.Accepts {
		klog.InfoS("Node no longer accepts tunnel traffic, new connections reach it by SNAT", "node", peer.addr, "answer", answer)
	}
	peer.answer = answer
	p.opts.Nodes.SetAnswer(peer.id, peer.addr, answer)
}
