package datapath

import (
	"fmt"
	"net/netip"

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
		if err := d.attachPodDirection(&dir, ifindex, program(&dir)); err != nil {
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

// attachPodDirection makes a program run in one direction, or none without a name.
func (d *Datapath) attachPodDirection(dir *direction, ifindex int, name string) error {
	if name == "" {
		return dir.detach(Dir(d.opts.BPFFS), ifindex)
	}
	program, err := d.deviceProgram(name)
	if err != nil {
		return err
	}
	if d.tcx {
		return dir.attachTCX(Dir(d.opts.BPFFS), ifindex, program)
	}
	return dir.attachFilter(ifindex, name, program)
}

// setMasquerade writes where packets to backends on this node come from.
func (d *Datapath) setMasquerade(n *network) error {
	was4, was6, err := d.deviceMap.Masquerade()
	if err != nil {
		return err
	}
	nodeAddrs := *d.nodeAddrs.Load()
	return d.deviceMap.SetMasquerade(n.source(0, netip.Addr.Is4, was4, nodeAddrs), n.source(0, netip.Addr.Is6, was6, nodeAddrs))
}

// sweep removes, once, the filters that a former agent has left on devices that are
// not served; only their names tell.
func (d *Datapath) sweep(served map[int]bool) error {
	if d.swept {
		return nil
	}
	links, err := rtnl.Links()
	if err != nil {
		return err
	}
	for _, l := range links {
		if served[l.Attrs().Index] {
			continue
		}
		if _, err := detachFilters(l, false); err != nil && !gone(err) {
			return err
		}
	}
	d.swept = true
	return nil
}
