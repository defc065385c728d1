// Package demand tells how many active connections the clients of each zone have, for zone spill-over:
// agents ask each other at a UDP port of their own.
//
// Each node counts its own clients' connections, wherever they go. What the nodes of a zone have
// answered is the zone's, in proportion to how many have. Where less than half of a zone's nodes
// answer, nothing is known of the Service, and no connection is to leave its zone.
package demand

import (
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/pause"
	"github.com/beeline-lb/beeline/pkg/udpsocket"
)

const (
	// period is how often each node is asked, and what is known told, in a cluster of up to period *
	// pace nodes; in larger ones each is asked as often as pace allows.
	period = 10 * time.Second
	pace   = 100 // questions a second
	// sample is how often this node's own connections are counted; their mean forgets half of what was
	// in half.
	sample = time.Second
	half   = 15 * time.Second
	// timeout is how long an answer may take: then what is known is told, while it is new.
	timeout = time.Second
	// An answer counts for so many rounds.
	rounds = 3
	// answerPause is the shortest time between two answers to one node.
	answerPause = 200 * time.Millisecond
	// retry is how long to wait before the port is asked for again that another program
	// has.
	retry = 10 * time.Second
)

// Zones are the active connections of a Service's clients by their zone.
type Zones = map[string]float64

// Options configure an [Exchange].
type Options struct {
	// Port is the UDP port of all agents.
	Port uint16
	// Count returns how many active connections the clients of this node have to each of some Services.
	Count func([]model.Name) map[model.Name]int
	// Told is called about every 10 s, when all nodes have been asked once more, with the Services of
	// which enough is known.
	Told func(map[model.Name]Zones)
}

// Exchange asks and answers. Make one with [New].
type Exchange struct {
	opts Options
	// Tests change these.
	listenOn                      []netip.Addr
	period, timeout, sample, half time.Duration

	mu       sync.Mutex
	services []model.Name
	names    map[key]model.Name // of services
	own      map[model.Name]*mean
	zone     string // of this node
	nodes    map[string]*node
	byAddr   map[netip.Addr]*node
	wake     chan struct{}
}

// node is another node.
type node struct {
	model    *model.Node
	answered time.Time // when it was last answered
	nonce    uint64    // of the last question; 0: it is answered
	heard    time.Time // when it last answered
	known    map[key]uint32
}

// mean is the exponentially weighted mean of what is counted from time to time.
type mean struct {
	value float64
	known bool
}

// add takes what is counted some time after the last, so many times that in which half is forgotten.
func (m *mean) add(count, halvings float64) {
	if !m.known {
		m.value, m.known = count, true
		return
	}
	m.value = count + (m.value-count)*math.Exp2(-halvings)
}

// New returns an exchange, which asks no node before Run.
func New(o Options) *Exchange {
	return &Exchange{
		opts:     o,
		listenOn: []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()},
		period:   period, timeout: timeout, sample: sample, half: half,
		own:   make(map[model.Name]*mean),
		nodes: make(map[string]*node),
		wake:  make(chan struct{}, 1),
	}
}

