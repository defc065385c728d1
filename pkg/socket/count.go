package socket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/netns"
	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// openStates are those of TCP in which a connection is of use, or has data on its way: not those in which
// it has been closed here and all is acknowledged (enum in net/tcp_states.h: ESTABLISHED, SYN_RECV,
// FIN_WAIT1, CLOSE_WAIT, LAST_ACK, CLOSING).
const openStates = 1<<established | 1<<3 | 1<<4 | 1<<8 | 1<<9 | 1<<11

// Connections returns how many TCP connections are open at addresses of this host and of its network
// namespaces, as far as they can be seen from here. An error in one of them keeps the others from
// nothing.
func Connections(at []netip.AddrPort) (map[netip.AddrPort]int, error) {
	counts := make(map[netip.AddrPort]int)
	port := uint16(0) // the one of all, else any: the kernel goes through all sockets for each list
	for i, a := range at {
		counts[a] = 0
		if i == 0 {
			port = a.Port()
		} else if port != a.Port() {
			port = 0
		}
	}
	err := netns.Each(func() error {
		if !anyHere(at) {
			return nil
		}
		// A socket of IPv6 may have connections of IPv4.
		return errors.Join(countAt(unix.AF_INET, port, counts), countAt(unix.AF_INET6, port, counts))
	})
	return counts, err
}

// anyHere reports whether the calling thread's network namespace has one of the addresses. There may be
// hundreds of namespaces, and for each list of connections the kernel goes through those of all.
func anyHere(at []netip.AddrPort) bool {
	held, err := rtnl.Addrs(nil)
	if err != nil {
		return true // as far as is known
	}
	for _, h := range held {
		addr, _ := netip.AddrFromSlice(h.IP)
		ones, _ := h.Mask.Size()
		if addr = addr.Unmap(); h.LinkIndex != loopback {
			ones = addr.BitLen()
		}
		network := netip.PrefixFrom(addr, ones)
		if slices.ContainsFunc(at, func(a netip.AddrPort) bool { return network.Contains(a.Addr()) }) {
			return true
		}
	}
	return false
}

// loopback is the index of the device that has all addresses of its networks.
const loopback = 1

// countAt counts the connections at a port, 0: at any, of the calling thread's network namespace, of addresses that
// are in counts.
func countAt(family uint8, port uint16, counts map[netip.AddrPort]int) error {
	asked := &request{Family: family, Protocol: unix.IPPROTO_TCP, States: openStates}
	binary.BigEndian.PutUint16(asked.ID.SourcePort[:], port)
	err := dump(asked, func(c connected) {
		local := c.socket().Local
		if _, wanted := counts[local]; wanted {
			counts[local]++
		}
	})
	if err != nil {
		return fmt.Errorf("list TCP connections: %w", err)
	}
	return nil
}
