package demand

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/tests/wait"
)

var web = model.Name{Namespace: "default", Name: "web"}

// at is the address of a node of the test by its number.
func at(n int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, byte(n)}) }

// cluster is the nodes of a test, one of each zone that is given.
func cluster(zones ...string) (nodes []*model.Node) {
	for i, zone := range zones {
		nodes = append(nodes, &model.Node{Name: fmt.Sprint("node-", i+1), Zone: zone, Tunnel: at(i + 1), Addrs: []netip.Addr{at(i + 1)}})
	}
	return nodes
}

// agent is the exchange of one node.
type agent struct {
	*Exchange
	t     *testing.T
	count atomic.Int64 // active connections of its clients, to each Service
	mu    sync.Mutex
	told  map[model.Name]Zones
}

// start runs the agent of a node until stop is called.
func start(t *testing.T, n int, port uint16, nodes []*model.Node, count int64, services ...model.Name) (a *agent, stop func()) {
	a = &agent{t: t}
	a.count.Store(count)
	a.Exchange = New(Options{Port: port, Count: a.counts, Told: func(known map[model.Name]Zones) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.told = known
	}})
	a.listenOn = []netip.Addr{at(n)}
	a.period, a.timeout, a.sample, a.half = 500*time.Millisecond, 50*time.Millisecond, 5*time.Millisecond, time.Millisecond
	a.Set(services, nodes, &model.LocalNode{Name: nodes[n-1].Name, Zone: nodes[n-1].Zone})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		a.Run(ctx)
		close(done)
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return a, stop
}

func (a *agent) counts(services []model.Name) map[model.Name]int {
	counts := make(map[model.Name]int)
	for _, s := range services {
		counts[s] = int(a.count.Load())
	}
	return counts
}

// eventually waits until the agent is told so of web; nil: nothing is.
func (a *agent) eventually(when string, want Zones) {
	a.t.Helper()
	wait.Until(a.t, fmt.Sprintf("%s: %v is told", when, want), func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return about(a.told[web], want)
	})
}

// about compares what means are close to.
func about(got, want Zones) bool {
	same := len(got) == len(want)
	for zone, n := range want {
		same = same && math.Abs(got[zone]-n) < 0.1
	}
	return same
}

