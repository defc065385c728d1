package packets_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
)

// backendPort is the port of every server.
const backendPort = 8080

// greeting is what a server says first: its name and who it talks to.
type greeting struct {
	name   string
	client netip.AddrPort
}

// String returns the greeting as it is sent.
func (g greeting) String() string { return g.name + " " + g.client.String() }

func parseGreeting(text string) (greeting, error) {
	name, client, _ := strings.Cut(text, " ")
	addr, err := netip.ParseAddrPort(client)
	return greeting{name, addr}, err
}

// serve starts a TCP and a UDP server at each address. The TCP server greets and
// then sends back what it gets; the UDP server answers each datagram with the
// greeting, a space and the datagram.
func serve(t *testing.T, n *lab.Namespace, name string, at addrs) {
	t.Helper()
	serveAt(t, n, name, at, backendPort)
}

// serveAt is serve at another port. An address that is not valid is left out.
func serveAt(t *testing.T, n *lab.Namespace, name string, at addrs, port uint16) {
	t.Helper()
	for _, addr := range at {
		if !addr.IsValid() {
			continue
		}
		where := netip.AddrPortFrom(addr, port).String()
		var listener net.Listener
		var conn net.PacketConn
		err := n.Run(func() (err error) {
			config := net.ListenConfig{KeepAlive: -1} // nothing is sent that no test has asked for
			if listener, err = config.Listen(context.Background(), "tcp", where); err != nil {
				return err
			}
			conn, err = config.ListenPacket(context.Background(), "udp", where)
			return err
		})
		if err != nil {
			t.Fatalf("serve %s at %s: %v", name, where, err)
		}
		t.Cleanup(func() { listener.Close(); conn.Close() })
		go serveTCP(listener, name)
		go serveUDP(conn, name)
	}
}

func serveTCP(listener net.Listener, name string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			client := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
			if _, err := fmt.Fprint(conn, greeting{name, client}); err != nil {
				return
			}
			_, _ = io.Copy(conn, conn) // ends with the client
		}()
	}
}

func serveUDP(conn net.PacketConn, name string) {
	buf := make([]byte, 65536)
	for {
		size, from, err := conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // a client that went away
		}
		client := from.(*net.UDPAddr).AddrPort()
		answer := fmt.Sprintf("%s %s", greeting{name, client}, buf[:size])
		_, _ = conn.WriteTo([]byte(answer), from) // a client that went away misses it
	}
}

// serveAll starts the servers of both nodes, named by node and place.
func (c *cluster) serveAll(t *testing.T) {
	t.Helper()
	for _, n := range c.nodes {
		serve(t, n.routed, n.name()+"/routed", n.routedAddrs())
		serve(t, n.bridged, n.name()+"/bridged", n.bridgedAddrs())
		serve(t, n.Namespace, n.name()+"/host", nodeAddrs(n.index))
	}
}
