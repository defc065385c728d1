// Package rtnl lists the kernel's devices, addresses and routes (rtnetlink(7)) whole, and
// follows them at a bounded pace.
package rtnl

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

const (
	// attempts is how often a list is asked for that changes while it is read.
	attempts = 10
	// firstPause is how long to wait before the second attempt; each pause is twice the
	// former one, half a second together.
	firstPause = time.Millisecond
)

// Complete calls list until nothing has changed while the kernel answered: such an answer
// may lack what was there all the time. The error wraps [netlink.ErrDumpInterrupted] when
// there was always a change.
func Complete[T any](list func() (T, error)) (T, error) {
	pause := firstPause
	for attempt := 1; ; attempt++ {
		all, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
		if attempt == attempts {
			var none T
			return none, fmt.Errorf("changed during each of %d attempts to read it: %w", attempts, err)
		}
		time.Sleep(pause)
		pause *= 2
	}
}

// Links returns the devices of the calling thread's network namespace.
func Links() ([]netlink.Link, error) {
	links, err := Complete(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	return links, nil
}

// Addrs returns the addresses of a device of the calling thread's network namespace, of all
// devices when it is nil.
func Addrs(device netlink.Link) ([]netlink.Addr, error) {
	addrs, err := Complete(func() ([]netlink.Addr, error) { return netlink.AddrList(device, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return addrs, nil
}

// Routes returns the routes of the calling thread's network namespace, of the main table,
// that keep is true for.
func Routes(keep func(*netlink.Route) bool) ([]netlink.Route, error) {
	routes, err := Complete(func() (routes []netlink.Route, err error) {
		// No list of all routes is made: there may be a million.
		err = netlink.RouteListFilteredIter(netlink.FAMILY_ALL, new(netlink.Route), 0, func(r netlink.Route) bool {
			if keep(&r) {
				routes = append(routes, r)
			}
			return true
		})
		return routes, err
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return routes, nil
}

// Filters returns the tc filters at a hook of a device.
func Filters(device netlink.Link, parent uint32) ([]netlink.Filter, error) {
	filters, err := Complete(func() ([]netlink.Filter, error) { return netlink.FilterList(device, parent) })
	if err != nil {
		return nil, fmt.Errorf("list filters of %s: %w", device.Attrs().Name, err)
	}
	return filters, nil
}
