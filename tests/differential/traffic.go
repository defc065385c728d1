package differential

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/wait"
)

// attempt is one connection or datagram.
type attempt struct {
	udp  bool
	from netip.Addr // the zero address leaves it to the kernel
	port uint16     // of the source; 0 takes the next one
	to   netip.AddrPort
	// unconnected is of a datagram: its socket is not connected.
	unconnected bool
}

// verdict is what becomes of an attempt.
type verdict string

const (
	reached verdict = "reached"
	refused verdict = "refused" // a reset or an ICMP error
	dropped verdict = "dropped" // no answer, or an error of the system call that stands for it
)

// result is the verdict of an attempt and, when it reached a server, which one and from
// where. Other errors are a verdict of their own.
type result struct {
	verdict    verdict
	server     netip.AddrPort
	source     netip.Addr
	sourcePort uint16
}

// machine is a namespace from which attempts are made.
type machine struct {
	*lab.Namespace
	// servers are all of the world, each of which answers attempts straight to it.
	servers []netip.AddrPort
	port    atomic.Uint32
	// ephemeral is set where all ports are of net.ipv4.ip_local_port_range.
	ephemeral bool
}

// nextPort returns the next source port. None comes again before all others have, some 28,000 or
// more: what a proxy remembers of a connection is not met by another one. NodePorts and those of
// servers are left out. The node's are of its ephemeral port range, as the kernel would give: what
// becomes of others is in docs/design/source-ports.md, Ports of the host and of netfilter.
func (m *machine) nextPort() int {
	if m.ephemeral {
		return 32768 + int(m.port.Add(1)%28232)
	}
	for {
		p := 10000 + int(m.port.Add(1)%55000)
		if p < 30000 || p > 32767 {
			return p
		}
	}
}

// try makes attempts, many at a time, and returns their results in the same order. It says
// that one is dropped when nothing has come although later attempts straight to every server
// were all answered, twice, and after the pause.
func (m *machine) try(attempts []attempt, pause time.Duration) (results []result, err error) {
	const atOnce = 200
	for len(attempts) > 0 && err == nil {
		n := min(atOnce, len(attempts))
		var some []result
		err = m.Run(func() (err error) {
			some, err = m.tryAtOnce(attempts[:n], pause)
			return err
		})
		results, attempts = append(results, some...), attempts[n:]
	}
	return results, err
}

func (m *machine) tryAtOnce(attempts []attempt, pause time.Duration) ([]result, error) {
	flights := make([]*flight, len(attempts))
	for i, a := range attempts {
		f, err := m.start(a)
		if err != nil {
			return nil, err
		}
		defer f.close()
		flights[i] = f
	}
	if err := m.await(flights, pause); err != nil {
		return nil, err
	}
	results := make([]result, len(flights))
	for i, f := range flights {
		results[i] = f.result
		if f.verdict == "" {
			results[i].verdict = dropped
		}
	}
	return results, nil
}

// await polls until all have ended or the rest is dropped.
func (m *machine) await(flights []*flight, pause time.Duration) error {
	for silent := 0; ; {
		open, progress, err := pollOnce(flights, 20*time.Millisecond)
		if err != nil || open == 0 {
			return err
		}
		if progress {
			silent = 0
			continue
		}
		if silent++; silent > 2 {
			for _, f := range flights {
				f.takeSoftError()
			}
			return nil
		}
		time.Sleep(pause)
		if err := m.askAll(); err != nil {
			return err
		}
	}
}