// Set replaces the Services that are asked about, model.MaxSpillOvers at most, and the nodes of the cluster, of
// which self is this one. No two have an address; a node that packets reach at another one's is not
// asked. Without Services the port is closed.
func (x *Exchange) Set(services []model.Name, nodes []*model.Node, self *model.LocalNode) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.services, x.zone = services, self.Zone
	x.names = make(map[key]model.Name, len(services))
	own := make(map[model.Name]*mean, len(services))
	for _, s := range services {
		x.names[keyOf(s)] = s
		if own[s] = x.own[s]; own[s] == nil {
			own[s] = new(mean)
		}
	}
	x.own = own
	before := x.nodes
	x.nodes, x.byAddr = make(map[string]*node), make(map[netip.Addr]*node)
	for _, n := range nodes {
		if n.Name == self.Name || !slices.Contains(n.Addrs, n.Tunnel) {
			continue
		}
		known := before[n.Name]
		if known == nil {
			known = new(node)
		}
		known.model = n
		x.nodes[n.Name] = known
		for _, a := range n.Addrs {
			x.byAddr[a.Unmap()] = known
		}
	}
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// Run asks and answers until ctx ends.
func (x *Exchange) Run(ctx context.Context) {
	told, tries := "", 0
	for ctx.Err() == nil {
		if !x.wanted() {
			select {
			case <-ctx.Done():
			case <-x.wake:
			}
			continue
		}
		sockets, err := udpsocket.Open(ctx, x.listenOn, x.opts.Port)
		if err == nil {
			told, tries = "", 0
			x.serve(ctx, sockets)
			continue
		}
		if err.Error() != told {
			klog.ErrorS(err, "Nodes cannot be asked for their active connections, for zone spill-over, trying again", "port", x.opts.Port)
			told = err.Error()
		}
		if tries++; tries >= rounds {
			x.opts.Told(nil)
		}
		pause.For(ctx, retry)
	}
}

// wanted reports whether there is a Service to ask about.
func (x *Exchange) wanted() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.services) > 0
}

// serve asks and answers by open sockets while there are Services to ask about, and closes them.
func (x *Exchange) serve(ctx context.Context, sockets udpsocket.Pair) {
	var readers sync.WaitGroup
	for _, s := range sockets {
		if s != nil {
			readers.Go(func() { x.receive(s) })
		}
	}
	inner, cancel := context.WithCancel(ctx)
	var counting sync.WaitGroup
	began := time.Now()
	x.count(began, began) // before anybody is asked
	counting.Go(func() { x.countOn(inner, began) })
	x.ask(ctx, &sockets)
	cancel()
	counting.Wait()
	sockets.Close()
	readers.Wait()
}

// countOn counts this node's own connections from time to time.
func (x *Exchange) countOn(ctx context.Context, last time.Time) {
	for pause.For(ctx, x.sample) {
		now := time.Now()
		x.count(last, now)
		last = now
	}
}

// count counts this node's own connections, now; last is when it did before.
func (x *Exchange) count(last, now time.Time) {
	x.mu.Lock()
	services := x.services
	x.mu.Unlock()
	counts := x.opts.Count(services)
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range services {
		if m := x.own[s]; m != nil {
			m.add(float64(counts[s]), float64(now.Sub(last))/float64(x.half))
		}
	}
}

// ask asks all nodes, one after the other, again and again, and tells what is known.
func (x *Exchange) ask(ctx context.Context, sockets *udpsocket.Pair) {
	for x.wanted() {
		began := time.Now()
		names, own := x.round()
		rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names {
			x.question(sockets, name)
			if !pause.For(ctx, time.Second/pace) {
				return
			}
		}
		if !pause.For(ctx, x.timeout) {
			return
		}
		x.opts.Told(x.known(time.Now(), own))
		if !pause.For(ctx, x.period*9/10+rand.N(x.period/5)-time.Since(began)) {
			return
		}
	}
}

// round returns the other nodes, and what this one has counted: as old as what they will answer.
func (x *Exchange) round() (nodes []string, own map[model.Name]float64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	own = make(map[model.Name]float64, len(x.own))
	for s, m := range x.own {
		if m.known {
			own[s] = m.value
		}
	}
	return slices.Collect(maps.Keys(x.nodes)), own
}

// question asks a node, if it is one still. A question that cannot be sent is one without an answer.
func (x *Exchange) question(sockets *udpsocket.Pair, name string) {
	x.mu.Lock()
	n := x.nodes[name]
	if n == nil {
		x.mu.Unlock()
		return
	}
	n.nonce = rand.Uint64() | 1
	q := message{kind: kindQuestion, nonce: n.nonce}
	for _, s := range x.services {
		q.entries = append(q.entries, entry{key: keyOf(s)})
	}
	addr := n.model.Tunnel
	x.mu.Unlock()
	s := sockets.Of(addr)
	if s == nil {
		return
	}
	if err := s.Send(q.marshal(), netip.Addr{}, netip.AddrPortFrom(addr, x.opts.Port)); err != nil {
		klog.V(2).ErrorS(err, "A node cannot be asked for its active connections", "node", name)
	}
}

