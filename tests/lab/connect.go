package lab

import (
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Connect connects the socket and waits for the outcome. The error is that of
// connect(), plain; it wraps [ErrNothing] when no answer came.
func (s *Socket) Connect(to netip.AddrPort) error { return s.ConnectWithin(to, patience) }

// Listen has a bound socket accept connections.
func (s *Socket) Listen() error { return unix.Listen(s.fd, 16) }

// StartConnect begins to connect the socket, without waiting for the outcome. The error is
// that of connect(), plain.
func (s *Socket) StartConnect(to netip.AddrPort) error {
	if err := unix.Connect(s.fd, s.sockaddr(to)); err != unix.EINPROGRESS {
		return err
	}
	return nil
}

// ConnectWithin is Connect with a time of its own to wait.
func (s *Socket) ConnectWithin(to netip.AddrPort, within time.Duration) error {
	if err := s.StartConnect(to); err != nil {
		return err
	}
	if err := s.wait(unix.POLLOUT, within); err != nil {
		return err
	}
	code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = syscall.Errno(code)
	}
	return err
}

// SetOption sets a socket option that is a number.
func (s *Socket) SetOption(level, option, value int) error {
	return unix.SetsockoptInt(s.fd, level, option, value)
}

// SetLinger says how many seconds Close waits for data to arrive; 0 resets the
// connection.
func (s *Socket) SetLinger(seconds int32) error {
	return unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: seconds})
}

// Option returns an option of the socket.
func (s *Socket) Option(level, option int) (int, error) {
	return unix.GetsockoptInt(s.fd, level, option)
}

// TCPInfo returns the kernel's TCP_INFO of a connection.
func (s *Socket) TCPInfo() (*unix.TCPInfo, error) {
	return unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
}
