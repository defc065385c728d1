package health

import (
	"net/http"
	"time"
)

// Limits for clients of the agent's servers: anybody who reaches the node reaches
// healthCheckNodePorts.
const (
	// readTimeout is how long a client may take to ask, from the first byte of a request.
	readTimeout = 10 * time.Second
	// idleTimeout is how long a connection may wait for its next request. Load balancers
	// and Prometheus ask more often.
	idleTimeout = 90 * time.Second
	// maxHeader is the size of a request's header, in bytes; net/http reads 4 KiB more.
	maxHeader = 4 << 10
)

// NewHTTPServer returns a server of pages, with limits for its clients. Answers have no time limit of
// their own: a CPU profile takes as long as it is asked to.
func NewHTTPServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
	}
}
