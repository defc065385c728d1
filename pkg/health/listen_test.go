package health

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/event"
	"github.com/beeline-lb/beeline/tests/wait"
)

// startListener runs a listener and asks it once. It returns when the handler has been
// called.
func startListener(t *testing.T, l *Listener, called <-chan struct{}) (stop context.CancelFunc, ended, answered <-chan error) {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Name, l.Address, l.Record = "test", free.Addr().String(), event.Discard
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	end, answer := make(chan error, 1), make(chan error, 1)
	go func() { end <- l.Run(ctx) }()
	go func() {
		for {
			response, err := http.Get("http://" + l.Address)
			if err != nil && ctx.Err() == nil {
				time.Sleep(10 * time.Millisecond) // it does not listen yet
				continue
			}
			if err == nil {
				_, err = io.ReadAll(response.Body)
				response.Body.Close()
			}
			answer <- err
			return
		}
	}()
	select {
	case <-called:
	case <-time.After(wait.Limit):
		t.Fatal("the handler is not called")
	}
	return cancel, end, answer
}

// TestRunWaitsForHandlers: what a handler reads is there until it has answered.
func TestRunWaitsForHandlers(t *testing.T) {
	called := make(chan struct{})
	var finished atomic.Bool
	ctx, cancel := context.WithCancel(t.Context())
	l := &Listener{
		shutdownTime: time.Minute,
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			close(called)
			<-ctx.Done()
			time.Sleep(200 * time.Millisecond)
			finished.Store(true)
		}),
	}
	stop, ended, answered := startListener(t, l, called)
	stop()
	cancel()
	if err := <-ended; err != nil || !finished.Load() || !l.Idle() {
		t.Errorf("Run returned %v, the handler had finished: %v, idle: %v", err, finished.Load(), l.Idle())
	}
	if err := <-answered; err != nil {
		t.Errorf("the client got no answer: %v", err)
	}
}

// TestHandlerThatHangsKeepsNobody: a handler that hangs does not keep the agent from ending, and is
// logged.
func TestHandlerThatHangsKeepsNobody(t *testing.T) {
	called, release := make(chan struct{}), make(chan struct{})
	l := &Listener{
		shutdownTime: 50 * time.Millisecond,
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			close(called)
			<-release
		}),
	}
	stop, ended, answered := startListener(t, l, called)
	stop()
	if err := <-ended; err != nil || l.Idle() {
		t.Errorf("Run returned %v, idle: %v, want false", err, l.Idle())
	}
	close(release)
	if err := <-answered; err == nil {
		t.Error("the client of a handler that hangs got an answer")
	}
}
