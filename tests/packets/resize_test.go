package packets_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// With each connection that is established while tables are resized, so many flows begin that nobody answers.
const halfOpenFlows = 2

// client is one outside, with a connection to the Service.
type client struct {
	protocol byte
	addr     netip.AddrPort
}

// switchboard is the programs that packets meet; they are replaced one by one.
type switchboard struct {
	b               *bench
	ingress, egress place
	tries           atomic.Int64 // to establish a connection
	// switching is held while programs of both kinds are attached.
	switching sync.RWMutex
}

// place is where a program is attached. It is replaced when no run of it is about to begin:
// the kernel does not interrupt a packet before its program, but it does a test.
type place struct {
	mu      sync.RWMutex
	program *ebpf.Program
}

func (p *place) attach(program *ebpf.Program) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.program = program
}

func (p *place) run(options *ebpf.RunOptions) (uint32, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.program.Run(options)
}

// attach puts programs in the place of others. Programs of both kinds are at work while it calls
// between.
func (s *switchboard) attach(t *testing.T, programs *loader, between func()) {
	t.Helper()
	ingress, egress := programs.program(t, "bl_ingress"), programs.program(t, "bl_egress")
	s.switching.Lock()
	defer s.switching.Unlock()
	s.ingress.attach(ingress)
	between()
	s.egress.attach(egress)
}

// translates reports whether a packet comes out of a program as want. It runs on the
// bench's thread.
func (s *switchboard) translates(at *place, packet, want frame) bool {
	in := packet.bytes()
	options := &ebpf.RunOptions{Data: in, DataOut: make([]byte, len(in)+256)}
	verdict, err := at.run(options)
	return err == nil && verdict == passes && bytes.Equal(options.DataOut, want.bytes())
}

// request is the client's packet and what the backend gets.
func (c client) request(flags byte) (packet, want frame) {
	family := c.family()
	packet = frame{from: c.addr, to: virtual[family], protocol: c.protocol, flags: flags}
	want = packet
	want.to = backend[family]
	return packet, want
}

// response is the backend's packet and what the client gets.
func (c client) response(flags byte) (packet, want frame) {
	family := c.family()
	packet = frame{from: backend[family], to: c.addr, protocol: c.protocol, flags: flags}
	want = packet
	want.from = virtual[family]
	return packet, want
}

func (c client) family() byte {
	if c.addr.Addr().Is4() {
		return 4
	}
	return 6
}

// tcpClient returns the i-th client that establishes a connection of TCP over IPv4.
func tcpClient(i int) client { return client{unix.IPPROTO_TCP, flowClient(i)} }

// flowClient returns the i-th client's address and port.
func flowClient(i int) netip.AddrPort { return clientOf(4, 18, i) }

func clientOf(family, network byte, i int) netip.AddrPort {
	addr := netip.AddrFrom4([4]byte{198, network, byte(i >> 16), byte(i >> 8)})
	if family == 6 {
		addr = netip.AddrFrom16([16]byte{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8, 7: network, 13: byte(i >> 16), 14: byte(i >> 8), 15: 1})
	}
	return netip.AddrPortFrom(addr, uint16(2000+i&0xff))
}

// establish sets up the connection of a client. It reports whether the programs let it.
func (s *switchboard) establish(c client) bool {
	s.tries.Add(1)
	syn, synWant := c.request(flagSYN)
	answer, answerWant := c.response(flagSYN | flagACK)
	ack, ackWant := c.request(flagACK)
	return s.translates(&s.ingress, syn, synWant) && s.translates(&s.egress, answer, answerWant) &&
		s.translates(&s.ingress, ack, ackWant)
}

// goesOn reports whether packets of both directions of an established connection are
// translated. The backend's is the first: by a client's datagram a flow that is lost would begin anew.
func (s *switchboard) goesOn(c client) bool {
	data, dataWant := c.request(flagACK)
	answer, answerWant := c.response(flagACK)
	return s.translates(&s.egress, answer, answerWant) && s.translates(&s.ingress, data, dataWant)
}

// load is which connections are established, and how many a second where the machine has the time.
type load struct {
	connRate  int
	families  []byte
	protocols []byte
}