// askAll has every server answer once, by TCP and UDP.
func (m *machine) askAll() error {
	for _, to := range m.servers {
		for _, udp := range []bool{false, true} {
			if err := m.ask(attempt{udp: udp, to: to}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *machine) ask(a attempt) error {
	for begin := time.Now(); time.Since(begin) < wait.Limit; {
		// A SYN or datagram that the machine has lost is sent again by a new attempt.
		if r, err := m.once(a, 2*time.Second); err != nil || r.verdict == reached {
			return err
		}
	}
	return fmt.Errorf("the server at %s does not answer", a.to)
}

// once makes an attempt and waits for its verdict, but no longer than that. It is to be called in
// the namespace of the machine.
func (m *machine) once(a attempt, within time.Duration) (result, error) {
	f, err := m.start(a)
	if err != nil {
		return result{}, err
	}
	defer f.close()
	for begin := time.Now(); f.verdict == "" && time.Since(begin) < within; {
		if _, _, err := pollOnce([]*flight{f}, 50*time.Millisecond); err != nil {
			return f.result, err
		}
	}
	return f.result, nil
}

// flight is an attempt under way; it has ended when there is a verdict.
type flight struct {
	attempt
	result
	fd        int
	connected bool
}

// start makes the socket and sends the SYN or the datagram.
func (m *machine) start(a attempt) (*flight, error) {
	family, kind := unix.AF_INET6, unix.SOCK_STREAM
	if a.to.Addr().Is4() {
		family = unix.AF_INET
	}
	if a.udp {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := &flight{attempt: a, fd: fd}
	if err := m.bind(fd, a); err != nil {
		f.close()
		return nil, err
	}
	if a.unconnected {
		f.connected = true
		if err := unix.Sendto(fd, []byte("x"), unix.MSG_NOSIGNAL, sockaddr(a.to)); err != nil {
			f.fail(err)
		}
		return f, nil
	}
	switch err := unix.Connect(fd, sockaddr(a.to)); {
	case err != nil && !errors.Is(err, unix.EINPROGRESS):
		f.fail(err)
	case a.udp:
		f.connected = true
		if err := unix.Sendmsg(fd, []byte("x"), nil, nil, unix.MSG_NOSIGNAL); err != nil {
			f.fail(err)
		}
	}
	return f, nil
}

// bind gives the socket a source port that was not used lately.
func (m *machine) bind(fd int, a attempt) error {
	from := a.from
	if !from.IsValid() {
		from = netip.IPv6Unspecified()
		if a.to.Addr().Is4() {
			from = netip.IPv4Unspecified()
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	for {
		port := int(a.port)
		if port == 0 {
			port = m.nextPort()
		}
		err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, uint16(port))))
		if a.port != 0 || !errors.Is(err, unix.EADDRINUSE) {
			if err != nil {
				err = fmt.Errorf("bind to %s port %d: %w", from, port, err)
			}
			return err
		}
	}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// fail ends the flight by an error. EHOSTUNREACH is how Beeline drops at connect(), EPERM
// what a packet of the node itself gets from netfilter.
func (f *flight) fail(err error) {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		f.verdict = refused
	case errors.Is(err, unix.EPERM):
		// No verdict: when it is not dropped but rejected, ECONNREFUSED follows.
	case errors.Is(err, unix.EHOSTUNREACH):
		f.verdict = dropped
	default:
		f.verdict = verdict(err.Error())
	}
}

// close resets a connection, so that nothing of it is left.
func (f *flight) close() {
	if f.fd < 0 {
		return
	}
	if !f.udp {
		_ = unix.SetsockoptLinger(f.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // else it ends by FIN
	}
	unix.Close(f.fd)
	f.fd = -1
}

// pollOnce waits for news of flights, takes them in, and says how many flights go on.
func pollOnce(flights []*flight, within time.Duration) (open int, progress bool, err error) {
	var fds []unix.PollFd
	var of []*flight
	for _, f := range flights {
		if f.verdict != "" {
			continue
		}
		events := int16(unix.POLLIN)
		if !f.connected {
			events = unix.POLLOUT
		}
		fds, of = append(fds, unix.PollFd{Fd: int32(f.fd), Events: events}), append(of, f)
	}
	if len(fds) == 0 {
		return 0, false, nil
	}
	if _, err := unix.Poll(fds, int(within.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
		return 0, false, err
	}
	open = len(fds)
	for i, f := range of {
		if fds[i].Revents == 0 {
			continue
		}
		progress = true
		f.advance()
		if f.verdict != "" {
			open--
		}
	}
	return open, progress, nil
}

// advance takes in what the socket has.
func (f *flight) advance() {
	if !f.connected {
		code, err := unix.GetsockoptInt(f.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = syscall.Errno(code)
		}
		if err != nil {
			f.fail(err)
			return
		}
		f.connected = true
		return
	}
	buf := make([]byte, 256)
	n, err := unix.Read(f.fd, buf)
	switch {
	case errors.Is(err, unix.EAGAIN):
	case err != nil:
		f.fail(err)
	default:
		f.greeted(string(buf[:n]))
	}
}

// takeSoftError ends the flight of a SYN by an error that does not end the connection: an ICMP
// error that came while connect() had the socket is only kept, until the SYN is sent again.
func (f *flight) takeSoftError() {
	if f.verdict == "" && !f.connected {
		if code, err := unix.GetsockoptInt(f.fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
			f.fail(syscall.Errno(code))
		}
	}
}

// greeted takes in the greeting of a server.
func (f *flight) greeted(text string) {
	server, client, _ := strings.Cut(text, " ")
	var errs [2]error
	var from netip.AddrPort
	f.server, errs[0] = netip.ParseAddrPort(server)
	from, errs[1] = netip.ParseAddrPort(client)
	f.source, f.sourcePort, f.verdict = from.Addr(), from.Port(), reached
	if err := errors.Join(errs[:]...); err != nil {
		f.verdict = verdict(err.Error())
	}
}

// serve answers at an address, by TCP and UDP, with that address and the client's.
func serve(t tester, n *lab.Namespace, at netip.AddrPort) {
	t.Helper()
	var listener net.Listener
	var conn net.PacketConn
	err := n.Run(func() (err error) {
		if listener, err = net.Listen("tcp", at.String()); err != nil {
			return err
		}
		conn, err = net.ListenPacket("udp", at.String())
		return err
	})
	if err != nil {
		t.Fatalf("serve at %s: %v", at, err)
	}
	t.Cleanup(func() { listener.Close(); conn.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(c, "%s %s", at, c.RemoteAddr()) // a client that went away misses it
			c.Close()
		}
	}()
	go func() {
		buf := make([]byte, 256)
		for {
			_, from, err := conn.ReadFrom(buf)
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err == nil:
				_, _ = conn.WriteTo(fmt.Appendf(nil, "%s %s", at, from), from) // the same
			}
		}
	}()
}
