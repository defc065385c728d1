package tunnel

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/tables"
)

// nodes are those of the test by id, at 127.0.0.ID.
type nodes struct {
	mu      sync.Mutex
	unknown map[uint16]bool
	answers map[uint16]bpfmap.Answer
}

func at(id uint16) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, byte(id)}) }

func (n *nodes) NodeOf(addr netip.Addr) (uint16, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	id := uint16(addr.As4()[3])
	if n.unknown[id] {
		return 0, nil
	}
	return id, nil
}

func (n *nodes) Answer(id uint16) bpfmap.Answer {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.answers[id]
}

func (n *nodes) SetAnswer(id uint16, addr netip.Addr, answer bpfmap.Answer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if addr == at(id) {
		n.answers[id] = answer
	}
}

// agent is the prober of one node.
type agent struct {
	*Prober
	*nodes
	t     *testing.T
	takes bool
}

func newAgent(t *testing.T, id uint16, port uint16) *agent {
	a := &agent{nodes: &nodes{unknown: map[uint16]bool{}, answers: map[uint16]bpfmap.Answer{}}, t: t, takes: true}
	a.Prober = New(Options{Port: port, Nodes: a.nodes, Takes: func(ifindex int) bool { return a.takes && ifindex == 1 }})
	a.listenOn = []netip.Addr{at(id)}
	a.interval, a.eager, a.timeout = 300*time.Millisecond, 250*time.Millisecond, 200*time.Millisecond
	return a
}

// run runs the agent until the returned function is called.
func (a *agent) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		a.Run(ctx)
		close(done)
	}()
	if !a.wanted() {
		a.SetPeers([]tables.Peer{{Node: tables.Node{Addr: at(9), Self: true}, ID: 9}})
	}
	stopped := sync.OnceFunc(func() { cancel(); <-done })
	a.t.Cleanup(stopped)
	return stopped
}

func (a *agent) peers(used ...uint16) {
	var list []tables.Peer
	for id := uint16(1); id < 9; id++ {
		p := tables.Peer{Node: tables.Node{Addr: at(id)}, ID: id}
		for _, u := range used {
			p.Used = p.Used || u == id
		}
		list = append(list, p)
	}
	a.SetPeers(list)
}

func (a *agent) eventually(id uint16, want bpfmap.Answer) {
	a.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if a.Answer(id) == want {
			return
		}
	}
	a.t.Fatalf("node %d %s, want %s", id, a.Answer(id), want)
}

// freePort returns a port that nobody has at any address of the test.
func freePort(t *testing.T) uint16 {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

// TestAnswers: a node that takes part is told from one that does not, one that is not
// there and one that is not asked; it may be away for two questions, not for three.
func TestAnswers(t *testing.T) {
	port := freePort(t)
	a, b, c := newAgent(t, 1, port), newAgent(t, 2, port), newAgent(t, 3, port)
	c.takes = false
	stop := b.run()
	a.run()
	c.run()
	a.peers(2, 3, 4)
	a.eventually(2, bpfmap.Takes)
	a.eventually(3, bpfmap.Refuses)
	a.eventually(4, bpfmap.Silent)
	if got := a.Answer(5); got != bpfmap.NotAsked {
		t.Errorf("a node without backends %s", got)
	}
	if got := b.Answer(1); got != bpfmap.NotAsked {
		t.Errorf("a node that only asks %s", got)
	}

	// The third question from now on comes after 540 ms at the earliest.
	stop()
	for end := time.Now().Add(250 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if got := a.Answer(2); got != bpfmap.Takes {
			t.Fatalf("a node that is away for a moment %s", got)
		}
	}
	b = newAgent(t, 2, port)
	stop = b.run()
	time.Sleep(time.Second)
	if got := a.Answer(2); got != bpfmap.Takes {
		t.Errorf("a node that was away for a moment %s", got)
	}
	stop()
	a.eventually(2, bpfmap.Silent)
	b = newAgent(t, 2, port)
	b.run()
	a.eventually(2, bpfmap.Takes)
	a.peers(3)
	a.eventually(2, bpfmap.NotAsked)
}

// TestKnownBefore: what a former agent was told holds until the node is silent.
func TestKnownBefore(t *testing.T) {
	a := newAgent(t, 1, freePort(t))
	a.SetAnswer(2, at(2), bpfmap.Takes)
	a.SetAnswer(3, at(3), bpfmap.Takes)
	a.peers(2)
	a.eventually(3, bpfmap.NotAsked)
	if got := a.Answer(2); got != bpfmap.Takes {
		t.Errorf("at the start, node 2 %s", got)
	}
	a.run()
	a.eventually(2, bpfmap.Silent)
}

// TestPort: the port is open only while there are nodes.
func TestPort(t *testing.T) {
	port := freePort(t)
	a := newAgent(t, 1, port)
	a.peers()
	a.run()
	// To bind the port oneself would be in the agent's way.
	taken := func() bool {
		sockets, err := os.ReadFile("/proc/thread-self/net/udp")
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Contains(sockets, fmt.Appendf(nil, ":%04X 00000000:0000 ", port))
	}
	for i, want := range []bool{true, false, true, false} {
		if a.SetPeers(nil); want {
			a.peers(2)
		}
		for deadline := time.Now().Add(10 * time.Second); taken() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("step %d: the port is open: %t", i, !want)
			}
		}
		time.Sleep(50 * time.Millisecond)
		if want {
			a.eventually(2, bpfmap.Silent)
		}
	}
}