// client returns the i-th client in a network: each family has its turn, and then each protocol.
func (l *load) client(network byte, i int) client {
	n := len(l.families)
	return client{l.protocols[i/n%len(l.protocols)], clientOf(l.families[i%n], network, i)}
}

// traffic establishes connections of a load until it is ended.
// After each it goes on with an earlier one.
type traffic struct {
	load
	s           *switchboard
	stop        chan struct{}
	done        sync.WaitGroup
	next        atomic.Int64
	established sync.Map // number of client → nothing
	made, lost  atomic.Int64
	again       atomic.Int64 // first packets that were sent again
	halfOpen    atomic.Int64 // flows that have begun, and are not answered
	end         func()
}

func (s *switchboard) startTraffic(t *testing.T, l load) *traffic {
	f := &traffic{load: l, s: s, stop: make(chan struct{})}
	f.end = sync.OnceFunc(func() {
		close(f.stop)
		f.done.Wait()
	})
	t.Cleanup(f.end)
	const workers = 4
	for range workers {
		f.done.Go(func() {
			if err := s.b.host.Thread(f.work(workers)); err != nil {
				t.Error(err)
			}
		})
	}
	return f
}

// awaitMore waits until a counter is so much higher.
func awaitMore(t *testing.T, what string, counter *atomic.Int64, more int64) {
	t.Helper()
	all := counter.Load() + more
	lab.Eventually(t, fmt.Sprintf("%d more %s", more, what), func() bool { return counter.Load() >= all })
}

func (f *traffic) work(workers int) func() error {
	return func() error {
		start, count := time.Now(), 0
		var failed []int
		for {
			select {
			case <-f.stop:
				if failed = f.tryAgain(failed); len(failed) > 0 {
					return fmt.Errorf("clients %v have no connection", failed)
				}
				return nil
			default:
			}
			i := int(f.next.Add(1))
			if !f.establish(i) {
				failed = append(failed, i)
			}
			// TCP sends a SYN again after a second, and UDP its application: all programs have been replaced by then.
			if f.s.switching.TryRLock() {
				failed = f.tryAgain(failed)
				f.s.switching.RUnlock()
			}
			earlier := i / 2
			if _, ok := f.established.Load(earlier); ok && !f.s.goesOn(f.caller(earlier)) {
				f.lost.Add(1)
			}
			for j := range halfOpenFlows {
				if syn, want := f.client(19, halfOpenFlows*i+j).request(flagSYN); f.s.translates(&f.s.ingress, syn, want) {
					f.halfOpen.Add(1)
				}
			}
			count++
			due := start.Add(time.Duration(count) * time.Second * time.Duration(workers) / time.Duration(f.connRate))
			if early := time.Until(due); early > time.Millisecond {
				time.Sleep(early)
			}
		}
	}
}

// caller returns the i-th client that establishes a connection.
func (f *traffic) caller(i int) client { return f.client(18, i) }

// establish establishes the connection of the i-th client, and reports whether it could.
func (f *traffic) establish(i int) bool {
	if !f.s.establish(f.caller(i)) {
		return false
	}
	f.established.Store(i, nil)
	f.made.Add(1)
	return true
}

// tryAgain sends the first packets of clients again, and returns those that have no connection still.
func (f *traffic) tryAgain(clients []int) (failed []int) {
	for _, i := range clients {
		f.again.Add(1)
		if !f.establish(i) {
			failed = append(failed, i)
		}
	}
	return failed
}

// TestResizeUnderTraffic: the flow table is replaced by one of another size while thousands of
// connections are established, and twice as many flows begin that nobody answers. No connection is lost,
// neither older ones nor those that begin while programs of both tables are attached.
func TestResizeUnderTraffic(t *testing.T) {
	t.Parallel()
	for name, l := range map[string]load{
		"12,000 flows a second, TCP over IPv4": {4_000, []byte{4}, []byte{unix.IPPROTO_TCP}},
		"21,000 flows a second":                {7_000, []byte{4, 6}, []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, len(l.families) == 1)
			resizeUnder(t, l)
		})
	}
}

