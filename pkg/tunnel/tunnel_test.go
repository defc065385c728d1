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
	a.SetAnswer(2, at(2), nodemap.Refuses) // as another program
	answer(ask())
	is(nodemap.Accepts, "after an answer to an agent that knows that it is the same")
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

// sender sends messages to node 1: questions of node 8, which is answered, and others.
type sender struct {
	t    *testing.T
	port uint16
	node *net.UDPConn
	last uint64 // nonce of node 8's last question
	got  uint64 // and of the last answer to it
}

// dial makes a socket of a node; port 0 is any.
func (a *sender) dial(from, port uint16) *net.UDPConn {
	a.t.Helper()
	conn, err := net.DialUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(at(from), port)),
		net.UDPAddrFromAddrPort(netip.AddrPortFrom(at(1), a.port)))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { conn.Close() })
	return conn
}

func (a *sender) send(conn *net.UDPConn, b []byte) {
	a.t.Helper()
	if _, err := conn.Write(b); err != nil && !errors.Is(err, unix.ECONNREFUSED) {
		a.t.Fatal(err)
	}
}

// receive returns nil when nothing comes in that time.
func (a *sender) receive(conn *net.UDPConn, within time.Duration) []byte {
	a.t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		a.t.Fatal(err)
	}
	answer := make([]byte, 100)
	n, err := conn.Read(answer)
	if err != nil {
		return nil
	}
	return answer[:n]
}

// heard reports whether something has come, without waiting.
func (a *sender) heard(conn *net.UDPConn) bool {
	a.t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		a.t.Fatal(err)
	}
	got := 0
	err = raw.Read(func(fd uintptr) bool {
		got, _ = unix.Read(int(fd), make([]byte, 100))
		return true
	})
	if err != nil {
		a.t.Fatal(err)
	}
	return got > 0
}

func questionOf(nonce uint64) []byte {
	m := message{version: version, kind: kindQuestion, nonce: nonce, signed: true}
	m.code = Secret{}.sign(m, at(1))
	return m.marshal()
}

// answered asks so many new questions at once, as node 8, until there is an answer after those
// before: a datagram may get lost, or come late. The agent has read then what was sent before.
func (a *sender) answered(questions int) (answer message) {
	a.t.Helper()
	first := a.last + 1
	a.last += uint64(questions)
	wait.Until(a.t, "an answer to a node", func() bool {
		time.Sleep(pace)
		for nonce := first; nonce <= a.last; nonce++ {
			a.send(a.node, questionOf(nonce))
		}
		for ok := true; ok; {
			if answer, ok = parse(a.receive(a.node, 5*pace)); answer.nonce > a.got {
				return true
			}
		}
		return false
	})
	a.got = answer.nonce
	return answer
}

// unanswered sends what is to get no answer, when a node may get one again.
func (a *sender) unanswered(what string, from uint16, b []byte) {
	a.t.Helper()
	conn := a.dial(from, 0)
	time.Sleep(pace)
	a.send(conn, b)
	a.answered(1)
	if a.heard(conn) {
		a.t.Errorf("%s gets an answer", what)
	}
}

// TestStrangers: who is no node gets no answer, and what is no answer to the last question
// counts for nothing.
func TestStrangers(t *testing.T) {
	port := freePort(t)
	a := newAgent(t, 1, port)
	a.unknown[9] = true
	a.timeout = wait.Limit // so that the forged answer is in time
	a.run()
	others := &sender{t: t, port: port}
	others.node = others.dial(8, 0)

	got := others.answered(1)
	want := message{version: version, kind: kindAnswer, flags: flagAccepts, nonce: 1, signed: true}
	want.code = Secret{}.sign(want, at(1))
	if got != want {
		t.Errorf("the answer is %+v, want %+v", got, want)
	}
	first := others.answered(2)
	if next := others.answered(1); next.nonce != others.last {
		t.Errorf("a node gets two answers at once, of %d and %d", first.nonce, next.nonce)
	}
	others.unanswered("a stranger", 9, questionOf(77))
	data := questionOf(77)
	data[1] = 0
	others.unanswered("data", 8, data)
	others.unanswered("a short message", 8, questionOf(77)[:messageSize-1])
	others.unanswered("an empty one", 8, nil)

	asked := others.dial(8, port)
	a.peers(8)
	if q, ok := parse(others.receive(asked, wait.Limit)); !ok || q.kind != kindQuestion {
		t.Fatalf("node 8 is asked %+v", q)
	}
	forged := message{version: version, kind: kindAnswer, flags: flagAccepts, nonce: 77, signed: true}
	forged.code = Secret{}.sign(forged, at(8))
	others.send(others.node, forged.marshal())
	others.answered(1)
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

// TestForgedQuestions: questions with a node's address and without the secret use up no answer
// to the node, and get answers at the same pace.
func TestForgedQuestions(t *testing.T) {
	port := freePort(t)
	a := newAgent(t, 1, port)
	a.Prober.secrets = Secrets{{oldSecret}}
	a.run()
	s := &sender{t: t, port: port}
	forger, node := s.dial(8, 0), s.dial(8, 0)
	wait.Until(t, "an answer to a forged question", func() bool {
		s.send(forger, questionOf(1)) // of the zero secret
		return s.receive(forger, pace) != nil
	})
	for nonce := range uint64(20) {
		s.send(forger, questionOf(nonce))
	}
	real := message{version: version, kind: kindQuestion, nonce: 77, signed: true}
	real.code = Secret{oldSecret}.sign(real, at(1))
	s.send(node, real.marshal())
	if m, ok := parse(s.receive(node, wait.Limit)); !ok || m.nonce != 77 || m.flags&flagAccepts == 0 {
		t.Errorf("between forged questions, the node's is answered with %+v", m)
	}

	now := time.Now().Add(time.Hour)
	for _, verified := range []bool{false, true} {
		for _, tt := range []struct {
			after time.Duration
			want  bool
		}{{0, true}, {pace - 1, false}, {pace, true}} {
			if got := a.mayAnswer(asker{8, verified}, now.Add(tt.after)); got != tt.want {
				t.Errorf("verified %t, after %s: answered %t", verified, tt.after, got)
			}
		}
	}
}

// TestQuestionSource: a node is asked from the address that this node's packets in the tunnel to it have.
func TestQuestionSource(t *testing.T) {
	six := netip.MustParseAddr("2001:db8::9")
	for self, want := range map[netip.Addr]netip.Addr{at(9): at(9), six: {}, {}: {}} {
		a := newAgent(t, 9, 1)
		list := []tables.NodeUse{{Node: tables.Node{Addr: at(1)}, ID: 1, Used: true}}
		if self.IsValid() {
			list = append(list, tables.NodeUse{Node: tables.Node{Addr: self, Self: true}, ID: 9})
		}
		a.SetNodes(list)
		due, _ := a.due(time.Now().Add(time.Minute))
		if len(due) != 1 || due[0].from != want || due[0].addr != at(1) {
			t.Errorf("this node is at %v: it asks %+v, want a question from %v", self, due, want)
		}
	}
}
