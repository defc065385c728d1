// Package udpsocket has the UDP sockets by which agents ask each other: they tell which address of
// the node a datagram was sent to, and answer from there.
package udpsocket

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Socket sends and receives datagrams of one family.
type Socket struct{ *net.UDPConn }

// Origin is where a datagram has come to.
type Origin struct {
	Addr    netip.Addr // of this node
	Ifindex int
}

// listen opens a socket on an address.
func listen(ctx context.Context, at netip.AddrPort) (*Socket, error) {
	network, level, option := "udp4", unix.IPPROTO_IP, unix.IP_PKTINFO
	if at.Addr().Is6() {
		network, level, option = "udp6", unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }), err)
	}}
	conn, err := config.ListenPacket(ctx, network, at.String())
	if err != nil {
		return nil, err
	}
	return &Socket{conn.(*net.UDPConn)}, nil
}

// noFamily reports whether the host has no such family of addresses.
func noFamily(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EPROTONOSUPPORT)
}

// receive returns the next datagram, its source and its destination.
func (s *Socket) receive(b []byte) (n int, from netip.AddrPort, to Origin, err error) {
	var control [128]byte
	n, m, _, from, err := s.ReadMsgUDPAddrPort(b, control[:])
	if err != nil {
		return 0, from, to, err
	}
	to, err = parseOrigin(control[:m])
	return n, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), to, err
}

// Each calls f with each datagram until the socket is closed. The bytes are f's until it returns.
func (s *Socket) Each(f func(b []byte, from netip.AddrPort, to Origin)) {
	var b [1500]byte
	for {
		n, from, to, err := s.receive(b[:])
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			klog.V(2).ErrorS(err, "A datagram of another agent cannot be read", "at", s.LocalAddr())
			continue
		}
		f(b[:n], from, to)
	}
}

// parseOrigin reads the control messages that IP_PKTINFO and IPV6_RECVPKTINFO ask for.
func parseOrigin(control []byte) (Origin, error) {
	list, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return Origin{}, fmt.Errorf("read control messages: %w", err)
	}
	for _, c := range list {
		switch {
		case c.Header.Level == unix.IPPROTO_IP && c.Header.Type == unix.IP_PKTINFO && len(c.Data) >= unix.SizeofInet4Pktinfo:
			// Interface, address of the host that it was sent to, destination.
			return Origin{netip.AddrFrom4([4]byte(c.Data[4:8])), int(int32(binary.NativeEndian.Uint32(c.Data)))}, nil
		case c.Header.Level == unix.IPPROTO_IPV6 && c.Header.Type == unix.IPV6_PKTINFO && len(c.Data) >= unix.SizeofInet6Pktinfo:
			return Origin{netip.AddrFrom16([16]byte(c.Data[:16])), int(int32(binary.NativeEndian.Uint32(c.Data[16:])))}, nil
		}
	}
	return Origin{}, errors.New("no control message says where a datagram was sent to")
}

// Send sends a datagram, from an address of this node when it is valid.
func (s *Socket) Send(b []byte, from netip.Addr, to netip.AddrPort) error {
	var control []byte
	switch {
	case from.Is4():
		control = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: from.As4()})
	case from.Is6():
		control = unix.PktInfo6(&unix.Inet6Pktinfo{Addr: from.As16()})
	}
	_, _, err := s.WriteMsgUDPAddrPort(b, control, to)
	return err
}

// Pair is a socket of each family; nil where there is none.
type Pair [2]*Socket

// Open opens sockets on a port of addresses, of which one is of each family that the host has.
func Open(ctx context.Context, addrs []netip.Addr, port uint16) (Pair, error) {
	var p Pair
	for _, addr := range addrs {
		s, err := listen(ctx, netip.AddrPortFrom(addr, port))
		if noFamily(err) {
			continue
		}
		if err != nil {
			p.Close()
			return Pair{}, err
		}
		p[family(addr)] = s
	}
	return p, nil
}

// Of returns the socket that sends to an address, nil when there is none.
func (p *Pair) Of(addr netip.Addr) *Socket { return p[family(addr)] }

// Close closes both.
func (p *Pair) Close() {
	for _, s := range p {
		if s != nil {
			_ = s.Close()
		}
	}
}

// family is the index of an address's socket.
func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}