// receive takes messages until the socket is closed.
func (x *Exchange) receive(s *udpsocket.Socket) {
	s.Each(func(b []byte, from netip.AddrPort, to udpsocket.Origin) {
		// An agent asks and answers from its port, which a pod that is masqueraded does not get.
		m, ok := parse(b)
		if !ok || from.Port() != x.opts.Port {
			return
		}
		switch m.kind {
		case kindQuestion:
			if a, ok := x.answer(from.Addr(), &m); ok {
				if err := s.Send(a.marshal(), to.Addr, from); err != nil {
					klog.V(2).ErrorS(err, "A node that asks for active connections cannot be answered", "node", from)
				}
			}
		case kindAnswer:
			x.hear(from.Addr(), &m)
		}
	})
}

// answer returns the answer to a node; false when it gets none.
func (x *Exchange) answer(from netip.Addr, q *message) (message, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n, now := x.byAddr[from], time.Now()
	if n == nil || now.Sub(n.answered) < answerPause {
		return message{}, false
	}
	n.answered = now
	a := message{kind: kindAnswer, nonce: q.nonce}
	for _, e := range q.entries {
		if m := x.own[x.names[e.key]]; m != nil && m.known {
			a.entries = append(a.entries, entry{e.key, uint32(min(math.Round(m.value*valueScale), math.MaxUint32))})
		}
	}
	return a, true
}

// hear notes an answer to the last question.
func (x *Exchange) hear(from netip.Addr, m *message) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.byAddr[from]
	if n == nil || n.nonce == 0 || m.nonce != n.nonce {
		return
	}
	n.nonce, n.heard = 0, time.Now()
	n.known = make(map[key]uint32, len(m.entries))
	for _, e := range m.entries {
		n.known[e.key] = e.value
	}
}

// known returns the demand of the Services of which enough nodes have told lately, with what this one had
// counted when they were asked.
func (x *Exchange) known(now time.Time, counted map[model.Name]float64) map[model.Name]Zones {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := map[string]int{x.zone: 1}
	var heard []*node
	for _, n := range x.nodes {
		all[n.model.Zone]++
		if x.fresh(n, now) {
			heard = append(heard, n)
		}
	}
	known := make(map[model.Name]Zones, len(x.services))
	for k, service := range x.names {
		if own, ok := counted[service]; ok {
			if zones := sum(k, own, x.zone, heard, all); zones != nil {
				known[service] = zones
			}
		}
	}
	return known
}

// Silent returns how many other nodes have not answered lately, while there are Services to ask about.
func (x *Exchange) Silent() (n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.services) == 0 {
		return 0
	}
	for _, other := range x.nodes {
		if !x.fresh(other, time.Now()) {
			n++
		}
	}
	return n
}

// fresh reports whether the last answer of a node counts. The caller has the lock.
func (x *Exchange) fresh(n *node, now time.Time) bool {
	round := max(x.period, time.Duration(len(x.nodes))*time.Second/pace)
	return !n.heard.IsZero() && now.Sub(n.heard) <= rounds*round
}

// sum returns the demand of a Service by what nodes have told and this one knows; nil when less than
// half of the nodes of a zone have. all is how many there are in each zone.
func sum(k key, own float64, zone string, heard []*node, all map[string]int) Zones {
	zones, told := Zones{zone: own}, map[string]int{zone: 1}
	for _, n := range heard {
		if v, ok := n.known[k]; ok {
			told[n.model.Zone]++
			zones[n.model.Zone] += float64(v) / valueScale
		}
	}
	for z, n := range all {
		if told[z]*2 < n {
			return nil
		}
		zones[z] *= float64(n) / float64(told[z])
	}
	return zones
}
