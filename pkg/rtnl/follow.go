package rtnl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/pause"
)

const (
	// settle is how long changes are gathered: a device comes with its addresses and
	// routes.
	settle = 50 * time.Millisecond
	// minPause is the shortest time between the end of a call and the next one; maxPause
	// is the longest by which changes are held up.
	minPause, maxPause = 50 * time.Millisecond, 10 * time.Second
	// rest is how many times as long as it worked a call pauses: following takes a tenth
	// of a CPU at most, however fast things change.
	rest = 9
	// A subscription that breaks, as when the kernel had more to tell than its buffer
	// holds, is made again after a second, after longer if it breaks again at once.
	minRetry, maxRetry = time.Second, time.Minute
)

// Handlers get each change, and decide whether it is to be acted upon. They are
// called from several goroutines and must not wait: the kernel keeps only so many changes.
// What nil is for is not followed.
type Handlers struct {
	Link  func(*netlink.LinkUpdate) bool
	Addr  func(*netlink.AddrUpdate) bool
	Route func(*netlink.RouteUpdate) bool
}

// Follow calls act(true) at once and whenever changes may have been missed, act(false) soon
// after changes that are to be acted upon, and after a value from also, until ctx ends. It
// subscribes before the first call, so that no change falls between. act returns after what
// time it wants to be called in any case; 0 is never.
//
// It follows the network namespace of the calling thread.
func Follow(ctx context.Context, h Handlers, also <-chan struct{}, act func(all bool) time.Duration) {
	for retry := minRetry; ; retry = min(2*retry, maxRetry) {
		began := time.Now()
		err := follow(ctx, h, also, act)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > maxRetry {
			retry = minRetry
		}
		klog.InfoS("Changes of devices, addresses or routes may have been missed: listing all of them again", "in", retry, "err", err)
		if !pause.For(ctx, retry) {
			return
		}
	}
}

// follow returns when a subscription breaks.
func follow(ctx context.Context, h Handlers, also <-chan struct{}, act func(all bool) time.Duration) error {
	s, err := subscribe(ctx, h)
	defer s.close()
	if err != nil {
		return err
	}
	for all := true; ; all = s.missed.Swap(false) {
		start := time.Now()
		again := act(all)
		if !pause.For(ctx, min(max(minPause, rest*time.Since(start)), maxPause)) {
			return nil
		}
		var timer <-chan time.Time
		if again > 0 {
			timer = time.After(again)
		}
		select {
		case <-s.changes:
		case <-also:
		case <-timer:
		case err := <-s.broken:
			return err
		case <-ctx.Done():
			return nil
		}
		if !pause.For(ctx, settle) {
			return nil
		}
		select {
		case err := <-s.broken: // the last change was that
			return err
		default:
		}
		select {
		case <-s.changes:
		default:
		}
	}
}

// subscription is the subscriptions to all that is followed.
type subscription struct {
	stop    context.CancelFunc
	running sync.WaitGroup
	// changes has a value while there is something to act upon.
	changes chan struct{}
	// missed is set when a change could not be read.
	missed atomic.Bool
	broken chan error
}

func subscribe(ctx context.Context, h Handlers) (*subscription, error) {
	ctx, stop := context.WithCancel(ctx)
	s := &subscription{stop: stop, changes: make(chan struct{}, 1), broken: make(chan error, 1)}
	miss := func(err error) {
		if ctx.Err() == nil { // else its sockets are closed
			s.miss(err)
		}
	}
	if h.Link != nil {
		updates := make(chan netlink.LinkUpdate)
		if err := netlink.LinkSubscribeWithOptions(updates, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: miss}); err != nil {
			return s, fmt.Errorf("subscribe to changes of devices: %w", err)
		}
		forward(s, updates, h.Link)
	}
	if h.Addr != nil {
		updates := make(chan netlink.AddrUpdate)
		if err := netlink.AddrSubscribeWithOptions(updates, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: miss}); err != nil {
			return s, fmt.Errorf("subscribe to changes of addresses: %w", err)
		}
		forward(s, updates, h.Addr)
	}
	if h.Route != nil {
		updates := make(chan netlink.RouteUpdate)
		if err := netlink.RouteSubscribeWithOptions(updates, ctx.Done(), netlink.RouteSubscribeOptions{ErrorCallback: miss}); err != nil {
			return s, fmt.Errorf("subscribe to changes of routes: %w", err)
		}
		forward(s, updates, h.Route)
	}
	return s, nil
}

// close ends the subscriptions and waits until nobody reads them any more.
func (s *subscription) close() {
	s.stop()
	s.running.Wait()
}

func (s *subscription) change() {
	select {
	case s.changes <- struct{}{}:
	default:
	}
}

// miss notes a message that could not be read, and one that the kernel had no room for;
// after that, it closes the subscription.
func (s *subscription) miss(err error) {
	klog.V(4).InfoS("A change of a device, an address or a route could not be read", "err", err)
	s.missed.Store(true)
	s.change()
}

// forward hands updates on until the subscription ends.
func forward[T any](s *subscription, updates <-chan T, handle func(*T) bool) {
	s.running.Go(func() {
		for update := range updates {
			if handle(&update) {
				s.change()
			}
		}
		select {
		case s.broken <- errors.New("netlink messages were lost: the receive buffer was full"):
		default:
		}
	})
}
