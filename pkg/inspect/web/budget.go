package web

import (
	"context"
	"sync"
	"time"

	"github.com/beeline-lb/beeline/pkg/pause"
)

// Answers take one part in share of one CPU at most, each of them minCost, for what the HTTP server does:
// who asks in a loop takes no more of the agent's CPU time.
const (
	share   = 10
	minCost = time.Millisecond
	period  = time.Second
)

// budget is the CPU time for answers. The zero value is a full one.
type budget struct {
	mu      sync.Mutex
	left    time.Duration // less than 0: more than there was is spent
	renewed time.Time
}

// take takes minCost for an answer. Who asks when the budget is used up waits for its renewal. It reports
// whether ctx goes on.
func (b *budget) take(ctx context.Context) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.renew(); b.left <= 0; b.renew() {
		wait := time.Until(b.renewed.Add(period))
		b.mu.Unlock()
		goesOn := pause.For(ctx, wait)
		b.mu.Lock()
		if !goesOn {
			return false
		}
	}
	b.left -= minCost
	return true
}

// renew adds what the time since the last renewal is worth, once a period; b.mu is held.
func (b *budget) renew() {
	now := time.Now()
	since := now.Sub(b.renewed)
	if since < period {
		return
	}
	b.renewed = now
	b.left = min(b.left+since/share, period/share)
}

// spend takes what an answer has cost beside minCost.
func (b *budget) spend(cost time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left -= cost
}
