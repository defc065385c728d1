package health

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/beeline-lb/beeline/pkg/model"
)

// pipes is a listener whose connections are in memory, so that their deadlines are of
// [synctest]'s clock.
type pipes struct{ conns chan net.Conn }

func (p *pipes) Accept() (net.Conn, error) {
	conn, ok := <-p.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p *pipes) Close() error   { return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// ends returns after how long the server closes the connection.
func ends(conn net.Conn) time.Duration {
	begin := time.Now()
	_, _ = io.Copy(io.Discard, conn)
	return time.Since(begin)
}

// TestClientsAreBounded: a client that says nothing, one byte now and then, or nothing more
// is let go, and a long header is rejected.
func TestClientsAreBounded(t *testing.T) {
	const request = "GET / HTTP/1.1\r\nHost: node\r\n"
	for name, limit := range map[string]struct {
		client func(t *testing.T, conn net.Conn)
		most   time.Duration
	}{
		"silent":     {func(*testing.T, net.Conn) {}, 15 * time.Second},
		"unfinished": {func(_ *testing.T, conn net.Conn) { _, _ = io.WriteString(conn, request) }, 15 * time.Second},
		"slow body": {func(_ *testing.T, conn net.Conn) {
			_, _ = io.WriteString(conn, request+"Content-Length: 1000\r\n\r\n")
			go func() {
				for {
					if _, err := conn.Write([]byte{'x'}); err != nil {
						return
					}
					time.Sleep(5 * time.Second)
				}
			}()
		}, 30 * time.Second},
		"idle": {func(t *testing.T, conn net.Conn) {
			_, _ = io.WriteString(conn, request+"\r\n")
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(response.Body); err != nil {
				t.Fatal(err)
			}
		}, 2 * time.Minute},
		"reads nothing": {func(_ *testing.T, conn net.Conn) {
			for {
				if _, err := io.WriteString(conn, request+"\r\n"); err != nil {
					return
				}
			}
		}, 0},
		"long header": {func(t *testing.T, conn net.Conn) {
			go func() { _, _ = io.WriteString(conn, request+"X: "+strings.Repeat("x", 8<<10)+"\r\n\r\n") }()
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
				t.Errorf("a header of more than 8 KiB is answered with %s", response.Status)
			}
		}, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				services := NewServices(ServicesOptions{Healthy: func() bool { return true }})
				server := services.newServer(checkName{service: model.Name{Namespace: "shop", Name: "cart"}}, 30000)
				l := &pipes{make(chan net.Conn)}
				served := make(chan error)
				go func() { served <- server.http.Serve(l) }()
				near, far := net.Pipe()
				l.conns <- far
				begin := time.Now()
				limit.client(t, near)
				if took := time.Since(begin); took > 2*time.Minute {
					t.Errorf("the connection ends after %s", took)
				}
				if took := ends(near); took > limit.most {
					t.Errorf("the connection ends after %s", took)
				}
				near.Close()
				time.Sleep(time.Minute) // until the client has noticed
				close(l.conns)
				if err := <-served; !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
			})
		})
	}
}