// resizeUnder resizes the flow table under a load.
func resizeUnder(t *testing.T, l load) {
	t.Helper()
	// How many connections are established at each stage, and how often that is tried while a program
	// of each table is attached: one that adds to the new table and one that does not look there
	// establish none.
	const some, tries = 500, 40
	many := int64(l.connRate / 2)
	sizes := lab.Sizes
	sizes.Flows = 1 << 19
	b := newBenchSized(t, sizes, datapath.Constants{})
	s := &switchboard{b: b}
	s.attach(t, b.programs, func() {})
	f := s.startTraffic(t, l)
	start := time.Now()
	awaitMore(t, "connections, of the former table", &f.made, many)

	sizes.Flows = 3 << 18
	m, err := bpfmap.Load(datapath.Dir(b.host.BPFFS), sizes)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if !m.Resized() {
		t.Fatal("the table has its former size")
	}
	mixed := func() { awaitMore(t, "tries, by programs of both kinds", &s.tries, tries) }
	s.attach(t, newLoader(t, m, datapath.Constants{}), mixed)
	awaitMore(t, "connections, by programs that look into both tables", &f.made, some)
	before := f.made.Load()
	moved, err := m.Move()
	if err != nil {
		t.Fatal(err)
	}
	meanwhile := f.made.Load() - before
	s.attach(t, newLoader(t, m, datapath.Constants{}), mixed)
	awaitMore(t, "connections, of the new table", &f.made, many)
	f.end()

	flows := f.next.Load() + f.halfOpen.Load()
	t.Logf("%d new flows, %.0f a second, %d of them connections, %d first packets sent again, %d while entries were moved: %+v",
		flows, float64(flows)/time.Since(start).Seconds(), f.next.Load(), f.again.Load(), meanwhile, moved)
	if len(moved) == 0 || moved[0].Entries == 0 {
		t.Error("no entry was moved")
	}
	lost, all := 0, 0
	err = b.host.Run(func() error {
		f.established.Range(func(i, _ any) bool {
			all++
			if !s.goesOn(f.caller(i.(int))) {
				lost++
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := f.lost.Load(); n > 0 {
		t.Errorf("%d times an established connection was not served while the table was resized", n)
	}
	if lost > 0 {
		t.Errorf("%d of %d established connections are lost", lost, all)
	}
}

// TestResizeRestart: a restart with other sizes, some of them smaller, keeps the connections of
// clients, idle, busy and new, during a flood of first packets of others.
func TestResizeRestart(t *testing.T) {
	t.Parallel()
	tier.Slow(t, "TestResizeUnderTraffic shows the same of one resize")
	c, a := serveCluster(t, func(c *cluster) []string {
		return append(c.service(1, "far", "", []endpoint{remote}), c.service(2, "near", "sessionAffinity: ClientIP,", []endpoint{local})...)
	}, "--max-flows", "65536")
	idle := c.establish(t, 5)
	var busy talks
	for _, network := range networks[:2] {
		for service := 1; service <= 2; service++ {
			busy = append(busy, startTalk(t, c.client, "the client", "Beeline", network, nodePort(network, service)))
		}
	}
	flooder, stop := c.newFlooder(t), make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			network := networks[i%2]
			if err := flooder.flood(network, nodePort(network, 1), 5000); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer flood.Wait()
	defer close(stop)
	for _, sizes := range [][]string{
		{"--max-flows", "131072", "--max-clients", "32768", "--max-affinity-entries", "131072", "--max-udp-peers", "131072"},
		{"--max-flows", "8192", "--max-clients", "1024", "--max-affinity-entries", "1024", "--max-udp-peers", "1024"},
	} {
		a.Signal(unix.SIGTERM)
		if err := a.Wait(); err != nil {
			t.Fatal(err)
		}
		a.flags = append(a.flags, sizes...)
		a.start()
		busy.goOn(t, a.node, "with "+strings.Join(sizes, " "))
		for i := range idle {
			if err := idle[i].goesOn(); err != nil {
				t.Errorf("with %v: %s to %s: %v", sizes, idle[i].network, idle[i].hello.name, err)
			}
		}
		for _, network := range networks {
			for service := 1; service <= 2; service++ {
				if _, err := askPatiently(c.client, network, nodePort(network, service)); err != nil {
					t.Errorf("with %v: a new connection to Service %d: %v", sizes, service, err)
				}
			}
		}
	}
}
