package rtnl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/netns"
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
	// After a loss everything is listed again after relistFirst, after longer if there is another
	// loss at once. An error of a new subscription makes for the same pauses.
	relistFirst, relistLast = time.Second, time.Minute
	// routeBuffer is how many bytes of changes of routes the kernel keeps, in place of some 200 KiB:
	// a routing daemon changes thousands at once. They take memory only while they wait.
	routeBuffer = 8 << 20
)

// Handlers get each change, and decide whether it is to be acted upon. They are
// called from several goroutines and must not wait: the kernel keeps only so many changes.
// What nil is for is not followed.
type Handlers struct {
	Link  func(*netlink.LinkUpdate) bool
	Addr  func(*netlink.AddrUpdate) bool
	Route func(*netlink.RouteUpdate) bool
	// Rules has each change of a rule of routing (ip-rule(8)) acted upon.
	Rules bool
}

// Follow calls act(true) at once and, ever less often, when changes have been missed, act(false) soon
// after changes that are to be acted upon, and after a value from also, until ctx ends. It
// subscribes before the first call, so that no change falls between. Devices, addresses, routes and
// rules are subscribed to by themselves, and again at once when the kernel had more to tell than it keeps:
// a burst of one kind holds up no other. act returns after what time it wants to be called in any
// case; 0 is never.
//
// It follows the network namespace of the calling thread.
func Follow(ctx context.Context, h Handlers, also <-chan struct{}, act func(all bool) time.Duration) {
	for retry := relistFirst; ; retry = min(2*retry, relistLast) {
		s, err := subscribe(ctx, h)
		if err == nil {
			s.follow(ctx, also, act)
		}
		s.close()
		if ctx.Err() != nil {
			return
		}
		klog.ErrorS(err, "Changes of devices, addresses or routes cannot be followed, trying again", "in", retry)
		if !pause.For(ctx, retry) {
			return
		}
	}
}

// follow acts upon changes until ctx ends.
func (s *subscription) follow(ctx context.Context, also <-chan struct{}, act func(all bool) time.Duration) {
	for all := true; ; {
		if all {
			take(s.missed) // what was missed before is about to be listed
		}
		start := time.Now()
		again := act(all)
		if !pause.For(ctx, min(max(minPause, rest*time.Since(start)), maxPause)) {
			return
		}
		if all = s.wait(ctx, also, again); !pause.For(ctx, settle) {
			return
		}
		take(s.changes)
	}
}

// wait returns when it is time to act, and whether upon everything, or when ctx ends.
func (s *subscription) wait(ctx context.Context, also <-chan struct{}, again time.Duration) (all bool) {
	var timer <-chan time.Time
	if again > 0 {
		timer = time.After(again)
	}
	for {
		select {
		case <-s.changes:
			return false
		case <-also:
			return false
		case <-timer:
			return false
		case <-s.relist:
			s.relist, s.listed = nil, time.Now()
			return true
		case <-s.missed:
			if s.relist == nil {
				s.relistLater()
			}
		case <-ctx.Done():
			return false
		}
	}
}

// relistLater has everything listed again, later than the last time if that was not long ago.
func (s *subscription) relistLater() {
	if s.pause = min(2*s.pause, relistLast); s.pause == 0 || time.Since(s.listed) > relistLast {
		s.pause = relistFirst
	}
	klog.InfoS("Changes of devices, addresses or routes may have been missed: listing all of them again", "in", s.pause)
	s.relist = time.After(s.pause)
}

// subscription is the subscriptions to all that is followed.
type subscription struct {
	ctx       context.Context
	stop      context.CancelFunc
	namespace *netns.Namespace
	running   sync.WaitGroup
	// changes has a value while there is something to act upon, missed while something was missed.
	changes, missed chan struct{}

	// Of follow only.
	relist <-chan time.Time // when everything is listed again; nil when it need not be
	pause  time.Duration    // before that, the last time
	listed time.Time        // when it was, for that reason
}

