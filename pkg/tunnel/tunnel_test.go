package tunnel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/nodemap"
	"github.com/beeline-lb/beeline/pkg/tables"
	"github.com/beeline-lb/beeline/tests/wait"
)

// nodes are those of the test by id, at 127.0.0.ID.
type nodes struct {
	mu      sync.Mutex
	unknown map[uint16]bool
	answers map[uint16]nodemap.Answer
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

func (n *nodes) Answer(id uint16) nodemap.Answer {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.answers[id]
}

func (n *nodes) SetAnswer(id uint16, addr netip.Addr, answer nodemap.Answer) {
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
	t       *testing.T
	accepts bool
}

func newAgent(t *testing.T, id uint16, port uint16) *agent {
	a := &agent{nodes: &nodes{unknown: map[uint16]bool{}, answers: map[uint16]nodemap.Answer{}}, t: t, accepts: true}
	a.Prober = New(Options{Port: port, Nodes: a.nodes, Accepts: func(ifindex int) bool { return a.accepts && ifindex == 1 }})
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
		a.SetNodes([]tables.NodeUse{{Node: tables.Node{Addr: at(9), Self: true}, ID: 9}})
	}
	stopped := sync.OnceFunc(func() { cancel(); <-done })
	a.t.Cleanup(stopped)
	return stopped
}

func (a *agent) peers(used ...uint16) {
	var list []tables.NodeUse
	for id := uint16(1); id < 9; id++ {
		p := tables.NodeUse{Node: tables.Node{Addr: at(id)}, ID: id}
		for _, u := range used {
			p.Used = p.Used || u == id
		}
		list = append(list, p)
	}
	a.SetNodes(list)
}

func (a *agent) eventually(id uint16, want nodemap.Answer) {
	a.t.Helper()
	for deadline := time.Now().Add(wait.Limit); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if a.Answer(id) == want {
			return
		}
	}
	a.t.Fatalf("node %d %s, want %s", id, a.Answer(id), want)
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

// TestAnswers: a node that takes part is told from one that does not, one that is not
// there and one that is not asked, also when it goes and comes back.
func TestAnswers(t *testing.T) {
	port := freePort(t)
	a, b, c := newAgent(t, 1, port), newAgent(t, 2, port), newAgent(t, 3, port)
	c.accepts = false
	stop := b.run()
	a.run()
	c.run()
	a.peers(2, 3, 4)
	a.eventually(2, nodemap.Accepts)
	a.eventually(3, nodemap.Refuses)
	a.eventually(4, nodemap.Unreachable)
	if got := a.Answer(5); got != nodemap.NotAsked {
		t.Errorf("a node without backends %s", got)
	}
	if got := b.Answer(1); got != nodemap.NotAsked {
		t.Errorf("a node that only asks %s", got)
	}

	stop()
	a.eventually(2, nodemap.Unreachable)
	b = newAgent(t, 2, port)
	b.run()
	a.eventually(2, nodemap.Accepts)
	a.peers(3)
	a.eventually(2, nodemap.NotAsked)
}

// TestMissed: a node may leave two questions in a row without an answer, not three.
func TestMissed(t *testing.T) {
	a := newAgent(t, 1, 6091)
	a.peers(2)
	now := time.Now().Add(a.interval)
	ask := func() (q message) {
		t.Helper()
		for {
			list, next := a.due(now)
			if now = next; len(list) > 0 {
				return list[0].message
			}
		}
	}
	answer := func(q message) {
		m := message{version: version, kind: kindAnswer, flags: flagAccepts, nonce: q.nonce, signed: true}
		m.code = Secret{}.sign(m, at(2))
		a.heard(2, m)
	}
	is := func(want nodemap.Answer, when string) {
		t.Helper()
		if got := a.Answer(2); got != want {
			t.Errorf("%s, the node %s, want %s", when, got, want)
		}
	}
	answer(ask())
	is(nodemap.Accepts, "after an answer")
	for range 2 {
		ask()
		ask()
		third := ask()
		is(nodemap.Accepts, "after two questions without an answer")
		answer(third)
	}
	ask()
	ask()
	ask()
	fourth := ask()
	is(nodemap.Unreachable, "after three questions without an answer")
	answer(fourth)
	is(nodemap.Accepts, "after another answer")
}

// TestKnownBefore: what a former agent was told holds until the node is unreachable.
func TestKnownBefore(t *testing.T) {
	a := newAgent(t, 1, freePort(t))
	a.SetAnswer(2, at(2), nodemap.Accepts)
	a.SetAnswer(3, at(3), nodemap.Accepts)
	a.peers(2)
	a.eventually(3, nodemap.NotAsked)
	if got := a.Answer(2); got != nodemap.Accepts {
		t.Errorf("at the start, node 2 %s", got)
	}
	a.run()
	a.eventually(2, nodemap.Unreachable)
}

