package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// patience is how long a socket waits for what must come: ten times what it takes to send a
// SYN again. It is shorter than [wait.Limit], for a datagram may get lost.
const patience = 10 * time.Second

// ErrNothing says that nothing was received before the timeout.
var ErrNothing = errors.New("nothing received in time")

// Socket is a socket of a process in a namespace and its cgroup, with the system
// calls as applications make them. Its methods hide nothing, and send again only what the
// machine itself may have dropped: see [Socket.again].
type Socket struct {
	fd     int
	family int
	// stream is set of what the kernel sends again itself.
	stream bool
	last   atomic.Pointer[datagram]
	// repeated is whether a datagram was sent again, so that two answers may come.
	repeated atomic.Bool
}

// datagram is what a socket sent last, and how many packets the machine had dropped before.
type datagram struct {
	send    func() error
	dropped uint64
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
	s := &Socket{fd: -1, family: family, stream: kind == unix.SOCK_STREAM}
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

// Disconnect dissolves the association of a UDP socket, or the connection of a TCP one.
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
	return s.send(func() error {
		_, err := unix.SendmsgN(s.fd, []byte(text), nil, nil, unix.MSG_NOSIGNAL)
		return err
	})
}

// SendTo sends one datagram.
func (s *Socket) SendTo(text string, to netip.AddrPort) error {
	return s.send(func() error { return unix.Sendto(s.fd, []byte(text), unix.MSG_NOSIGNAL, s.sockaddr(to)) })
}

func (s *Socket) send(send func() error) error {
	if s.stream {
		return send()
	}
	dropped := droppedPackets()
	if err := send(); err != nil {
		return err
	}
	s.last.Store(&datagram{send, dropped})
	return nil
}

// again sends the last datagram again when the machine has dropped packets since. All
// namespaces share the queues in which packets wait for a processor, and a test that fills
// them makes others lose theirs.
func (s *Socket) again() error {
	last := s.last.Load()
	if last == nil || last.dropped == droppedPackets() {
		return nil
	}
	s.repeated.Store(true)
	return s.send(last.send)
}

// Repeated reports whether a datagram was sent again: two answers to one may come.
func (s *Socket) Repeated() bool { return s.repeated.Load() }

// droppedPackets returns how many packets the machine has dropped because the queue of a
// processor was full (net.core.netdev_max_backlog).
func droppedPackets() (n uint64) {
	text, _ := os.ReadFile("/proc/net/softnet_stat")
	for line := range strings.Lines(string(text)) {
		if columns := strings.Fields(line); len(columns) > 1 {
			dropped, _ := strconv.ParseUint(columns[1], 16, 32)
			n += dropped
		}
	}
	return n
}

// Receive returns the next data or datagram and where recvfrom() says it is from.
// The error wraps [ErrNothing] when none came.
func (s *Socket) Receive() (string, netip.AddrPort, error) {
	if err := s.arrival(); err != nil {
		return "", netip.AddrPort{}, err
	}
	buf := make([]byte, 2048)
	n, from, err := unix.Recvfrom(s.fd, buf, 0)
	return string(buf[:max(n, 0)]), addrPort(from), err
}

// ReceiveAfter is Receive of what comes because of a packet that is sent otherwise.
func (s *Socket) ReceiveAfter(send func() error) (string, netip.AddrPort, error) {
	if err := s.send(send); err != nil {
		return "", netip.AddrPort{}, err
	}
	return s.Receive()
}

// ReceiveMsg is Receive by recvmsg().
func (s *Socket) ReceiveMsg() (string, netip.AddrPort, error) {
	if err := s.arrival(); err != nil {
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

// AskWithin is Ask where the datagram or the answer may get lost: it waits no longer.
func (s *Socket) AskWithin(text string, within time.Duration) (string, error) {
	if err := s.Send(text); err != nil {
		return "", err
	}
	if err := s.wait(unix.POLLIN, within); err != nil {
		return "", err
	}
	answer, _, err := s.Receive()
	return answer, err
}

// arrival waits for something to receive.
func (s *Socket) arrival() error {
	const step = time.Second
	for waited := time.Duration(0); waited < patience; waited += step {
		if err := s.wait(unix.POLLIN, step); !errors.Is(err, ErrNothing) {
			return err
		}
		if err := s.again(); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: %s", ErrNothing, patience)
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

// SendControl sends one datagram with a control message that carries a number.
func (s *Socket) SendControl(text string, to netip.AddrPort, level, kind int32, value uint32) error {
	control := make([]byte, unix.CmsgSpace(4))
	header := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	header.Level, header.Type = level, kind
	header.SetLen(unix.CmsgLen(4))
	binary.NativeEndian.PutUint32(control[unix.CmsgLen(0):], value)
	return unix.Sendmsg(s.fd, []byte(text), control, s.sockaddr(to), unix.MSG_NOSIGNAL)
}

// Dup returns another descriptor of the socket, as a process has that was forked.
func (s *Socket) Dup(t testing.TB) *Socket {
	t.Helper()
	fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	dup := &Socket{fd: fd, family: s.family}
	t.Cleanup(dup.Close)
	return dup
}
