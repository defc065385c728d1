package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// attachPods makes programs run on devices that pods are behind: of pods whose packets
// are translated, and of backends that see this node for their client.
func (d *Datapath) attachPods(ds *deviceSync) {
	attach := func(l netlink.Link, role role, program func(*direction) string) {
		d.served(ds, l.Attrs().Index, l.Attrs().Name, role, devicemap.Device{}, func() error { return d.attachPod(l, program) })
	}
	for _, l := range ds.pods {
		attach(l, forPods, func(dir *direction) string { return dir.pod })
	}
	for _, l := range ds.masqueraded {
		attach(l, forBackends, func(dir *direction) string { return dir.masquerade })
	}
}

// attachPod makes programs run on the host's side of a pod's device.
func (d *Datapath) attachPod(l netlink.Link, program func(*direction) string) error {
	ifindex := l.Attrs().Index
	if !d.tcx {
		if _, err := addQdisc(ifindex); err != nil {
			return err
		}
	}
	for _, dir := range directions {
		if err := d.attachPodDirection(&dir, ifindex, program(&dir)); err != nil {
			return fmt.Errorf("%s: %w", dir.name, err)
		}
	}
	if d.swept {
		return nil
	}
	if d.tcx {
		return detachFilters(l, false)
	}
	return detachTCX(Dir(d.opts.BPFFS), func(at int) bool { return at != ifindex })
}

// attachPodDirection makes a program run in one direction.
func (d *Datapath) attachPodDirection(dir *direction, ifindex int, name string) error {
	program, err := d.deviceProgram(name)
	if err != nil {
		return err
	}
	if d.tcx {
		return dir.attachTCX(Dir(d.opts.BPFFS), ifindex, program)
	}
	return dir.attachFilter(ifindex, name, program)
}

// planMasquerade chooses the devices of backends that see the node for their client, and writes
// where packets to those come from. A former agent's address stays until [Datapath.EndMasquerade].
func (d *Datapath) planMasquerade(ds *deviceSync, n *network, nodeAddrs []netip.Addr) error {
	was4, was6, err := d.masquerade()
	if err != nil {
		return err
	}
	if !d.opts.MasqueradeAll && !was4.IsValid() && !was6.IsValid() {
		return nil
	}
	ds.masqueraded = n.masqueraded(ds.devices, ds.pods)
	sources := newSources(n, nodeAddrs, true) // a pod of this node answers any
	return d.writeMasquerade(sources.of(0, netip.Addr.Is4, was4), sources.of(0, netip.Addr.Is6, was6))
}

// EndMasquerade takes the programs off the devices of backends which a former agent, one with
// MasqueradeAll, has served, for none of its flows was left at a time. With MasqueradeAll, and as
// long as such flows could still begin at that time, it does nothing.
func (d *Datapath) EndMasquerade(ctx context.Context, noneLeft time.Time) error {
	if d.opts.MasqueradeAll {
		return nil
	}
	ended, err := d.endMasquerade(noneLeft)
	if err != nil || !ended {
		return err
	}
	return d.SyncDevices(ctx)
}

func (d *Datapath) endMasquerade(noneLeft time.Time) (ended bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.attached.IsZero() || noneLeft.Before(d.attached) {
		return false, nil
	}
	was4, was6, err := d.masquerade()
	if err != nil || !was4.IsValid() && !was6.IsValid() {
		return false, err
	}
	return true, d.writeMasquerade(netip.Addr{}, netip.Addr{})
}

// sweep removes, once, the filters that a former agent has left on devices that are
// not known; only their names tell.
func (d *Datapath) sweep(known func(ifindex int) bool) error {
	if d.swept {
		return nil
	}
	links, err := rtnl.Links()
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		if known(l.Attrs().Index) {
			continue
		}
		if err := detachFilters(l, false); err != nil && !gone(err) {
			errs = append(errs, err)
		}
	}
	d.swept = len(errs) == 0
	return errors.Join(errs...)
}
