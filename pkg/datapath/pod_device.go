package datapath

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// attachPods makes programs run on devices that pods are behind: of pods whose packets
// are translated, and of backends that see this node for their client.
func (d *Datapath) attachPods(pods, masqueraded []netlink.Link) []error {
	var errs []error
	attach := func(l netlink.Link, program func(*direction) string) {
		if err := d.attachPod(l, program); err != nil && !gone(err) {
			errs = append(errs, explain(fmt.Errorf("attach to pod device %s: %w", l.Attrs().Name, err)))
		}
	}
	for _, l := range pods {
		attach(l, func(dir *direction) string { return dir.pod })
	}
	for _, l := range masqueraded {
		attach(l, func(dir *direction) string { return dir.masquerade })
	}
	return errs
}

// attachPod makes programs run on the host's side of a pod's device, none in a
// direction for which there is no name.
func (d *Datapath) attachPod(l netlink.Link, program func(*direction) string) error {
	ifindex := l.Attrs().Index
	if !d.tcx {
		if _, err := addQdisc(ifindex); err != nil {
			return err
		}
	}
	for _, dir := range directions {
		name := program(&dir)
		var err error
		switch {
		case name == "" && d.swept:
		case name == "":
			err = dir.detach(Dir(d.opts.BPFFS), ifindex)
		case d.tcx:
			err = dir.attachTCX(Dir(d.opts.BPFFS), ifindex, d.programs[name])
		default:
			err = dir.attachFilter(ifindex, name, d.programs[name])
		}
		if err != nil {
			return fmt.Errorf("%s: %w", dir.name, err)
		}
	}
	if d.swept {
		return nil
	}
	if d.tcx {
		_, err := detachFilters(l, false)
		return err
	}
	return detachTCX(Dir(d.opts.BPFFS), func(at int) bool { return at != ifindex })
}

// setMasquerade writes where packets to backends on this node come from.
func (d *Datapath) setMasquerade(n *network) error {
	was4, was6, err := d.maps.Masquerade()
	if err != nil {
		return err
	}
	nodeAddrs := *d.nodeAddrs.Load()
	return d.maps.SetMasquerade(n.source(0, netip.Addr.Is4, was4, nodeAddrs), n.source(0, netip.Addr.Is6, was6, nodeAddrs))
}

// sweep removes, once, the filters that a former agent has left on devices that are
// not served; only their names tell.
func (d *Datapath) sweep(served func(ifindex int) bool) error {
	if d.swept {
		return nil
	}
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list devices: %w", err)
	}
	for _, l := range links {
		if served(l.Attrs().Index) {
			continue
		}
		if _, err := detachFilters(l, false); err != nil && !gone(err) {
			return err
		}
	}
	d.swept = true
	return nil
}
