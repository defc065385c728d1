package kube

import (
	"context"
	"testing"
	"time"

	"github.com/beeline-lb/beeline/pkg/source"
	"github.com/beeline-lb/beeline/tests/wait"
)

// unsynced fails the test when it is told anything.
type unsynced struct{ t *testing.T }

func (u unsynced) Apply(source.Update) { u.t.Error("update without a server") }
func (u unsynced) Synced()             { u.t.Error("synced without a server") }

func TestRunEndsWhileTheServerIsAway(t *testing.T) {
	// Nothing serves the discard port of the loopback device.
	s, err := New(Options{Master: "http://127.0.0.1:9", NodeName: "n", Sink: unsynced{t}})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	time.Sleep(100 * time.Millisecond) // the reflectors have failed and back off
	cancel()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(wait.Limit):
		t.Fatal("Run goes on after its context is done")
	}
}
