package netns_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
)

// Of include/uapi/linux/l2tp.h.
const (
	l2tpTunnelCreate = 1
	l2tpTunnelDelete = 2

	l2tpEncapType    = 2
	l2tpVersion      = 7
	l2tpConnection   = 9
	l2tpPeer         = 10
	l2tpSource4      = 24
	l2tpDestination4 = 25
	l2tpSourcePort   = 26
	l2tpPort         = 27
	l2tpSource6      = 31
	l2tpDestination6 = 32
)

// TestKernelSockets: the kernel connects UDP sockets of its own to a Service, here those of tunnels
// of L2TP. They reach an endpoint, and take no place of bl_udp_sock, for nobody is told of their end.
func TestKernelSockets(t *testing.T) {
	t.Parallel()
	h, a := newHost(t, lab.AgentOptions{})
	applyConnected(a)
	for i, to := range []netip.AddrPort{connected4.to, connected6.to} {
		own := uint16(1701 + i) // the tunnel before may still exist: its deletion is only queued
		from := netip.AddrPortFrom([]netip.Addr{lab.Node4, lab.Node6}[i], own)
		family, err := l2tpFamily(h)
		if err != nil {
			t.Skipf("no L2TP in this kernel: %v", err)
		}
		if err := l2tpTunnel(h, family, from, to); err != nil {
			t.Fatalf("%s: %v", to, err)
		}
		peer := udpPeer(t, h, from)
		if !slices.Contains(append(backends4(3), backends6(3)...), peer.Addr()) {
			t.Errorf("the tunnel to %s is connected to %s", to, peer)
		}
		if got := h.UDPPlaces(); got != 0 {
			t.Errorf("%s: %d places are taken by a socket of the kernel", to, got)
		}
		if err := l2tpRequest(h, family, l2tpTunnelDelete, nl.NewRtAttr(l2tpConnection, nl.Uint32Attr(uint32(own)))); err != nil {
			t.Fatal(err)
		}
	}
}

func l2tpFamily(h *lab.Host) (id uint16, err error) {
	err = h.Run(func() error {
		family, err := netlink.GenlFamilyGet("l2tp")
		if err == nil {
			id = family.ID
		}
		return err
	})
	return id, err
}

// l2tpTunnel makes a tunnel, whose socket is the kernel's.
func l2tpTunnel(h *lab.Host, family uint16, from, to netip.AddrPort) error {
	source, destination := l2tpSource4, l2tpDestination4
	if to.Addr().Is6() {
		source, destination = l2tpSource6, l2tpDestination6
	}
	id := nl.Uint32Attr(uint32(from.Port()))
	return l2tpRequest(h, family, l2tpTunnelCreate,
		nl.NewRtAttr(l2tpEncapType, nl.Uint16Attr(0)), // UDP
		nl.NewRtAttr(l2tpVersion, nl.Uint8Attr(3)),
		nl.NewRtAttr(l2tpConnection, id), nl.NewRtAttr(l2tpPeer, id),
		nl.NewRtAttr(source, from.Addr().AsSlice()), nl.NewRtAttr(destination, to.Addr().AsSlice()),
		nl.NewRtAttr(l2tpSourcePort, nl.Uint16Attr(from.Port())), nl.NewRtAttr(l2tpPort, nl.Uint16Attr(to.Port())))
}

func l2tpRequest(h *lab.Host, family uint16, command uint8, attributes ...*nl.RtAttr) error {
	return h.Run(func() error {
		request := nl.NewNetlinkRequest(int(family), unix.NLM_F_ACK)
		request.AddData(&nl.Genlmsg{Command: command, Version: 1})
		for _, attribute := range attributes {
			request.AddData(attribute)
		}
		_, err := request.Execute(unix.NETLINK_GENERIC, 0)
		return err
	})
}

// udpPeer returns what the UDP socket of an address and port is connected to.
func udpPeer(t *testing.T, h *lab.Host, at netip.AddrPort) (peer netip.AddrPort) {
	t.Helper()
	family := uint8(unix.AF_INET)
	if at.Addr().Is6() {
		family = unix.AF_INET6
	}
	err := h.Run(func() error {
		sockets, err := netlink.SocketDiagUDP(family)
		for _, s := range sockets {
			if addr, _ := netip.AddrFromSlice(s.ID.Source); addr.Unmap() == at.Addr() && s.ID.SourcePort == at.Port() {
				addr, _ = netip.AddrFromSlice(s.ID.Destination)
				peer = netip.AddrPortFrom(addr.Unmap(), s.ID.DestinationPort)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return peer
}