// TestPort: the port is open only while there are nodes.
func TestPort(t *testing.T) {
	port := freePort(t)
	a := newAgent(t, 1, port)
	a.peers()
	a.run()
	// Binding the port here would keep the agent from it.
	taken := func() bool {
		sockets, err := os.ReadFile("/proc/thread-self/net/udp")
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Contains(sockets, fmt.Appendf(nil, ":%04X 00000000:0000 ", port))
	}
	for i, want := range []bool{true, false, true, false} {
		a.SetNodes(nil)
		a.SetAnswer(2, at(2), nodemap.NotAsked)
		if want {
			a.peers(2)
		}
		for deadline := time.Now().Add(wait.Limit); taken() != want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("step %d: the port is open: %t", i, !want)
			}
		}
		if want {
			a.eventually(2, nodemap.Unreachable)
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
	dial := func(from uint16) *net.UDPConn {
		t.Helper()
		conn, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at(from), 0)),
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(at(1), port)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	send := func(conn *net.UDPConn, b []byte) {
		t.Helper()
		if _, err := conn.Write(b); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatal(err)
		}
	}
	receive := func(conn *net.UDPConn, within time.Duration) []byte {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 100)
		n, err := conn.Read(answer)
		if err != nil {
			return nil
		}
		return answer[:n]
	}
	talk := func(from uint16, b []byte) []byte {
		t.Helper()
		conn := dial(from)
		send(conn, b)
		return receive(conn, pace)
	}
	question := func(nonce uint64) []byte {
		m := message{version: version, kind: kindQuestion, nonce: nonce, signed: true}
		m.code = Secret{}.sign(m, at(1))
		return m.marshal()
	}
	// answered asks until there is an answer to a question after those before: a datagram may
	// get lost, or come late.
	node := dial(8)
	answered := func(before uint64, nonces ...uint64) (answer message) {
		t.Helper()
		wait.Until(t, "an answer to a node", func() bool {
			time.Sleep(pace)
			for _, nonce := range nonces {
				send(node, question(nonce))
			}
			for ok := true; ok; {
				if answer, ok = parse(receive(node, 5*pace)); answer.nonce > before {
					return true
				}
			}
			return false
		})
		return answer
	}
	got := answered(0, 77)
	want := message{version: version, kind: kindAnswer, flags: flagAccepts, nonce: 77, signed: true}
	want.code = Secret{}.sign(want, at(1))
	if got != want {
		t.Errorf("the answer is %+v, want %+v", got, want)
	}
	first := answered(77, 78, 79)
	if next := answered(first.nonce, 80); next.nonce != 80 {
		t.Errorf("a node gets two answers at once, of %d and %d", first.nonce, next.nonce)
	}
	if talk(9, question(77)) != nil {
		t.Error("a stranger gets an answer")
	}
	time.Sleep(pace)
	data := question(77)
	data[1] = 0
	short := question(77)[:messageSize-1]
	for what, b := range map[string][]byte{"data": data, "a short message": short, "an empty one": {}} {
		if talk(8, b) != nil {
			t.Errorf("%s gets an answer", what)
		}
	}

	a.peers(8)
	forged := message{version: version, kind: kindAnswer, flags: flagAccepts, nonce: 77, signed: true}
	forged.code = Secret{}.sign(forged, at(8))
	talk(8, forged.marshal())
	if got := a.Answer(8); got == nodemap.Accepts {
		t.Error("an answer that nobody asked for counts")
	}
}

// TestAnotherVersion: a node of another version does not take what is in our tunnel, and one
// without the cluster's secret neither.
func TestAnotherVersion(t *testing.T) {
	ours, theirs, nobodys := Secret{"the secret of the cluster"}, Secret{"the next secret of it"}, Secret{"one of somebody else"}
	a := newAgent(t, 1, 6091)
	a.Prober.secrets = Secrets{ours, theirs}
	a.peers(2)
	answer := func(version uint8, nonce uint64, by Secret, from uint16) message {
		m := message{version: version, kind: kindAnswer, flags: flagAccepts, nonce: nonce, signed: true}
		m.code = by.sign(m, at(from))
		return m
	}
	no := message{version: version, kind: kindAnswer, nonce: 5, signed: true}
	no.code = ours.sign(no, at(2))
	changed := no
	changed.flags = flagAccepts
	for what, tt := range map[string]struct {
		message
		want nodemap.Answer
	}{
		"another version":      {answer(version+1, 5, ours, 2), nodemap.Refuses},
		"the former version":   {message{version: 1, kind: kindAnswer, flags: flagAccepts, nonce: 5}, nodemap.Refuses},
		"the secret":           {answer(version, 5, ours, 2), nodemap.Accepts},
		"the next secret":      {answer(version, 5, theirs, 2), nodemap.Accepts},
		"another secret":       {answer(version, 5, nobodys, 2), nodemap.Refuses},
		"no secret":            {answer(version, 5, Secret{}, 2), nodemap.Refuses},
		"no code":              {message{version: version, kind: kindAnswer, flags: flagAccepts, nonce: 5}, nodemap.Refuses},
		"of another node":      {answer(version, 5, ours, 3), nodemap.Refuses},
		"no":                   {no, nodemap.Refuses},
		"changed on its way":   {changed, nodemap.Refuses},
		"to a former question": {answer(version, 6, ours, 2), nodemap.Asked},
	} {
		t.Run(what, func(t *testing.T) {
			peer := a.Prober.peers[2]
			peer.answer, peer.nonce, peer.until = nodemap.Asked, 5, time.Now().Add(time.Hour)
			a.SetAnswer(2, at(2), nodemap.Asked)
			a.heard(2, tt.message)
			if got := a.Answer(2); got != tt.want {
				t.Errorf("the node %s, want %s", got, tt.want)
			}
		})
	}
}
