package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/pkg/pause"
)

// eventTime is how long the agent waits for the event about its end to get out.
const eventTime = time.Second

// shutdownTime is how long requests that are being answered may take when the agent ends,
// and as long again once their connections are closed.
const shutdownTime = 2 * time.Second

// Listener is a server of pages about the agent.
type Listener struct {
	// Name is its name in messages.
	Name string
	// Address is IP and port; empty is off.
	Address string
	Handler http.Handler
	// HardFail says that the agent cannot do without: an address that cannot be
	// listened on is an error. Else it is tried again.
	HardFail bool
	// Reason is that of the event about a failure.
	Reason string
	Record event.Recorder

	shutdownTime time.Duration // 0 is the constant
	handlers     handlers
}

// Idle reports that no handler runs and none will. It is false after Run only where a
// handler did not return in time: what it reads must not be taken away.
func (l *Listener) Idle() bool { return l.handlers.idle() }

// Run serves until ctx ends, and then until requests that are being answered have been, a
// few seconds at most; see [Listener.Idle]. It returns an error only under HardFail.
func (l *Listener) Run(ctx context.Context) error {
	defer func() {
		if !l.handlers.end(l.limit()) {
			klog.InfoS("HTTP server ends before a request is answered", "server", l.Name)
		}
	}()
	if l.Address == "" {
		return nil
	}
	reported := ""
	for {
		err := l.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err.Error() != reported {
			reported = err.Error()
			klog.ErrorS(err, "HTTP server failed", "server", l.Name, "again", !l.HardFail)
			l.Record(event.Event{Type: event.Warning, Reason: l.Reason, Action: "Listen", Note: reported})
		}
		if l.HardFail {
			time.Sleep(eventTime)
			return err
		}
		if !pause.For(ctx, retry) {
			return nil
		}
	}
}

func (l *Listener) serve(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", l.Address)
	if err != nil {
		return fmt.Errorf("%s server: %w", l.Name, err)
	}
	server := NewHTTPServer(l.handlers.counted(l.Handler))
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.limit())
		defer cancel()
		if server.Shutdown(limit) != nil {
			_ = server.Close() // ends the contexts of requests
		}
	})
	err = server.Serve(listener)
	if !stop() {
		<-closed
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("%s server on %s: %w", l.Name, l.Address, err)
	}
	return nil
}

func (l *Listener) limit() time.Duration { return cmp.Or(l.shutdownTime, shutdownTime) }

// handlers are the calls of a handler that have not returned.
type handlers struct {
	mu      sync.Mutex
	running int
	ended   bool
	last    chan struct{} // closed when ended and none is running
}

// counted returns a handler that answers 503 once the handlers are ended.
func (h *handlers) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !h.begin() {
			http.Error(w, "the agent ends", http.StatusServiceUnavailable)
			return
		}
		defer h.done()
		next.ServeHTTP(w, r)
	})
}

func (h *handlers) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return false
	}
	h.running++
	return true
}

func (h *handlers) done() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
	if h.ended && h.running == 0 {
		close(h.last)
	}
}

// end lets no further call in, and reports whether those that run have returned within the
// limit.
func (h *handlers) end(limit time.Duration) bool {
	h.mu.Lock()
	h.ended, h.last = true, make(chan struct{})
	if h.running == 0 {
		close(h.last)
	}
	h.mu.Unlock()
	select {
	case <-h.last:
		return true
	case <-time.After(limit):
		return false
	}
}

func (h *handlers) idle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended && h.running == 0
}
