// Package host follows the addresses of the machine that the agent runs on.
package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// retry is how long to wait after the subscription broke.
const retry = time.Second

// Addresses returns the unicast addresses of all devices in the network
// namespace of the calling thread, sorted; IPv6 link-local ones, which mean
// nothing without their device, are left out.
func Addresses() ([]netip.Addr, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list local addresses: %w", err)
	}
	addrs := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		addr, ok := netip.AddrFromSlice(a.IP)
		if !ok || a.Flags&unix.IFA_F_TENTATIVE != 0 {
			continue
		}
		addr = addr.Unmap()
		if addr.IsMulticast() || addr.Is6() && addr.IsLinkLocalUnicast() {
			continue
		}
		addrs = append(addrs, addr)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
}

// Watch calls changed with the local addresses, at once and after every change,
// until ctx ends.
func Watch(ctx context.Context, changed func([]netip.Addr)) {
	for ctx.Err() == nil {
		if err := watch(ctx, changed); err != nil {
			klog.ErrorS(err, "Following local addresses failed, starting again", "in", retry)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

// watch returns when the subscription ends. It subscribes before it lists, so
// that no change falls between.
func watch(ctx context.Context, changed func([]netip.Addr)) error {
	updates := make(chan netlink.AddrUpdate, 64)
	failed := make(chan error, 1)
	err := netlink.AddrSubscribeWithOptions(updates, ctx.Done(), netlink.AddrSubscribeOptions{
		ErrorCallback: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
	})
	if err != nil {
		return fmt.Errorf("subscribe to address changes: %w", err)
	}
	var last []netip.Addr
	for {
		addrs, err := Addresses()
		if err != nil {
			return err
		}
		if last == nil || !slices.Equal(addrs, last) {
			changed(addrs)
			last = addrs
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case _, ok := <-updates:
			if !ok {
				return errors.New("subscription to address changes ended")
			}
		}
	}
}
