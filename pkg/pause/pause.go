// Package pause lets time pass until a context ends, and measures the work that a pause is in proportion to.
package pause

import (
	"context"
	"time"
)

// For returns after d, or when ctx ends. It reports whether ctx goes on.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	return ctx.Err() == nil
}