// TestStrangers: who is no node gets no answer, and what is no answer to the last question
// counts for nothing.
func TestStrangers(t *testing.T) {
	port := freePort(t)
	a := newAgent(t, 1, port)
	a.unknown[9] = true
	a.run()
	talk := func(from uint16, b []byte) []byte {
		t.Helper()
		conn, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at(from), 0)),
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(at(1), port)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(250 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 100)
		n, err := conn.Read(answer)
		if err != nil {
			return nil
		}
		return answer[:n]
	}
	ask := message{version: version, kind: kindQuestion, nonce: 77}
	for deadline := time.Now().Add(5 * time.Second); talk(8, ask.marshal()) == nil; {
		if time.Now().After(deadline) {
			t.Fatal("no answer to a node")
		}
	}
	time.Sleep(pace)
	got, ok := parse(talk(8, ask.marshal()))
	if want := (message{version: version, kind: kindAnswer, flags: flagTakes, nonce: 77}); !ok || got != want {
		t.Errorf("the answer is %+v, want %+v", got, want)
	}
	if talk(8, ask.marshal()) != nil {
		t.Error("a node gets two answers at once")
	}
	if talk(9, ask.marshal()) != nil {
		t.Error("a stranger gets an answer")
	}
	time.Sleep(pace)
	data := ask.marshal()
	data[1] = 0
	short := ask.marshal()[:messageSize-1]
	for what, b := range map[string][]byte{"data": data, "a short message": short, "an empty one": {}} {
		if talk(8, b) != nil {
			t.Errorf("%s gets an answer", what)
		}
	}

	a.peers(8)
	forged := message{version: version, kind: kindAnswer, flags: flagTakes, nonce: 77}
	talk(8, forged.marshal())
	if got := a.Answer(8); got == bpfmap.Takes {
		t.Error("an answer that nobody asked for counts")
	}
}

// TestAnotherVersion: a node of another version does not take what is in our tunnel.
func TestAnotherVersion(t *testing.T) {
	a := newAgent(t, 1, 6091)
	a.peers(2)
	for m, want := range map[message]bpfmap.Answer{
		{version: version + 1, kind: kindAnswer, flags: flagTakes, nonce: 5}: bpfmap.Refuses,
		{version: version, kind: kindAnswer, flags: flagTakes, nonce: 5}:     bpfmap.Takes,
		{version: version, kind: kindAnswer, flags: flagTakes, nonce: 6}:     bpfmap.Asked,
	} {
		t.Run(fmt.Sprint(m), func(t *testing.T) {
			peer := a.Prober.peers[2]
			peer.answer, peer.nonce, peer.until = bpfmap.Asked, 5, time.Now().Add(time.Hour)
			a.SetAnswer(2, at(2), bpfmap.Asked)
			a.heard(2, m)
			if got := a.Answer(2); got != want {
				t.Errorf("the node %s, want %s", got, want)
			}
		})
	}
}
