package model_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// A sequence is conversations of clients with Services, and what happens in them in turn.
type sequence struct {
	conversations []conversation
	steps         []step
	// crowded: half-open flows of others have used up their share of the table.
	crowded bool
}

// conversation is a client that talks to a Service from one port.
type conversation struct {
	client   netip.AddrPort
	service  service
	protocol byte
}

func (c conversation) String() string {
	protocol := "TCP"
	if c.protocol == unix.IPPROTO_UDP {
		protocol = "UDP"
	}
	return fmt.Sprintf("%s %s > %s (%s)", protocol, c.client, c.service.addr, c.service.name)
}

// kind is what happens in a step.
type kind int

const (
	fromClient    kind = iota // the client sends a packet
	fromBackend               // the backend sends one to where the client's came from
	errorToClient             // a router on the path to the backend sends an ICMP error
	errorToServer             // a router on the path to the client does
	toStranger                // a packet to an address that is none of a Service
	expires                   // the agent removes the flow
	evicts                    // the kernel evicts the forward entry
	kinds
)

// step is one event, as plain data, so that a sequence can be cut down.
type step struct {
	kind         kind
	conversation int
	flags        byte // of TCP
	size         int  // of the payload
	ipOptions    int  // bytes
	tcpOptions   int
	cut          int // bytes that are missing at the end
	padding      int // bytes behind the end
	fragment     int // bytes of a fragment; 0: whole
	spoil        uint16
	class        byte
	icmp         int
	cpu          int
	quote        int  // bytes of the quoted packet after its IP header
	plain        bool // UDP without a checksum, over IPv4
	xdp          bool // XDP sees it before tc
	complete     bool // the device computes a sum for tc
}

// describe returns the step in a line.
func (s step) describe(c conversation) string {
	var b strings.Builder
	p := s.packet(c)
	switch s.kind {
	case fromClient:
		fmt.Fprintf(&b, "client: %s", p.describe())
	case fromBackend:
		p.from, p.to = netip.AddrPort{}, netip.AddrPort{}
		fmt.Fprintf(&b, "backend of %s: %s", c, strings.TrimPrefix(p.describe(), "invalid AddrPort > invalid AddrPort "))
	case errorToClient, errorToServer:
		to := "the client"
		if s.kind == errorToServer {
			to = "the backend"
		}
		fmt.Fprintf(&b, "%s, quoting %d bytes, to %s of %s", icmpKinds[s.icmp].name, s.quote, to, c)
	case toStranger:
		p.to = strangers[s.icmp%len(strangers)](c)
		fmt.Fprintf(&b, "to no Service: %s", p.describe())
	case expires:
		fmt.Fprintf(&b, "the flow of %s is removed", c)
	case evicts:
		fmt.Fprintf(&b, "the forward entry of %s is evicted", c)
	}
	for _, extra := range []struct {
		given bool
		text  string
	}{
		{s.cut > 0, fmt.Sprintf("without its last %d bytes", s.cut)},
		{s.padding > 0, fmt.Sprintf("with %d bytes behind it", s.padding)},
		{s.fragment > 0, fmt.Sprintf("in fragments of %d bytes", s.fragment)},
		{s.spoil > 0, fmt.Sprintf("with a checksum wrong by %#x", s.spoil)},
		{s.xdp, "XDP first"},
		{s.complete, "with a sum by the device"},
	} {
		if extra.given {
			b.WriteString(", " + extra.text)
		}
	}
	return b.String()
}

// strangers are where packets go that no Service gets.
var strangers = []func(conversation) netip.AddrPort{
	func(c conversation) netip.AddrPort { // beyond the node
		if c.client.Addr().Is4() {
			return netip.MustParseAddrPort("198.51.100.9:80")
		}
		return netip.MustParseAddrPort("[2001:db8:99::9]:80")
	},
	func(c conversation) netip.AddrPort { return netip.AddrPortFrom(nodeAddr(c), 22) },
	func(c conversation) netip.AddrPort { return c.service.backends[0] }, // not by the Service
}

// packet returns the packet of a step, from the client to the Service.
func (s step) packet(c conversation) packet {
	p := packet{from: c.client, to: c.service.addr, protocol: c.protocol, flags: s.flags, class: s.class, sequence: 0x12345678}
	p.payload = make([]byte, s.size)
	for i := range p.payload {
		p.payload[i] = byte(i*7 + s.size)
	}
	p.plain = s.plain && p.is4() && c.protocol == unix.IPPROTO_UDP
	switch {
	case s.ipOptions == 0:
	case p.is4():
		p.ipOptions = make([]byte, s.ipOptions)
		for i := range p.ipOptions {
			p.ipOptions[i] = 1 // no operation
		}
	default:
		p.ipOptions = make([]byte, 8*((s.ipOptions+7)/8))
		p.ipOptions[1] = byte(len(p.ipOptions)/8 - 1)
		p.ipOptions[2], p.ipOptions[3] = 1, byte(len(p.ipOptions)-4) // padding
	}
	if c.protocol == unix.IPPROTO_TCP {
		for range s.tcpOptions {
			p.tcpOptions = append(p.tcpOptions, 1)
		}
	}
	return p
}

