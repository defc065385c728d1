package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/beeline-lb/beeline/pkg/inspect"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/monitor"
)

// newWatch counts the new connections of the Service that somebody looks at.
type newWatch struct {
	command  *command
	interval time.Duration // from one reading to the next

	service model.Name // the zero value: nobody looks at one
	seen    *inspect.NewConnections
	stop    context.CancelFunc
	ended   chan struct{} // closed when nobody listens any more
	expiry  *time.Timer
}

// follow has a Service looked at until the next reading; the zero value ends that. It listens, or knows why
// not, when it returns. Where listening has ended it begins again.
func (w *newWatch) follow(ctx context.Context, service model.Name) {
	// As of who writes events to what nobody reads.
	kept := w.interval + cmp.Or(w.command.Stall, monitor.DefaultStall)
	if w.listens() && service == w.service && w.expiry.Stop() {
		w.expiry.Reset(kept)
		return
	}
	w.close()
	if service == (model.Name{}) {
		return
	}
	if service != w.service {
		w.service, w.seen = service, new(inspect.NewConnections)
	}
	o := inspect.NewConnectionEvents
	o.Service, o.Renewal = service, w.command.Renewal
	ctx, w.stop = context.WithCancel(ctx)
	w.expiry = time.AfterFunc(kept, w.stop)
	seen, begun, ended := w.seen, make(chan struct{}), make(chan struct{})
	w.ended = ended
	go func() {
		defer close(ended)
		w.command.countNew(ctx, o, seen, begun)
	}()
	select {
	case <-begun:
	case <-ended:
	}
}

// countNew closes begun when it listens, and counts until ctx ends.
func (c *command) countNew(ctx context.Context, o inspect.EventOptions, seen *inspect.NewConnections, begun chan<- struct{}) {
	err := c.listen(ctx, o, 0, func() error {
		seen.Begin(c.Now())
		close(begun)
		return nil
	}, func(e *inspect.Event) error {
		seen.Note(e)
		return nil
	})
	if err != nil {
		seen.End(err)
	}
}

// listens reports whether it does.
func (w *newWatch) listens() bool {
	if w.ended == nil {
		return false
	}
	select {
	case <-w.ended:
		return false
	default:
		return true
	}
}

// finish ends listening before the last reading is shown: what was left out since it was told of last is told at the end.
func (w *newWatch) finish() {
	if w.ended != nil {
		w.expiry.Stop()
		w.stop()
		<-w.ended
	}
}

// add fills in what was counted.
func (w *newWatch) add(top *inspect.Top) {
	if w.ended != nil {
		top.AddNew(w.seen)
	}
}

// close ends listening, and returns when it has ended.
func (w *newWatch) close() {
	w.finish()
	w.ended = nil
}

// newMissing says which new connections are not counted; "" where all are, or none is to be.
func newMissing(n *inspect.TopNew) (text string) {
	if n == nil {
		return ""
	}
	if n.NotHeard != "" {
		text = fmt.Sprintf("New connections are missing: %s.\n", n.NotHeard)
	}
	if n.LeftOut > 0 {
		text += fmt.Sprintf("NEW is a sample: %s left out.\n", inspect.Amount(int(n.LeftOut), "new connection"))
	}
	return text
}
