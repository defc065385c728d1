package packets_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestICMPLimit: of datagrams that are refused, and of packets without a hop left, no more get an ICMP error
// than the node's net.ipv4.icmp_msgs_per_sec allows. Later ones do again, and resets are not among
// them.
func TestICMPLimit(t *testing.T) {
	tier.SameInEveryKernel(t) // former ones have the setting in one network namespace
	t.Parallel()
	c := newCluster(t, false)
	c.nodes[0].SetSysctl("ipv4/icmp_msgs_per_sec", "50")
	c.serve(t, c.service(1, "far", "", []endpoint{remote}))
	for _, network := range []string{"udp4", "udp6"} {
		refused := netip.AddrPortFrom(clusterIP(1).of(network), 81)
		check := func() {
			t.Helper()
			s := c.client.Socket(network)
			defer s.Close()
			if err := s.Connect(refused); err != nil {
				t.Fatal(err)
			}
			lab.Eventually(t, network+": a datagram to an undeclared port is refused", func() bool {
				_, err := s.AskWithin("x", 100*time.Millisecond)
				return errors.Is(err, unix.ECONNREFUSED)
			})
		}
		check()
		c.floodICMP(t, network, "refused", refused, 64, [2]byte{unreachable4, portUnreachable4}, [2]byte{unreachable6, portUnreachable6})
		check()
		c.floodICMP(t, network, "without a hop left", nodePort(network, 1), 2, [2]byte{timeExceeded4, 0}, [2]byte{timeExceeded6, 0})
		check()
		before := eventCount(t, c.nodes[0], "icmp_limited")
		for range 50 {
			tcp := "tcp" + network[3:]
			if got, err := ask(c.client, tcp, refused, "x"); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s to an undeclared port: %v, %v, want it refused", tcp, got, err)
			}
		}
		if n := eventCount(t, c.nodes[0], "icmp_limited") - before; n > 0 {
			t.Errorf("%s: of 50 resets %d are counted as ICMP errors", network, n)
		}
	}
}

// Types and codes of ICMP errors.
const (
	unreachable4, portUnreachable4, timeExceeded4 = 3, 3, 11
	unreachable6, portUnreachable6, timeExceeded6 = 1, 4, 3
)

// floodICMP sends datagrams with so many hops left as fast as it can, and checks how many ICMP errors of the
// type and code come back from a node that may send fifty a second.
func (c *cluster) floodICMP(t *testing.T, network, what string, to netip.AddrPort, hops int, want4, want6 [2]byte) {
	t.Helper()
	const (
		sent  = 500
		slice = 1 << 27 * time.Nanosecond
		each  = 7 // in a slice
	)
	family, protocol, level, option, at, want := unix.AF_INET, unix.IPPROTO_ICMP, unix.IPPROTO_IP, unix.IP_TTL, 20, want4
	if network == "udp6" {
		family, protocol, level, option, at, want = unix.AF_INET6, unix.IPPROTO_ICMPV6, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 0, want6
	}
	received := c.client.RawSocket(family, unix.SOCK_RAW, protocol)
	defer received.Close()
	s := c.client.Socket(network)
	defer s.Close()
	if err := s.SetOption(level, option, hops); err != nil {
		t.Fatal(err)
	}
	before, start := eventCount(t, c.nodes[0], "icmp_limited"), time.Now()
	for range sent {
		if err := s.SendTo("x", to); err != nil {
			t.Fatal(err)
		}
	}
	lab.Eventually(t, network+": ICMP errors beyond the limit are counted", func() bool {
		return eventCount(t, c.nodes[0], "icmp_limited") > before
	})
	if err := askDirectly(c.client, network, nodeAddrs(1).of(network)); err != nil {
		t.Fatal(err)
	}
	count := 0
	for received.Ready(0) {
		packet, _, err := received.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if packet[at] == want[0] && packet[at+1] == want[1] {
			count++
		}
	}
	if most := each * int(time.Since(start)/slice+2); count == 0 || count > most {
		t.Errorf("%s: %d of %d datagrams %s got an ICMP error, want 1 to %d", network, count, sent, what, most)
	}
	t.Logf("%s %s: %d of %d got an ICMP error within %v", network, what, count, sent, time.Since(start))
}
