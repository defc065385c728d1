package lab

import (
	"context"
	"fmt"
	"io"
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
