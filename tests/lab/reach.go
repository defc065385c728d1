package lab

import (
	"net/netip"
	"strings"
)

// Reach connects a new socket to an address and returns which of the servers of
// [Namespace.ServeTCP] and [Namespace.ServeUDP] answers. The error of connect()
// is returned as it is.
func (n *Namespace) Reach(network string, to netip.AddrPort) (netip.AddrPort, error) {
	n.t.Helper()
	s := n.Socket(network)
	defer s.Close()
	if err := s.Connect(to); err != nil {
		return netip.AddrPort{}, err
	}
	if strings.HasPrefix(network, "udp") {
		if err := s.Send("who"); err != nil {
			return netip.AddrPort{}, err
		}
	}
	answer, _, err := s.Receive()
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.ParseAddrPort(answer)
}
