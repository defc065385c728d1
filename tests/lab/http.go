package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"

	"github.com/beeline-lb/beeline/tests/wait"
)

// HTTPClient returns a client in the namespace, which connects anew for each request.
func (n *Namespace) HTTPClient() *http.Client {
	return &http.Client{Timeout: wait.Limit, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
			err = n.Run(func() (err error) {
				conn, err = new(net.Dialer).DialContext(ctx, network, addr)
				return err
			})
			return conn, err
		},
	}}
}

// ServeHTTP answers HTTP requests at an address. It ends with the test.
func (n *Namespace) ServeHTTP(at netip.AddrPort, handler http.Handler) {
	n.t.Helper()
	var listener net.Listener
	n.must("listen", func() (err error) {
		listener, err = new(net.ListenConfig).Listen(context.Background(), "tcp", at.String())
		return err
	})
	server := &http.Server{Handler: handler}
	go func() { _ = server.Serve(listener) }() // ends with Close
	n.t.Cleanup(func() { server.Close() })
}

// Get returns a page. The error says what other status than 200 it came with.
func (n *Namespace) Get(url string) (string, error) {
	response, err := n.HTTPClient().Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, response.Status)
	}
	return string(text), err
}
