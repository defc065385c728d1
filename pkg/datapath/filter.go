package datapath

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// filterPriority is that of our filters of a clsact qdisc where no program of others is before
// them: before those that were added without a priority.
const filterPriority = 8

// filterHandles are those of our filters. The second is for a filter that has to be before one of
// the same priority: the kernel begins with the one that was added last.
var filterHandles = [...]uint32{0xbee, 0xbef}

// filterPlace is where a filter is among those of a hook.
type filterPlace struct {
	priority uint16
	handle   uint32
}

// place returns where our filter belongs among the filters of the hook, which are in the order in
// which the kernel runs them. That is before the programs of others that decide about all packets:
// most let the kernel go on without asking the filters behind them (TC_ACT_OK), and have priority 1,
// as those of Cilium. Other kinds of filters decide about packets that somebody has chosen, so they
// may stay before ours. The kernel has filters of one kind and protocol at a priority: where others are of
// another one, ours are before them.
func (d direction) place(filters []netlink.Filter) filterPlace {
	priority := uint16(filterPriority)
	for _, f := range filters {
		if !d.owns(f) && decides(f) {
			priority = min(priority, f.Attrs().Priority)
		}
	}
	for priority > 1 && slices.ContainsFunc(filters, func(f netlink.Filter) bool {
		return f.Attrs().Priority == priority && !d.owns(f) && !sharesPriority(f)
	}) {
		priority--
	}
	handle, before := filterHandles[0], false
	for _, f := range filters {
		switch a := f.Attrs(); {
		case a.Priority != priority:
		case !d.owns(f):
			before = true
		case !before:
			return filterPlace{priority, a.Handle}
		case a.Handle == handle:
			handle = filterHandles[1]
		}
	}
	return filterPlace{priority, handle}
}

// sharesPriority reports whether ours may have the same priority as a filter.
func sharesPriority(f netlink.Filter) bool {
	_, bpf := f.(*netlink.BpfFilter)
	return bpf && f.Attrs().Protocol == unix.ETH_P_ALL
}

// decides reports whether a filter is a program that decides about all packets.
func decides(f netlink.Filter) bool {
	bpf, ok := f.(*netlink.BpfFilter)
	return ok && bpf.DirectAction && bpf.Protocol == unix.ETH_P_ALL && (bpf.Chain == nil || *bpf.Chain == 0)
}

// owns reports whether a filter is ours.
func (d direction) owns(f netlink.Filter) bool {
	bpf, ok := f.(*netlink.BpfFilter)
	return ok && slices.Contains(filterHandles[:], bpf.Handle) &&
		(bpf.Name == d.programFor(false) || bpf.Name == d.programFor(true) || bpf.Name == d.pod || bpf.Name == d.masquerade)
}

// isAt reports whether a filter is at a place.
func isAt(f netlink.Filter, at filterPlace) bool {
	return f.Attrs().Priority == at.priority && f.Attrs().Handle == at.handle
}

// filters returns the device and the filters at its hook.
func (d direction) filters(ifindex int) (netlink.Link, []netlink.Filter, error) {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return nil, nil, err
	}
	filters, err := rtnl.Filters(l, d.parent)
	return l, filters, err
}

func (d direction) filter(ifindex int, at filterPlace) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: ifindex,
			Parent:    d.parent,
			Handle:    at.handle,
			Protocol:  unix.ETH_P_ALL,
			Priority:  at.priority,
		},
		DirectAction: true,
	}
}

// attachFilter makes program run at the hook, in place of the one of a former agent at once. Where
// ours has to be elsewhere, both run for a moment: what the first has translated passes the second.
func (d direction) attachFilter(ifindex int, name string, program *ebpf.Program) error {
	l, filters, err := d.filters(ifindex)
	if err != nil {
		return err
	}
	at := d.place(filters)
	f := d.filter(ifindex, at)
	f.Name, f.Fd = name, program.FD()
	if err := netlink.FilterReplace(f); err != nil {
		return err
	}
	for _, f := range filters {
		if d.owns(f) && !isAt(f, at) {
			if err := d.remove(l, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove removes a filter of ours.
func (d direction) remove(l netlink.Link, f netlink.Filter) error {
	at := filterPlace{f.Attrs().Priority, f.Attrs().Handle}
	if err := netlink.FilterDel(d.filter(l.Attrs().Index, at)); err != nil {
		return fmt.Errorf("remove the %s filter of %s: %w", d.name, l.Attrs().Name, err)
	}
	return nil
}

// hasFilter reports whether a device has our filter, and whether that is where it belongs.
func (d direction) hasFilter(ifindex int) (has, inPlace bool, err error) {
	_, filters, err := d.filters(ifindex)
	at := d.place(filters)
	for _, f := range filters {
		if d.owns(f) {
			has, inPlace = true, inPlace || isAt(f, at)
		}
	}
	return has, inPlace, err
}
