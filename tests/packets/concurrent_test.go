package packets_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/flow"
	"github.com/beeline-lb/beeline/pkg/flowmap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// throng is threads that handle packets at the same time: of steady connections, which each of them
// uses, and of flows that begin and end all the time, from the same ports and to the same backend.
type throng struct {
	b       *xdpBench
	program *ebpf.Program
	threads int
	stop    chan struct{}
	steady  []steadyFlow
	count   struct{ steady, others, served, gone atomic.Int64 }
	// phase is what happens to the Service that comes and goes.
	phase   atomic.Int64
	passers []*passer // one for each thread
}

// The phases of the Service that comes and goes. Phase n is the one of number n%4, of the n/4-th time.
const (
	phaseMaking = iota
	phaseServed
	phaseRemoving
	phaseGone
	phases
)

// passing is the address of the Service that comes and goes, another one has its only endpoint each time.
var passing = map[byte]netip.AddrPort{4: netip.MustParseAddrPort("10.96.0.9:80"), 6: netip.MustParseAddrPort("[fd96::9]:80")}

func passingBackend(family byte, phase int64) netip.AddrPort {
	addr := xdpBackend[family].Addr()
	for range 20 + phase/phases%8 {
		addr = addr.Next()
	}
	return netip.AddrPortFrom(addr, 8080)
}

// steadyFlow is an established connection: a packet of it, and one of the backend's.
type steadyFlow struct {
	client, reply frame
	family        byte
}

const (
	throngPorts = 4
	// Clients take turns, so that flows expire while others begin.
	throngTurn = 2 * time.Second
	throngIdle = time.Second
	throngWalk = 100 * time.Millisecond
)

var throngTimeouts = flow.Timeouts{
	TCPSynSent: throngIdle, TCPSynReceived: throngIdle, TCPEstablished: time.Hour, TCPCloseWait: throngIdle, TCPClose: throngIdle,
	UDP: throngIdle, UDPStream: throngIdle,
}

// throngAddr is the i-th client, beyond the gateway.
func throngAddr(family byte, i int) netip.Addr {
	if family == 4 {
		return netip.AddrFrom4([4]byte{203, 0, 113, byte(100 + i)})
	}
	return netip.MustParseAddr(fmt.Sprintf("2001:db8:7::1:%x", i))
}

// packetRun runs packets on one thread.
type packetRun struct {
	c   *throng
	out [2048]byte
}

// run returns whether the packet was translated, and its ends then.
func (r *packetRun) run(f frame, family byte) (from, to netip.AddrPort, translated bool, err error) {
	packet := f.bytes()
	options := &ebpf.RunOptions{Data: packet, DataOut: r.out[:],
		Context: xdpContext{DataEnd: uint32(len(packet)), Ingress: uint32(r.c.b.device.Ifindex)}}
	verdict, err := r.c.program.Run(options)
	if err != nil || verdict != xdpSends {
		return from, to, false, err
	}
	from, to = ends(options.DataOut, family)
	return from, to, true, nil
}

// ends returns where a packet without options comes from and goes to.
func ends(packet []byte, family byte) (from, to netip.AddrPort) {
	at, size := ethernetSize+12, 4
	if family == 6 {
		at, size = ethernetSize+8, 16
	}
	src, _ := netip.AddrFromSlice(packet[at : at+size])
	dst, _ := netip.AddrFromSlice(packet[at+size : at+2*size])
	ports := packet[at+2*size:]
	return netip.AddrPortFrom(src, binary.BigEndian.Uint16(ports)), netip.AddrPortFrom(dst, binary.BigEndian.Uint16(ports[2:]))
}

// establish makes the steady connections, of which some clash at their ports.
func (c *throng) establish() error {
	r := &packetRun{c: c}
	for _, family := range []byte{4, 6} {
		for i := range 6 * throngPorts {
			f := frame{from: netip.AddrPortFrom(throngAddr(family, i/throngPorts), uint16(20000+i%throngPorts)), to: virtual[family],
				protocol: unix.IPPROTO_TCP, flags: flagSYN, seq: 1000, payload: "a payload of some length"}
			source, backend, ok, err := r.run(f, family)
			if err != nil || !ok {
				return fmt.Errorf("SYN of %s: translated: %v, %w", f.from, ok, err)
			}
			reply := frame{from: backend, to: source, protocol: f.protocol, flags: flagSYN | flagACK, seq: 5000, ack: 1001, payload: f.payload}
			s := steadyFlow{f, reply, family}
			if err := s.check(r, true); err != nil {
				return err
			}
			s.client.flags, s.client.seq, s.client.ack = flagACK, 1001, 5001
			s.reply.flags, s.reply.seq = flagACK, 5001
			if err := s.check(r, false); err != nil {
				return err
			}
			c.steady = append(c.steady, s)
		}
	}
	return nil
}

