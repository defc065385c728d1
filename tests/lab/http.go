package lab

import (
	"context"
	"net"
	"net/http"

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
