package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"
)

// settle is how long changes are gathered: a device comes with its addresses and
// routes.
const settle = 50 * time.Millisecond

// FollowDevices calls changed at once, and soon after each change of a device, an
// address or a route in the network namespace of the calling thread and after each
// value from also, until ctx ends. When changed fails it is called again.
func FollowDevices(ctx context.Context, also <-chan struct{}, changed func() error) {
	for ctx.Err() == nil {
		if err := followDevices(ctx, also, changed); err != nil {
			klog.ErrorS(err, "Following devices failed, starting again", "in", retry)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

// followDevices returns when a subscription ends or changed fails. It subscribes
// before the first call, so that no change falls between.
func followDevices(ctx context.Context, also <-chan struct{}, changed func() error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	changes, err := subscribe(ctx, stop)
	if err != nil {
		return err
	}
	for {
		if err := changed(); err != nil {
			return err
		}
		select {
		case <-changes:
		case <-also:
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
				return cause
			}
			return nil
		}
		select {
		case <-time.After(settle):
		case <-ctx.Done():
		}
		select {
		case <-changes:
		default:
		}
	}
}

// subscribe returns a channel that has a value while there are changes which have
// not been seen. A subscription that breaks calls failed.
func subscribe(ctx context.Context, failed func(error)) (<-chan struct{}, error) {
	changes := make(chan struct{}, 1)
	links := make(chan netlink.LinkUpdate)
	if err := netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{ErrorCallback: failed}); err != nil {
		return nil, fmt.Errorf("subscribe to changes of devices: %w", err)
	}
	go forward(links, changes, failed)
	addrs := make(chan netlink.AddrUpdate)
	if err := netlink.AddrSubscribeWithOptions(addrs, ctx.Done(), netlink.AddrSubscribeOptions{ErrorCallback: failed}); err != nil {
		return nil, fmt.Errorf("subscribe to changes of addresses: %w", err)
	}
	go forward(addrs, changes, failed)
	routes := make(chan netlink.RouteUpdate)
	if err := netlink.RouteSubscribeWithOptions(routes, ctx.Done(), netlink.RouteSubscribeOptions{ErrorCallback: failed}); err != nil {
		return nil, fmt.Errorf("subscribe to changes of routes: %w", err)
	}
	go forward(routes, changes, failed)
	return changes, nil
}

// forward notes in to that there was a value, until from is closed.
func forward[T any](from <-chan T, to chan<- struct{}, ended func(error)) {
	for range from {
		select {
		case to <- struct{}{}:
		default:
		}
	}
	ended(errors.New("a subscription ended"))
}
