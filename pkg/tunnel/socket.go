package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket sends and receives messages of one family.
type socket struct{ *net.UDPConn }

// origin is where a message has come to.
type origin struct {
	addr    netip.Addr // of this node
	ifindex int
}

// listen opens a socket on an address.
func listen(ctx context.Context, at netip.AddrPort) (*socket, error) {
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
	return &socket{conn.(*net.UDPConn)}, nil
}

// noFamily reports whether the host has no such family of addresses.
func noFamily(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EPROTONOSUPPORT)
}

// read returns the next datagram, its source and its destination.
func (s *socket) read(b []byte) (n int, from netip.AddrPort, to origin, err error) {
	var control [128]byte
	n, m, _, from, err := s.ReadMsgUDPAddrPort(b, control[:])
	if err != nil {
		return 0, from, to, err
	}
	to, err = parseOrigin(control[:m])
	return n, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), to, err
}

// parseOrigin reads the control messages that IP_PKTINFO and IPV6_RECVPKTINFO ask for.
func parseOrigin(control []byte) (origin, error) {
	list, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return origin{}, fmt.Errorf("read control messages: %w", err)
	}
	for _, c := range list {
		switch {
		case c.Header.Level == unix.IPPROTO_IP && c.Header.Type == unix.IP_PKTINFO && len(c.Data) >= unix.SizeofInet4Pktinfo:
			// Interface, address of the host that it was sent to, destination.
			return origin{netip.AddrFrom4([4]byte(c.Data[4:8])), int(int32(binary.NativeEndian.Uint32(c.Data)))}, nil
		case c.Header.Level == unix.IPPROTO_IPV6 && c.Header.Type == unix.IPV6_PKTINFO && len(c.Data) >= unix.SizeofInet6Pktinfo:
			return origin{netip.AddrFrom16([16]byte(c.Data[:16])), int(int32(binary.NativeEndian.Uint32(c.Data[16:])))}, nil
		}
	}
	return origin{}, errors.New("no control message says where a datagram was sent to")
}

// send sends a datagram, from an address of this node when it is valid.
func (s *socket) send(b []byte, from netip.Addr, to netip.AddrPort) error {
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
