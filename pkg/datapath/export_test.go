package datapath

import (
	"context"
	"sync/atomic"

	"github.com/vishvananda/netlink"
)

// Reads is how often everything of a kind was read from the kernel.
type Reads struct{ Links, Addrs, Routes int64 }

// CountReads counts from now on; it returns what tells the counts.
func (d *Datapath) CountReads() func() Reads {
	var links, addrs, routes atomic.Int64
	l := d.watch.list
	d.watch.list = lists{
		func() ([]netlink.Link, error) { links.Add(1); return l.links() },
		func(of netlink.Link) ([]netlink.Addr, error) { addrs.Add(1); return l.addrs(of) },
		func(keep func(*netlink.Route) bool) ([]netlink.Route, error) { routes.Add(1); return l.routes(keep) },
	}
	return func() Reads { return Reads{links.Load(), addrs.Load(), routes.Load()} }
}

// SyncChanged serves the devices that have changed, and does what is due.
func (d *Datapath) SyncChanged(ctx context.Context) error { return d.sync(ctx, false, false) }

// Knows reports whether the kernel has told of a device.
func (d *Datapath) Knows(index int) bool {
	d.watch.mu.Lock()
	defer d.watch.mu.Unlock()
	return d.watch.links[index] != nil
}