// check sends a packet of a steady connection, by the backend or the client: it has to be
// translated as ever.
func (s *steadyFlow) check(r *packetRun, byBackend bool) error {
	f, wantFrom, wantTo := s.client, s.reply.to, s.reply.from
	if byBackend {
		f, wantFrom, wantTo = s.reply, s.client.to, s.client.from
	}
	from, to, ok, err := r.run(f, s.family)
	if err == nil && (!ok || from != wantFrom || to != wantTo) {
		err = fmt.Errorf("a packet of %s to %s is translated: %v, to one of %s to %s, want %s to %s", f.from, f.to, ok, from, to, wantFrom, wantTo)
	}
	return err
}

// work is what thread number i does. A flow that begins and ends has its packets handled by one
// thread.
func (c *throng) work(i int) error {
	r, passed := &packetRun{c: c}, c.passers[i]
	flags := []byte{flagSYN, flagSYN, flagACK, flagACK, flagACK | flagFIN, flagRST}
	for {
		select {
		case <-c.stop:
			return nil
		default:
		}
		if rand.IntN(2) == 0 {
			if err := c.steady[rand.IntN(len(c.steady))].check(r, rand.IntN(2) == 0); err != nil {
				return err
			}
			c.count.steady.Add(1)
			continue
		}
		if err := passed.try(r); err != nil {
			return err
		}
		family := []byte{4, 6}[rand.IntN(2)]
		turn := int(time.Now().UnixNano() / int64(throngTurn) % 3)
		client := netip.AddrPortFrom(throngAddr(family, 16+8*i+2*turn+rand.IntN(2)), uint16(20000+rand.IntN(throngPorts)))
		f := frame{from: client, to: virtual[family], protocol: unix.IPPROTO_TCP,
			flags: flags[rand.IntN(len(flags))], seq: rand.Uint32N(1 << 12), payload: "a payload of some length"}
		if rand.IntN(2) == 0 {
			f.protocol = unix.IPPROTO_UDP
		}
		source, backend, ok, err := r.run(f, family)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if addr := backend.Addr(); addr.Less(xdpBackend[family].Addr()) || passingBackend(family, 0).Addr().Compare(addr) <= 0 {
			return fmt.Errorf("%s is sent to %s, which no endpoint of its Service has", client, backend)
		}
		c.count.others.Add(1)
		reply := frame{from: backend, to: source, protocol: f.protocol, flags: f.flags | flagACK, seq: rand.Uint32N(1 << 12), payload: f.payload}
		if _, _, _, err := r.run(reply, family); err != nil {
			return err
		}
	}
}

// passer is one thread's clients of the Service that comes and goes.
type passer struct {
	*throng
	thread int
	told   int64 // the phase in which its clients have connected
	port   uint16
}

// try sends a datagram of a client that has long been there, and once in each phase the SYN of a new
// one. While the Service is served they go to its endpoint, and nowhere once it has been removed.
func (p *passer) try(r *packetRun) error {
	family := []byte{4, 6}[rand.IntN(2)]
	f := frame{from: netip.AddrPortFrom(throngAddr(family, 80+p.thread), 20000), to: passing[family], protocol: unix.IPPROTO_UDP, payload: "a datagram"}
	if err := p.send(r, f, family); err != nil {
		return err
	}
	if phase := p.phase.Load(); phase != p.told {
		p.told = phase
		p.port++
		f = frame{from: netip.AddrPortFrom(f.from.Addr(), 20000+p.port), to: f.to, protocol: unix.IPPROTO_TCP, flags: flagSYN}
		return p.send(r, f, family)
	}
	return nil
}

func (p *passer) send(r *packetRun, f frame, family byte) error {
	phase := p.phase.Load()
	_, to, sent, err := r.run(f, family)
	if err != nil || p.phase.Load() != phase {
		return err
	}
	switch want := passingBackend(family, phase); {
	case phase%phases == phaseServed:
		p.count.served.Add(1)
		// The flow of a client whose endpoint has gone is moved at tc.
		if sent && to != want || !sent && f.protocol == unix.IPPROTO_TCP {
			return fmt.Errorf("a packet of %s to a Service is sent: %v, to %s, want %s", f.from, sent, to, want)
		}
	case phase%phases == phaseGone:
		p.count.gone.Add(1)
		if sent && to.Addr() != f.from.Addr() {
			return fmt.Errorf("a packet of %s to a Service that has been removed is sent to %s", f.from, to)
		}
	}
	return nil
}

// pass makes or removes the Service that comes and goes.
func (c *throng) pass() {
	switch phase := c.phase.Load(); phase % phases {
	case phaseMaking:
		manifests := []string{lab.Service("passing", `{clusterIPs: [10.96.0.9, "fd96::9"], ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}`)}
		for _, family := range []byte{4, 6} {
			manifests = append(manifests, lab.Slice("passing", "t:8080/TCP,u:8080/UDP", passingBackend(family, phase).Addr()))
		}
		c.b.agent.Apply(manifests...)
	case phaseRemoving:
		c.b.agent.DeleteService("passing")
	}
	c.phase.Add(1)
}

