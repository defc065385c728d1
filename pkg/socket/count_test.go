package socket

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"testing"

	"github.com/beeline-lb/beeline/tests/wait"
)

// TestConnections: connections count at the address at which they were accepted, those of IPv4 also where
// one socket listens for both families; not the listener, and none that both sides have closed. Whether few
// ports are asked for or many.
func TestConnections(t *testing.T) {
	needRoot(t)
	l, err := net.Listen("tcp", "[::]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	four, six := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), netip.AddrPortFrom(netip.IPv6Loopback(), port)
	none := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), port)
	network := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), port)
	elsewhere := netip.MustParseAddr("192.0.2.1")
	var others []netip.AddrPort
	for i := range uint16(8) {
		others = append(others, netip.AddrPortFrom(elsewhere, port^(i+1)))
	}
	want := func(n4, n6 int) {
		t.Helper()
		text := fmt.Sprint(map[netip.AddrPort]int{four: n4, six: n6, none: 0})
		wait.Until(t, text, func() bool {
			got, err := Connections([]netip.AddrPort{four, six, none})
			if err != nil {
				t.Fatal(err)
			}
			many, err := Connections(append(others, four, six, none))
			if err != nil {
				t.Fatal(err)
			}
			maps.DeleteFunc(many, func(a netip.AddrPort, _ int) bool { return a.Addr() == elsewhere })
			return fmt.Sprint(got) == text && fmt.Sprint(many) == text
		})
	}
	want(0, 0)
	connect := func(to netip.AddrPort) (client, server net.Conn) {
		t.Helper()
		client, err := net.Dial("tcp", to.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		if server, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Close() })
		return client, server
	}
	client4, server4 := connect(four)
	client6, server6 := connect(six)
	connect(four)
	want(2, 1)
	client4.Close()
	want(2, 1) // the server goes on to send
	server4.Close()
	want(1, 1)
	server6.Close()
	want(1, 0) // the client has it still
	client6.Close()
	want(1, 0)
	connect(network)
	if got, err := Connections([]netip.AddrPort{network}); err != nil || got[network] != 1 {
		t.Errorf("at an address of the loopback network there are %v, %v", got, err)
	}
}