// freePort returns a port that is free at all addresses of the test.
func freePort(t *testing.T) uint16 {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

// TestExchange: an agent is told what the clients of each zone have open. Of a node that does not answer
// any more its zone's others are taken for it; of a zone that has too few others nothing is known.
func TestExchange(t *testing.T) {
	port, nodes := freePort(t), cluster("a", "a", "b", "b")
	first, _ := start(t, 1, port, nodes, 3, web)
	second, stopSecond := start(t, 2, port, nodes, 4, web)
	_, stopThird := start(t, 3, port, nodes, 5, web)
	_, stopFourth := start(t, 4, port, nodes, 7, web, model.Name{Namespace: "default", Name: "other"})
	first.eventually("all answer", Zones{"a": 7, "b": 12})
	second.count.Store(10)
	first.eventually("there are more", Zones{"a": 13, "b": 12})
	stopSecond()
	first.eventually("half of the own zone", Zones{"a": 6, "b": 12})
	stopThird()
	first.eventually("half of another zone", Zones{"a": 6, "b": 14})
	wait.Until(t, "two nodes are silent", func() bool { return first.Silent() == 2 })
	stopFourth()
	first.eventually("none of another zone", nil)
	start(t, 3, port, nodes, 1, web)
	first.eventually("one is back", Zones{"a": 6, "b": 2})
	first.Set([]model.Name{web}, nodes[:3:3], &model.LocalNode{Name: "node-1", Zone: "a"})
	first.eventually("one is no node any more", Zones{"a": 6, "b": 1})
	first.Set(nil, nodes, &model.LocalNode{Name: "node-1", Zone: "a"})
	if n := first.Silent(); n != 0 {
		t.Errorf("without a Service %d nodes are silent", n)
	}
	first.Set([]model.Name{web}, nodes[:3:3], &model.LocalNode{Name: "node-1", Zone: "a"})
	first.eventually("a Service again", Zones{"a": 6, "b": 1})
}

// TestFirst: what is told first is of all Services, for those that are missing stay in their zones.
func TestFirst(t *testing.T) {
	for range 20 {
		first := make(chan map[model.Name]Zones)
		x := New(Options{
			Port:  freePort(t),
			Count: func([]model.Name) map[model.Name]int { return map[model.Name]int{web: 3} },
			Told: func(known map[model.Name]Zones) {
				select {
				case first <- known:
				case <-t.Context().Done():
				}
			},
		})
		x.listenOn, x.timeout = []netip.Addr{at(1)}, time.Millisecond
		x.Set([]model.Name{web}, cluster("a"), &model.LocalNode{Name: "node-1", Zone: "a"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			x.Run(ctx)
			close(done)
		}()
		if got := <-first; !about(got[web], Zones{"a": 3}) {
			t.Errorf("first %v is told", got)
		}
		cancel()
		<-done
	}
}

// TestUnknownService: a node that does not count the connections of a Service does not stand for its zone.
func TestUnknownService(t *testing.T) {
	port, nodes := freePort(t), cluster("a", "b")
	other := model.Name{Namespace: "default", Name: "other"}
	first, _ := start(t, 1, port, nodes, 3, other, web)
	start(t, 2, port, nodes, 4, other)
	wait.Until(t, "the other Service is known", func() bool {
		first.mu.Lock()
		defer first.mu.Unlock()
		return about(first.told[other], Zones{"a": 3, "b": 4})
	})
	first.eventually("web is not", nil)
}

// peer is a node of which the test plays the agent; its port 0 is any.
type peer struct {
	*net.UDPConn
	t *testing.T
}

func newPeer(t *testing.T, n int, port uint16) *peer {
	t.Helper()
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at(n), port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(wait.Limit)); err != nil {
		t.Fatal(err)
	}
	return &peer{conn, t}
}

// next returns the next message of a kind, and how long it is.
func (p *peer) next(kind uint8) (message, int) {
	p.t.Helper()
	var b [1500]byte
	for {
		n, err := p.Read(b[:])
		if err != nil {
			p.t.Fatal(err)
		}
		if m, ok := parse(b[:n]); ok && m.kind == kind {
			return m, n
		}
	}
}

// send sends a message to node 1.
func (p *peer) send(m message, port uint16) {
	p.t.Helper()
	if _, err := p.WriteToUDPAddrPort(m.marshal(), netip.AddrPortFrom(at(1), port)); err != nil {
		p.t.Fatal(err)
	}
}

// TestStrangers: an answer counts only when it has the number of the last question to that node, and only
// nodes are answered, by their port, with no more bytes than they sent.
func TestStrangers(t *testing.T) {
	port, nodes := freePort(t), cluster("a", "b")
	node, stranger, pod := newPeer(t, 2, port), newPeer(t, 9, port), newPeer(t, 2, 0)
	first, _ := start(t, 1, port, nodes, 3, web)
	answer := func(nonce uint64, count uint32) message {
		return message{kind: kindAnswer, nonce: nonce, entries: []entry{{keyOf(web), count * valueScale}}}
	}
	q, _ := node.next(kindQuestion)
	stranger.send(answer(q.nonce, 50), port)
	pod.send(answer(q.nonce, 55), port)
	node.send(answer(q.nonce+1, 60), port)
	node.send(answer(q.nonce, 4), port)
	node.send(answer(q.nonce, 70), port)
	first.eventually("one answer counts", Zones{"a": 3, "b": 4})
	first.mu.Lock()
	first.told = nil
	first.mu.Unlock()
	first.eventually("it is still the one", Zones{"a": 3, "b": 4})

	asked := message{kind: kindQuestion, nonce: 7, entries: []entry{{key: keyOf(web)}, {key: 12}}}
	stranger.send(asked, port)
	pod.send(asked, port)
	node.send(asked, port)
	a, n := node.next(kindAnswer)
	if a.nonce != 7 || len(a.entries) != 1 || a.entries[0].key != keyOf(web) || a.entries[0].value != 3*valueScale {
		t.Errorf("answer %v", a)
	}
	if n > len(asked.marshal()) {
		t.Errorf("%d bytes answer %d", n, len(asked.marshal()))
	}
	// What they had asked was taken before.
	for name, p := range map[string]*peer{"a stranger": stranger, "a pod of the node": pod} {
		if err := p.SetReadDeadline(time.Now()); err != nil {
			t.Fatal(err)
		}
		var b [1500]byte
		if n, err := p.Read(b[:]); err == nil {
			t.Errorf("%s got %d bytes", name, n)
		}
	}
}

// TestMean: half of what was is forgotten in half the time, however often is counted.
func TestMean(t *testing.T) {
	for _, steps := range []int{1, 10, 100} {
		var m mean
		m.add(100, 1)
		for range steps {
			m.add(0, 1/float64(steps))
		}
		if math.Abs(m.value-50) > 1e-9 {
			t.Errorf("in %d steps: %g, want 50", steps, m.value)
		}
	}
}

// FuzzParse: what is parsed is what is marshalled, and no message is longer than what it was parsed from.
func FuzzParse(f *testing.F) {
	m := message{kind: kindAnswer, nonce: 5, entries: []entry{{1, 2}, {3, 4}}}
	f.Add(m.marshal())
	f.Add(m.marshal()[:30])
	f.Fuzz(func(t *testing.T, b []byte) {
		m, ok := parse(b)
		if !ok {
			return
		}
		again := m.marshal()
		if len(again) > len(b) {
			t.Errorf("%d bytes become %d", len(b), len(again))
		}
		if got, ok := parse(again); !ok || fmt.Sprint(got) != fmt.Sprint(m) {
			t.Errorf("%v becomes %v", m, got)
		}
	})
}

// TestNodeWithoutAnAddress: a Node that says it is reached at another one's address is not asked: the other
// one would be asked twice at once, and answers once.
func TestNodeWithoutAnAddress(t *testing.T) {
	x := New(Options{})
	x.Set(nil, []*model.Node{{Name: "one", Tunnel: at(1), Addrs: []netip.Addr{at(1)}}, {Name: "two", Tunnel: at(1)}, {Name: "three"}}, &model.LocalNode{Name: "self"})
	if names, _ := x.round(); len(names) != 1 || names[0] != "one" {
		t.Errorf("asked are %v", names)
	}
}
