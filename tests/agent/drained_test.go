package agent_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/beeline-lb/beeline/pkg/health"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/termination"
)

// oneConn is a listener of one connection.
type oneConn chan net.Conn

func (l oneConn) Accept() (net.Conn, error) {
	conn, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}

// kubelets is a connection of a process on the node.
type kubelets struct{ net.Conn }

func (kubelets) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv6loopback, Port: 10256} }
func (kubelets) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv6loopback, Port: 1234} }

func (l oneConn) Close() error   { return nil }
func (l oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// TestDrainedAfterHours: the limits of the agent's servers for clients do not end a request that waits
// until an endpoint has no connections. The clock is [synctest]'s.
func TestDrainedAfterHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := model.Name{Namespace: "default", Name: "web"}
		leaving := netip.MustParseAddrPort("10.0.0.1:8080")
		var connections atomic.Int32
		connections.Store(1)
		ready := make(chan struct{})
		close(ready)
		w := termination.New(termination.Options{
			Ready: ready,
			Known: func(model.Name) bool { return true },
			Count: func([]netip.AddrPort) (map[netip.AddrPort]int, error) {
				return map[netip.AddrPort]int{leaving: int(connections.Load())}, nil
			},
		})
		w.Set(service, []netip.AddrPort{leaving})
		ctx, cancel := context.WithCancel(t.Context())
		go w.Run(ctx)
		defer cancel()
		mux := http.NewServeMux()
		mux.Handle("GET /wait-until-drained/{namespace}/{service}", w)
		server, l := health.NewHTTPServer(mux), make(oneConn, 1)
		go func() { _ = server.Serve(l) }()
		defer close(l)
		near, far := net.Pipe()
		l <- kubelets{far}

		var answer atomic.Pointer[string]
		go func() {
			_, _ = io.WriteString(near, "GET /wait-until-drained/default/web HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
			text, err := io.ReadAll(near)
			if err != nil {
				text = []byte(err.Error())
			}
			answer.Store(new(string(text)))
		}()
		time.Sleep(10 * time.Hour)
		synctest.Wait()
		if early := answer.Load(); early != nil {
			t.Fatalf("while there is a connection: %q", *early)
		}
		connections.Store(0)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := answer.Load(); got == nil || !strings.HasPrefix(*got, "HTTP/1.1 200 OK\r\n") {
			t.Errorf("without a connection: %v", got)
		}
	})
}
