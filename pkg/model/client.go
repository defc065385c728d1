package model

import (
	"net"
	"net/netip"
)

// Client is who has made a connection to one of the agent's servers, as far as limits go.
type Client struct {
	// Network stands for all addresses that one client can have: its address, of IPv6 the /64.
	Network netip.Prefix
	// Here says that it is a process of this node, outside of pods: the kubelet is one.
	Here bool
}

// ClientOf returns the client of a connection by the addresses of both ends. The zero Client stands
// for all whose address is none of IP.
func ClientOf(remote, local net.Addr) Client {
	from, to := ipOf(remote), ipOf(local)
	if !from.IsValid() {
		return Client{}
	}
	bits := from.BitLen()
	if from.Is6() {
		bits = 64
	}
	// The kernel takes no packet from elsewhere with one of the node's own addresses.
	return Client{Network: netip.PrefixFrom(from, bits).Masked(), Here: from.IsLoopback() || from == to}
}

func ipOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}
