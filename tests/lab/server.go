package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
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
	var listener net.Listener
	n.must("listen", func() (err error) {
		listener, err = new(net.ListenConfig).Listen(context.Background(), "tcp", at.String())
		return err
	})
	n.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answer(conn)
		}
	}()
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
