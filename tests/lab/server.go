package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// BackendPort is the port of a host's backends.
const BackendPort = 8080

// ServeBackends starts a TCP and a UDP server at each of the host's addresses for
// backends.
func (h *Host) ServeBackends() {
	h.t.Helper()
	for i := range Backends {
		for _, addr := range []netip.Addr{Backend4(i + 1), Backend6(i + 1)} {
			h.ServeTCP(netip.AddrPortFrom(addr, BackendPort))
			h.ServeUDP(netip.AddrPortFrom(addr, BackendPort))
		}
	}
}

// ServeTCP starts a server that says which address it was reached at and then
// sends back what it gets. It ends with the test.
func (n *Namespace) ServeTCP(at netip.AddrPort) {
	n.t.Helper()
	n.ServeTCPUntil(at)
}

// ServeTCPUntil is ServeTCP until end is called.
func (n *Namespace) ServeTCPUntil(at netip.AddrPort) (end func()) {
	n.t.Helper()
	var listener net.Listener
	n.must("listen", func() (err error) {
		listener, err = new(net.ListenConfig).Listen(context.Background(), "tcp", at.String())
		return err
	})
	n.t.Cleanup(func() { listener.Close() })
	go accept(listener)
	return func() { listener.Close() }
}

func accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go answer(conn)
	}
}

func answer(conn net.Conn) {
	defer conn.Close()
	if _, err := fmt.Fprint(conn, conn.LocalAddr()); err != nil {
		return
	}
	_, _ = io.Copy(conn, conn) // ends with the client
}

// ServeUDP starts a server that answers each datagram with the address that it
// serves, and after a space with the number that ends the datagram as " #17" does. It
// ends with the test.
func (n *Namespace) ServeUDP(at netip.AddrPort) {
	n.t.Helper()
	var conn net.PacketConn
	n.must("listen", func() (err error) {
		conn, err = new(net.ListenConfig).ListenPacket(context.Background(), "udp", at.String())
		return err
	})
	n.t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			size, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			answer := at.String()
			if _, number, ok := strings.Cut(string(buf[:size]), " #"); ok {
				answer += " " + number
			}
			_, _ = conn.WriteTo([]byte(answer), from) // a client that went away misses it
		}
	}()
}

// ServeSCTP is ServeTCP for one-to-one sockets of SCTP. The test is skipped where the kernel has none.
func (n *Namespace) ServeSCTP(at netip.AddrPort) {
	n.t.Helper()
	family := unix.AF_INET6
	if at.Addr().Is4() {
		family = unix.AF_INET
	}
	s := n.SCTPSocket(family)
	defer s.Close()
	if err := errors.Join(s.Bind(at), unix.Listen(s.fd, unix.SOMAXCONN)); err != nil {
		n.t.Fatalf("listen at %s: %v", at, err)
	}
	fd, err := unix.Dup(s.fd)
	if err != nil {
		n.t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "sctp")
	defer file.Close()
	listener, err := net.FileListener(file) // for Go it is one of TCP
	if err != nil {
		n.t.Fatalf("listen at %s: %v", at, err)
	}
	n.t.Cleanup(func() { listener.Close() })
	go accept(listener)
}

// SCTPSocket makes a one-to-one socket of SCTP. The test is skipped where the kernel has none.
func (n *Namespace) SCTPSocket(family int) *Socket {
	n.t.Helper()
	s, err := n.TrySocket(family, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		n.t.Skip("the kernel has no sockets of SCTP: they need the module sctp")
	}
	if err != nil {
		n.t.Fatalf("make a socket: %v", err)
	}
	return s
}