func subscribe(ctx context.Context, h Handlers) (*subscription, error) {
	ctx, stop := context.WithCancel(ctx)
	s := &subscription{ctx: ctx, stop: stop, changes: make(chan struct{}, 1), missed: make(chan struct{}, 1)}
	var err error
	if s.namespace, err = netns.Current(); err != nil {
		return s, err
	}
	var rule func(*struct{}) bool
	if h.Rules {
		rule = func(*struct{}) bool { return true }
	}
	return s, errors.Join(
		keep(s, "rules of routing", subscribeRules, rule),
		keep(s, "devices", func(updates chan netlink.LinkUpdate, done <-chan struct{}, missed func(error)) error {
			return netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{ErrorCallback: missed})
		}, h.Link),
		keep(s, "addresses", func(updates chan netlink.AddrUpdate, done <-chan struct{}, missed func(error)) error {
			return netlink.AddrSubscribeWithOptions(updates, done, netlink.AddrSubscribeOptions{ErrorCallback: missed})
		}, h.Addr),
		keep(s, "routes", func(updates chan netlink.RouteUpdate, done <-chan struct{}, missed func(error)) error {
			return netlink.RouteSubscribeWithOptions(updates, done, netlink.RouteSubscribeOptions{
				ErrorCallback: missed, ReceiveBufferSize: routeBuffer, ReceiveBufferForceSize: true,
			})
		}, h.Route),
	)
}

// subscribeRules is an [opener] of changes of rules of IPv4 and IPv6.
func subscribeRules(updates chan struct{}, done <-chan struct{}, missed func(error)) error {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return err
	}
	go func() {
		<-done
		s.Close()
	}()
	go func() {
		defer close(updates)
		for {
			if _, _, err := s.Receive(); err != nil {
				missed(err)
				return
			}
			updates <- struct{}{}
		}
	}()
	return nil
}

// close ends the subscriptions and waits until nobody reads them any more.
func (s *subscription) close() {
	s.stop()
	s.running.Wait()
	if s.namespace != nil {
		s.namespace.Close()
	}
}

// give puts a value into a channel of room 1, unless there is one; take takes it out.
func give(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func take(c <-chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// miss notes a message that could not be read, and one that the kernel had no room for.
func (s *subscription) miss(err error) {
	if s.ctx.Err() == nil { // else its sockets are closed
		klog.V(4).InfoS("A change of a device, an address or a route could not be read", "err", err)
		give(s.missed)
	}
}

// opener makes a socket whose messages come until done is closed, or until one could not be read.
type opener[T any] func(updates chan T, done <-chan struct{}, missed func(error)) error

// keep hands changes of a kind on until s ends, unless handle is nil. It returns when it has subscribed
// to them.
func keep[T any](s *subscription, kind string, open opener[T], handle func(*T) bool) error {
	if handle == nil {
		return nil
	}
	subscribe := func() (updates chan T, stop context.CancelFunc, err error) {
		updates = make(chan T)
		ctx, stop := context.WithCancel(s.ctx)
		if err := open(updates, ctx.Done(), s.miss); err != nil {
			stop()
			return nil, nil, fmt.Errorf("subscribe to changes of %s: %w", kind, err)
		}
		return updates, stop, nil
	}
	updates, stop, err := subscribe()
	if err != nil {
		return err
	}
	s.running.Go(func() {
		for {
			for update := range updates {
				if handle(&update) {
					give(s.changes)
				}
			}
			stop()
			for retry := settle; ; retry = min(2*retry, relistLast) {
				if !pause.For(s.ctx, retry) {
					return
				}
				err := s.namespace.Run(func() (err error) {
					updates, stop, err = subscribe()
					return err
				})
				if err == nil {
					break
				}
				klog.ErrorS(err, "Changes are not followed, trying again", "of", kind)
			}
			give(s.missed)
		}
	})
	return nil
}
