package flow

import (
	"context"
	"time"

	"github.com/beeline-lb/beeline/pkg/pause"
)

// drainInterval passes between two walks while flows come to their end.
const drainInterval = 2 * time.Second

// Drain walks the table until every flow in it was idle too long, which a closed one
// is after a few seconds. To be called when no new ones begin. The error is that of
// reading or removing, or ctx's.
func (e *Expirer) Drain(ctx context.Context) error {
	for {
		w, err := e.walk(ctx)
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if e.Walked != nil {
			e.Walked(w)
		}
		if w.Flows == w.Expired {
			return nil
		}
		if !pause.For(ctx, drainInterval) {
			return context.Cause(ctx)
		}
	}
}
