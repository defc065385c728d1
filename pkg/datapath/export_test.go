package datapath

import (
	"context"
	"sync/atomic"
	"time"

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

// MendPrograms looks at programs and pins once.
func (d *Datapath) MendPrograms(ctx context.Context) (found int, err error) {
	return d.mendPrograms(ctx)
}

// FillNAT notes as many network namespaces without a device as there is room for.
func (d *Datapath) FillNAT() {
	d.nat = make(map[uint64][]int)
	for cookie := uint64(1 << 32); d.noteNAT(cookie, nil); cookie++ {
	}
	d.natFull = false
}

// SearchNAT looks for network namespaces, and returns how often all of them were gone through.
func (d *Datapath) SearchNAT(cookies ...uint64) (searches int, err error) {
	each := d.eachNetns
	defer func() { d.eachNetns = each }()
	d.eachNetns = func(func() error) error { searches++; return nil }
	wanted := make(map[uint64]bool)
	for _, c := range cookies {
		wanted[c] = true
	}
	_, err = d.addNAT(wanted)
	return searches, err
}

// Knows reports whether the kernel has told of a device.
func (d *Datapath) Knows(index int) bool {
	d.watch.mu.Lock()
	defer d.watch.mu.Unlock()
	return d.watch.links[index] != nil
}

// Moves returns how often filters are moved that are found out of their place at each look.
func Moves(during time.Duration) (moves int) {
	s, start := &deviceState{}, time.Now()
	for at := time.Duration(0); at < during; at += attachedPeriod {
		if s.mayMove(start.Add(at)) {
			moves++
		}
	}
	return moves
}
