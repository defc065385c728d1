package lab

import (
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ConnectWithin is Connect with a time of its own to wait. The error wraps
// [ErrNothing] when nobody answered.
func (s *Socket) ConnectWithin(to netip.AddrPort, within time.Duration) error {
	err := unix.Connect(s.fd, s.sockaddr(to))
	if err != unix.EINPROGRESS {
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

// TCPInfo returns what the kernel tells of a TCP connection.
func (s *Socket) TCPInfo() (*unix.TCPInfo, error) {
	return unix.GetsockoptTCPInfo(s.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
}