// newSequence returns the sequence of a seed.
func newSequence(seed uint64) sequence {
	r := rand.New(rand.NewPCG(seed, 0))
	q := sequence{crowded: r.IntN(4) == 0}
	seen := make(map[string]bool)
	for range 2 + r.IntN(5) {
		if c := randomConversation(r); !seen[c.String()] {
			seen[c.String()] = true
			q.conversations = append(q.conversations, c)
		}
	}
	for range 8 + r.IntN(32) {
		q.steps = append(q.steps, randomStep(r, len(q.conversations)))
	}
	return q
}

// randomConversation takes from few addresses and ports, so that clients meet.
func randomConversation(r *rand.Rand) conversation {
	family, clients := 4, []string{"198.51.100.1", "198.51.100.2", "192.0.2.77"}
	if r.IntN(2) == 0 {
		family, clients = 6, []string{"2001:db8:5::1", "2001:db8:5::2", "2001:db8::77"}
	}
	ports := []uint16{80, 1023, 4242, 5555, 32768, 40000, 60999, 65535}
	all := servicesOf(family)
	to := all[r.IntN(len(all))]
	if !to.far && r.IntN(4) == 0 {
		to = directTo(to)
	}
	return conversation{
		client:   netip.AddrPortFrom(netip.MustParseAddr(clients[r.IntN(len(clients))]), ports[r.IntN(len(ports))]),
		service:  to,
		protocol: []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP}[r.IntN(2)],
	}
}

func randomStep(r *rand.Rand, conversations int) step {
	weights := [kinds]int{fromClient: 40, fromBackend: 30, errorToClient: 6, errorToServer: 6, toStranger: 6, expires: 3, evicts: 3}
	s := step{conversation: r.IntN(conversations), xdp: r.IntN(2) == 0, complete: r.IntN(3) == 0}
	for n := r.IntN(94); n >= weights[s.kind]; s.kind++ {
		n -= weights[s.kind]
	}
	s.flags = []byte{syn, syn, syn | ack, syn | ack, ack, ack, psh | ack, fin | ack, rst, rst | ack, fin, 0, syn | fin, syn | rst, 0xff}[r.IntN(15)]
	s.size = []int{0, 0, 1, 5, 33, 200, 1200}[r.IntN(7)]
	s.icmp, s.quote = r.IntN(len(icmpKinds)), []int{8, 8, 20, 64, 500}[r.IntN(5)]
	s.cpu = r.IntN(1 << 10)
	rarely := func(n int, do func()) {
		if r.IntN(n) == 0 {
			do()
		}
	}
	rarely(6, func() { s.ipOptions = 4 * (1 + r.IntN(10)) })
	rarely(4, func() { s.tcpOptions = 4 * (1 + r.IntN(10)) })
	rarely(12, func() { s.cut = 1 + r.IntN(60) })
	rarely(10, func() { s.padding = 1 + r.IntN(20) })
	rarely(10, func() { s.fragment = 8 * (1 + r.IntN(30)) })
	rarely(10, func() { s.spoil = uint16(1 + r.IntN(0xfffe)) })
	rarely(4, func() { s.class = byte(r.IntN(256)) })
	rarely(4, func() { s.plain = true })
	return s
}

// String lists the sequence for people.
func (q sequence) String() string {
	var b strings.Builder
	if q.crowded {
		b.WriteString("  0. half-open flows of others have their share of the table\n")
	}
	for i, s := range q.steps {
		fmt.Fprintf(&b, "%3d. %s\n", i+1, s.describe(q.conversations[s.conversation]))
	}
	return b.String()
}

// shrink returns the shortest sequence that it finds which still fails.
func (q sequence) shrink(fails func(sequence) bool) sequence {
	if next := q; q.crowded {
		if next.crowded = false; fails(next) {
			q = next
		}
	}
	for size := len(q.steps) / 2; size > 0; {
		smaller := false
		for at := 0; at+size <= len(q.steps); {
			next := q
			next.steps = append(append([]step(nil), q.steps[:at]...), q.steps[at+size:]...)
			if fails(next) {
				q, smaller = next, true
			} else {
				at += size
			}
		}
		if !smaller || size > len(q.steps) {
			size /= 2
		}
	}
	for i := range q.steps {
		for _, simplify := range []func(*step){
			func(s *step) { s.ipOptions = 0 }, func(s *step) { s.tcpOptions = 0 }, func(s *step) { s.cut = 0 },
			func(s *step) { s.padding = 0 }, func(s *step) { s.fragment = 0 }, func(s *step) { s.spoil = 0 },
			func(s *step) { s.class = 0 }, func(s *step) { s.plain = false }, func(s *step) { s.size = 0 },
			func(s *step) { s.xdp = false }, func(s *step) { s.complete = false }, func(s *step) { s.quote = 8 }, func(s *step) { s.cpu = 0 },
		} {
			next := q
			next.steps = append([]step(nil), q.steps...)
			simplify(&next.steps[i])
			if next.steps[i] != q.steps[i] && fails(next) {
				q = next
			}
		}
	}
	return q
}