// change adds and removes endpoints, but for the one of the steady connections, until the threads
// are to stop.
func (c *throng) change() {
	for i := 0; ; i++ {
		select {
		case <-c.stop:
			return
		default:
		}
		var slices []string
		for _, family := range []byte{4, 6} {
			addr := xdpBackend[family].Addr()
			addrs := []netip.Addr{addr}
			for n := range 3 {
				if addr = addr.Next(); i>>n&1 == 0 {
					addrs = append(addrs, addr)
				}
			}
			slices = append(slices, lab.Slice("web", "t:8080/TCP,u:8080/UDP", addrs...))
		}
		c.b.agent.Apply(slices...)
		c.pass()
	}
}

// run has the threads work while fn runs.
func (c *throng) run(t *testing.T, fn func()) {
	t.Helper()
	c.stop = make(chan struct{})
	var threads sync.WaitGroup
	for i := range c.threads {
		threads.Go(func() {
			if err := c.b.Thread(func() error { return c.work(i) }); err != nil {
				t.Error(err)
			}
		})
	}
	threads.Go(c.change)
	fn()
	close(c.stop)
	threads.Wait()
}

// enough waits until there is something to say.
func (c *throng) enough(t *testing.T) {
	t.Helper()
	lab.Eventually(t, "there were packets of all kinds", func() bool {
		return t.Failed() || c.count.steady.Load() >= 100 && c.count.others.Load() >= 100 && c.count.served.Load() >= 20 && c.count.gone.Load() >= 20
	})
}

// TestConcurrentFlows: threads handle packets of both directions of the same connections, while flows
// from the same source ports to the same backends begin, end and expire, endpoints come and go, and so
// does a Service. Each packet of the connections is translated as ever, and no packet reaches the
// endpoint of a Service that has been removed; in the end each flow has its two entries, each source
// port one owner, and the programs count as many half-open flows as there are.
func TestConcurrentFlows(t *testing.T) {
	t.Parallel()
	b := newXDPBench(t)
	c := &throng{b: b, program: b.programs.program(t, b.program), threads: 2 * runtime.GOMAXPROCS(0)}
	for i := range c.threads {
		c.passers = append(c.passers, &passer{throng: c, thread: i, told: -1})
	}
	if err := c.b.Run(c.establish); err != nil {
		t.Fatal(err)
	}
	c.run(t, func() { c.enough(t) })
	c.checkTables(t) // what the programs count by themselves

	expired := 0
	options := flow.Options{Maps: c.b.maps, Timeouts: throngTimeouts, Interval: throngWalk, Expired: func(*flowmap.Flow) { expired++ }}
	c.run(t, func() {
		takes := time.Second
		if tier.All(t) {
			takes = 2 * 3 * throngTurn // all flows expire twice
		}
		ctx, cancel := context.WithTimeout(t.Context(), takes)
		defer cancel()
		flow.New(options).Run(ctx)
	})
	t.Logf("%d packets of %d steady connections, %d others, %d to the Service that comes and goes and %d while it was gone, %d flows have expired",
		c.count.steady.Load(), len(c.steady), c.count.others.Load(), c.count.served.Load(), c.count.gone.Load(), expired)
	if tier.All(t) && expired == 0 {
		t.Error("no flow has expired")
	}
	// The agent corrects the count with each walk.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	options.Interval, options.Walked = time.Millisecond, func(flow.Walk) { cancel() }
	flow.New(options).Run(ctx)
	c.checkTables(t)
}

// checkTables checks the entries of the flow tables, which nothing writes to any more.
func (c *throng) checkTables(t *testing.T) {
	t.Helper()
	forward := make(map[bpf.SockBlFlowKey]bpf.SockBlFlowForward)
	replies := make(map[bpf.SockBlFlowKey]bpf.SockBlFlowKey) // the forward key → the reply key
	halfOpen := int64(0)
	for _, table := range []*ebpf.Map{c.b.maps.BlFlow, c.b.maps.BlOverflow} {
		err := bpfmap.Each(table, func(key *bpf.SockBlFlowKey, e *bpf.SockBlFlowEntry) {
			if !e.IsReply() {
				forward[*key] = e.Forward
				if table == c.b.maps.BlFlow && e.Forward.State().HalfOpen() {
					halfOpen++
				}
				return
			}
			of := e.Reply().ForwardKey(key.Proto)
			if other, twice := replies[of]; twice {
				t.Errorf("flow %x has two reply entries, %x and %x", of, other, *key)
			}
			replies[of] = *key
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for key, f := range forward {
		if reply, ok := replies[key]; !ok {
			t.Errorf("flow %x has no reply entry: %x", key, f)
		} else if !f.Owns(&reply) {
			t.Errorf("flow %x has the reply entry of another one, %x: %x", key, reply, f)
		}
		delete(replies, key)
	}
	for of, key := range replies {
		t.Errorf("reply entry %x is of no flow: %x", key, of)
	}
	if counted := flowmap.New(c.b.maps).HalfOpen().Count; counted != halfOpen {
		t.Errorf("%d flows are counted as half-open, of %d", counted, halfOpen)
	}
}
