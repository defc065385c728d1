package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/event"
)

// eventTime is how long the agent waits for the event about its end to get out.
const eventTime = time.Second

// Listener is a server of pages about the agent.
type Listener struct {
	// Name is what messages call it.
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
}

// Run serves until ctx ends. It returns an error only under HardFail.
func (l *Listener) Run(ctx context.Context) error {
	if l.Address == "" {
		return nil
	}
	told := ""
	for {
		err := l.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err.Error() != told {
			told = err.Error()
			klog.ErrorS(err, "HTTP server failed", "server", l.Name, "again", !l.HardFail)
			l.Record(event.Event{Type: event.Warning, Reason: l.Reason, Action: "Listen", Note: told})
		}
		if l.HardFail {
			time.Sleep(eventTime)
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry):
		}
	}
}

func (l *Listener) serve(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", l.Address)
	if err != nil {
		return fmt.Errorf("%s server: %w", l.Name, err)
	}
	server := &http.Server{Handler: l.Handler, ReadHeaderTimeout: readHeaderTimeout}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("%s server on %s: %w", l.Name, l.Address, err)
	}
	return nil
}
