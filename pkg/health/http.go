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
	// writeTimeout is how long an answer may take from the request's header on, with all that is
	// read for it. Handlers that wait move the deadline (http.ResponseController).
	writeTimeout = time.Minute
	// idleTimeout is how long a connection may wait for its next request. Load balancers
	// and Prometheus ask more often.
	idleTimeout = 90 * time.Second
	// maxHeader is the size of a request's header, in bytes.
	maxHeader = 8 << 10
	// headerSlop is how much more than it is told net/http reads.
	headerSlop = 4 << 10
)

// NewHTTPServer returns a server of pages, with limits for its clients.
func NewHTTPServer(h http.Handler) *http.Server {
	return newHTTPServer(h, &conns{most: maxConns})
}

// newHTTPServer is [NewHTTPServer] with a limit of connections that servers may share.
func newHTTPServer(h http.Handler, limit *conns) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader - headerSlop,
		ConnState:         limit.note,
	}
}
