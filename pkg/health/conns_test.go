package health

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// client is the server's end of a connection.
type client struct {
	net.Conn
	name          string
	remote, local *net.TCPAddr
	closed        *[]string
}

func (c *client) RemoteAddr() net.Addr { return c.remote }
func (c *client) LocalAddr() net.Addr  { return c.local }
func (c *client) Close() error {
	*c.closed = append(*c.closed, c.name)
	return nil
}

// TestConnectionsAreBounded: the oldest connection of the client with the most on a port gives way;
// those of this node do for others of this node alone.
func TestConnectionsAreBounded(t *testing.T) {
	const server = "192.0.2.9"
	for name, tt := range map[string]struct {
		clients string // connections in order: an address and the port
		closed  string // by their places
	}{
		"as many as may be":           {"192.0.2.1:80 192.0.2.1:80 192.0.2.1:80 192.0.2.1:80", ""},
		"all of one client":           {"192.0.2.1:80 192.0.2.1:80 192.0.2.1:80 192.0.2.1:80 192.0.2.1:80 192.0.2.1:80", "0 1"},
		"the most is another's":       {"192.0.2.2:80 192.0.2.1:80 192.0.2.1:80 192.0.2.1:80 192.0.2.3:80", "1"},
		"its own is the most":         {"192.0.2.2:80 192.0.2.1:80 192.0.2.1:80 192.0.2.3:80 192.0.2.1:80", "1"},
		"as many of each":             {"192.0.2.1:80 192.0.2.2:80 192.0.2.3:80 192.0.2.4:80 192.0.2.5:80", "0"},
		"one network of IPv6":         {"192.0.2.1:80 192.0.2.2:80 [2001:db8::1]:80 [2001:db8::2]:80 [2001:db8:0:1::1]:80", "2"},
		"a client of many ports":      {"192.0.2.1:80 192.0.2.1:81 192.0.2.1:82 192.0.2.2:80 192.0.2.2:80", "3"},
		"this node has the most":      {"127.0.0.1:80 127.0.0.1:80 192.0.2.9:80 192.0.2.1:80 127.0.0.1:80", "3"},
		"this node beside a stranger": {"127.0.0.1:80 127.0.0.1:80 127.0.0.1:80 127.0.0.1:80 192.0.2.1:80", "4"},
		"all are of this node":        {"192.0.2.9:80 127.0.0.1:80 127.0.0.1:80 192.0.2.9:80 127.0.0.1:80", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			var closed []string
			var all []net.Conn
			limit := &conns{most: 4}
			for i, text := range strings.Fields(tt.clients) {
				remote, err := net.ResolveTCPAddr("tcp", text)
				if err != nil {
					t.Fatal(err)
				}
				c := &client{name: fmt.Sprint(i), remote: remote, local: &net.TCPAddr{IP: net.ParseIP(server), Port: remote.Port}, closed: &closed}
				all = append(all, c)
				limit.note(c, http.StateNew)
			}
			if got := strings.Join(closed, " "); got != tt.closed {
				t.Errorf("closed are %q, want %q", got, tt.closed)
			}
			for _, c := range slices.Backward(all) {
				limit.note(c, http.StateActive)
				limit.note(c, http.StateIdle)
				limit.note(c, http.StateClosed)
			}
			if len(limit.open) > 0 {
				t.Errorf("%d connections are held after all have ended", len(limit.open))
			}
		})
	}
}

// TestConnectionsGiveWay: a server with as many connections as it may have, all silent, answers the
// next client.
func TestConnectionsGiveWay(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := newHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }), &conns{most: 3})
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	var silent []net.Conn
	for range 3 {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
	}
	response, err := http.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if _, err := silent[0].Read(make([]byte, 1)); err == nil {
		t.Error("the oldest connection is answered")
	}
}
