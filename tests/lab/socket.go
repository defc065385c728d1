package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// patience is how long a socket waits for what must come.
const patience = 5 * time.Second

// ErrNothing says that nothing came in time.
var ErrNothing = errors.New("nothing received in time")

// Socket is a socket of a process in a namespace and its cgroup, with the system
// calls as applications make them. Its methods do not retry and hide nothing.
type Socket struct {
	fd     int
	family int
}

// Socket makes a socket: network is "tcp4", "tcp6", "udp4" or "udp6". IPv4
// addresses given to a socket of IPv6 are used in their mapped form. It is closed
// when the test ends.
func (n *Namespace) Socket(network string) *Socket {
	n.t.Helper()
	families := map[byte]int{'4': unix.AF_INET, '6': unix.AF_INET6}
	types := map[string]int{"tcp": unix.SOCK_STREAM, "udp": unix.SOCK_DGRAM}
	return n.RawSocket(families[network[3]], types[network[:3]], 0)
}

// RawSocket makes a socket of any kind.
func (n *Namespace) RawSocket(family, kind, protocol int) *Socket {
	n.t.Helper()
	s, err := n.TrySocket(family, kind, protocol)
	if err != nil {
		n.t.Fatalf("make a socket: %v", err)
	}
	return s
}

// TrySocket makes a socket of a kind that the kernel may lack.
func (n *Namespace) TrySocket(family, kind, protocol int) (*Socket, error) {
	s := &Socket{fd: -1, family: family}
	err := n.Run(func() (err error) {
		s.fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
		return err
	})
	n.t.Cleanup(s.Close)
	return s, err
}

// Close closes the socket. A second call has no effect.
func (s *Socket) Close() {
	if s.fd >= 0 {
		unix.Close(s.fd)
		s.fd = -1
	}
}

// Bind binds the socket.
func (s *Socket) Bind(to netip.AddrPort) error { return unix.Bind(s.fd, s.sockaddr(to)) }

// Connect connects the socket and waits for the outcome. The error is that of
// connect(), plain.
func (s *Socket) Connect(to netip.AddrPort) error {
	err := unix.Connect(s.fd, s.sockaddr(to))
	if err != unix.EINPROGRESS {
		return err
	}
	if err := s.wait(unix.POLLOUT, patience); err != nil {
		return err
	}
	code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return err
	}
	if code != 0 {
		return syscall.Errno(code)
	}
	return nil
}

// Disconnect dissolves the association of a UDP socket.
func (s *Socket) Disconnect() error {
	raw := unix.RawSockaddrAny{Addr: unix.RawSockaddr{Family: unix.AF_UNSPEC}}
	return connectRaw(s.fd, &raw)
}

// Peer returns what getpeername() shows, in the socket's own family.
func (s *Socket) Peer() (netip.AddrPort, error) {
	sa, err := unix.Getpeername(s.fd)
	return addrPort(sa), err
}

// Local returns what getsockname() shows.
func (s *Socket) Local() (netip.AddrPort, error) {
	sa, err := unix.Getsockname(s.fd)
	return addrPort(sa), err
}

// Send sends on a connected socket.
func (s *Socket) Send(text string) error {
	_, err := unix.SendmsgN(s.fd, []byte(text), nil, nil, unix.MSG_NOSIGNAL)
	return err
}

// SendTo sends one datagram.
func (s *Socket) SendTo(text string, to netip.AddrPort) error {
	return unix.Sendto(s.fd, []byte(text), unix.MSG_NOSIGNAL, s.sockaddr(to))
}

// Receive returns the next data or datagram and where recvfrom() says it is from.
// The error wraps [ErrNothing] when none came.
func (s *Socket) Receive() (string, netip.AddrPort, error) {
	if err := s.wait(unix.POLLIN, patience); err != nil {
		return "", netip.AddrPort{}, err
	}
	buf := make([]byte, 2048)
	n, from, err := unix.Recvfrom(s.fd, buf, 0)
	return string(buf[:max(n, 0)]), addrPort(from), err
}

// ReceiveMsg is Receive by recvmsg().
func (s *Socket) ReceiveMsg() (string, netip.AddrPort, error) {
	if err := s.wait(unix.POLLIN, patience); err != nil {
		return "", netip.AddrPort{}, err
	}
	buf := make([]byte, 2048)
	n, _, _, from, err := unix.Recvmsg(s.fd, buf, nil, 0)
	return string(buf[:max(n, 0)]), addrPort(from), err
}

// Ask sends text on a connected socket and returns the answer.
func (s *Socket) Ask(text string) (string, error) {
	if err := s.Send(text); err != nil {
		return "", err
	}
	answer, _, err := s.Receive()
	return answer, err
}

// Ready reports whether something can be received within the time.
func (s *Socket) Ready(within time.Duration) bool { return s.wait(unix.POLLIN, within) == nil }

// wait waits until the socket is ready for the events.
func (s *Socket) wait(events int16, within time.Duration) error {
	deadline := time.Now().Add(within)
	for {
		fds := []unix.PollFd{{Fd: int32(s.fd), Events: events}}
		n, err := unix.Poll(fds, int(max(0, time.Until(deadline).Milliseconds())))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("%w: %s", ErrNothing, within)
		default:
			return nil
		}
	}
}

func (s *Socket) sockaddr(to netip.AddrPort) unix.Sockaddr {
	if s.family == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().Unmap().As4()}
	}
	return &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// connectRaw connects to what package unix has no address type for.
func connectRaw(fd int, to *unix.RawSockaddrAny) error {
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(to)), unix.SizeofSockaddrInet4)
	if errno != 0 {
		return errno
	}
	return nil
}
