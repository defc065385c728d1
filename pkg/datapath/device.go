package datapath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/model"
	"github.com/beeline-lb/beeline/pkg/rtnl"
	"github.com/beeline-lb/beeline/pkg/setting"
)

// SyncDevices attaches the programs for packets to the devices that face clients
// or other nodes, and detaches them from those that no longer do, whatever was known of
// them. Before [Datapath.Attach] it does nothing. A device that cannot be attached to keeps
// no other from being served; the error names all of them, and [Datapath.FollowDevices]
// tries them again.
func (d *Datapath) SyncDevices(ctx context.Context) error {
	err := d.sync(ctx, true, true)
	if err != nil {
		d.lookAgain()
	}
	return err
}

// FollowDevices does so when devices, addresses, routes or what is set here change, until ctx
// ends. What fails is logged, shown by [Datapath.DeviceCounts] and tried again, ever less
// often. It may run before [Datapath.Attach].
func (d *Datapath) FollowDevices(ctx context.Context) {
	checked := time.Now()
	err := d.netns.Run(func() error {
		rtnl.Follow(ctx, d.handlers(), d.again, func(all bool) time.Duration {
			if all = all || time.Since(checked) >= checkPeriod; all {
				checked = time.Now()
			}
			if err := d.sync(ctx, all, false); err != nil {
				klog.V(4).InfoS("Devices are not all served", "err", err)
			}
			return min(d.nextTry(), checkPeriod-time.Since(checked))
		})
		return nil
	})
	if err != nil {
		klog.ErrorS(err, "Devices are not followed")
	}
}

// syncNoted serves the devices that have been noted or touched. What fails is told of by the sync
// itself, and tried again by [Datapath.FollowDevices].
func (d *Datapath) syncNoted(ctx context.Context) {
	if err := d.sync(ctx, false, false); err != nil {
		d.lookAgain()
	}
}

// sync serves the devices that have changed, or all of them. now tries those again, too,
// whose time has not come. It logs what fails; the error is what of it has failed in this sync.
func (d *Datapath) sync(ctx context.Context, all, now bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.attached.IsZero() {
		return nil
	}
	if s := d.state[0]; s != nil && s.due() {
		all = true // some steps are taken only then
	}
	ds := &deviceSync{now: now}
	err := d.netns.Run(func() error { return d.syncDevices(ctx, ds, all) })
	return errors.Join(err, d.logFaults(err, ds.changes.all))
}

// lookAgain has [Datapath.FollowDevices] look after the devices.
func (d *Datapath) lookAgain() {
	select {
	case d.again <- struct{}{}:
	default:
	}
}

// SetNodeAddrs replaces the node's own IPs; the next [Datapath.SyncDevices] heeds
// them, and [Datapath.FollowDevices] soon. It does not wait. Without any, they are not known: those of the
// options and those that devices have been chosen for hold.
func (d *Datapath) SetNodeAddrs(addrs []netip.Addr) {
	d.nodeAddrs.Store(&addrs)
	d.lookAgain()
}

// knowsNode reports whether all of the node's own IPs are known.
func (d *Datapath) knowsNode() bool {
	told := d.nodeAddrs.Load()
	return d.opts.WithoutNode || told != nil && len(*told) > 0
}

// knownNodeAddrs returns the node's own IPs, as far as they are known: of a family of which none has been
// given, those that devices have been chosen for, until any are told; without a Node object none are.
func (d *Datapath) knownNodeAddrs(former []devicemap.Device) []netip.Addr {
	if told := d.nodeAddrs.Load(); told != nil && len(*told) > 0 {
		return *told
	}
	if d.opts.WithoutNode {
		return d.opts.NodeAddrs
	}
	var chosen []netip.Addr
	for i := range former {
		if addr := former[i].NodeIP(); addr.IsValid() {
			chosen = append(chosen, addr)
		}
	}
	return model.PreferAddrs(d.opts.NodeAddrs, chosen)
}

func (d *Datapath) syncDevices(ctx context.Context, ds *deviceSync, all bool) error {
	pods, err := d.writePods()
	if err != nil {
		return err
	}
	former, err := d.deviceMap.List()
	if err != nil {
		return err
	}
	nodeAddrs := d.knownNodeAddrs(former)
	ds.former, ds.changes.all = former, true
	n := &network{}
	if d.servesPackets() {
		if n, ds.changes, err = d.watch.look(all); err != nil {
			return err
		}
		n.generic = d.opts.XDP == XDPGeneric
		ds.devices, ds.unknown = d.plan(n, former, nodeAddrs, d.ownPods(pods))
		ds.pods = n.pods(d.opts.PodDevices, ds.devices)
	}
	if err := errors.Join(d.planNAT(ds, n), d.planSandboxes(ds, n)); err != nil {
		return err
	}
	if d.servesPackets() {
		if err := d.planMasquerade(ds, n, nodeAddrs); err != nil {
			return err
		}
	}
	places := xdpPlaces(n, ds.devices)
	d.watch.choose(places)
	ds.clients = slices.ContainsFunc(former, func(f devicemap.Device) bool { return f.Ifindex != 0 && !ds.serves(f.Ifindex) })
	// Before an ID may get another device.
	errs := []error{d.writeFrames(n.frames(ds.devices)), d.keepReplaced(ds, n)}
	d.attachPods(ds)
	for i := range ds.devices {
		device := &ds.devices[i]
		d.served(ds, device.Ifindex, device.Name, forClients, clientKey(*device), func() error { return d.attachDevice(device) })
	}
	for _, c := range ds.unknown {
		a := c.link.Attrs()
		d.served(ds, a.Index, a.Name, forClients, devicemap.Device{}, func() error { return d.refuse(c) })
	}
	if ds.changes.all || ds.clients || d.xdp != nil && touches(ds.changes.links, places) {
		d.syncXDP(ctx, n, ds)
	}
	errs = append(errs, ds.xdp, d.keepReplaced(ds, n), d.writeNAT(), d.detachOthers(ds), d.deviceMap.ForgetRoutes())
	return errors.Join(errs...)
}

// xdpPlaces returns the devices that clients are behind and those where XDP serves such, or
// would.
func xdpPlaces(n *network, devices []devicemap.Device) map[int]bool {
	places := make(map[int]bool)
	for i := range devices {
		places[devices[i].Ifindex], places[devices[i].Root] = true, true
	}
	for _, l := range n.links {
		if a := l.Attrs(); a.MasterIndex != 0 && places[a.MasterIndex] || l.Type() == "vlan" && places[a.ParentIndex] {
			places[a.Index] = true
		}
	}
	return places
}

func touches(changed, places map[int]bool) bool {
	for index := range changed {
		if places[index] {
			return true
		}
	}
	return false
}

// servesPackets reports whether programs are attached to devices at all.
func (d *Datapath) servesPackets() bool {
	return len(d.opts.Devices) > 0 && !slices.Equal(d.opts.Devices, []string{DevicesNone})
}

// plan returns the devices to be served, with the IDs and addresses that they have
// where they were served before, and those that cannot be, for their frames are not known.
func (d *Datapath) plan(n *network, former []devicemap.Device, nodeAddrs []netip.Addr, ownPods []netip.Prefix) (devices []devicemap.Device, unknown []chosen) {
	choice := &choice{
		patterns: d.opts.Devices, nodeAddrs: nodeAddrs, nodePorts: d.opts.NodePorts,
		podRanges: d.opts.ClusterCIDRs, ownPods: ownPods, forPods: d.forPods,
	}
	allPods := n.leadsToAllPods(choice.podRanges)
	list, unknown := n.choose(choice)
	for _, c := range list {
		device := devicemap.Device{
			Name:       c.link.Attrs().Name,
			Ifindex:    c.link.Attrs().Index,
			Reason:     c.reason,
			NoEthernet: noEthernet(c.link),
			Internal:   d.opts.Internal.by(c.link.Attrs().Name),
			AllPods:    allPods[c.link.Attrs().Index],
			MTU:        c.link.Attrs().MTU,
		}
		if b, err := n.base(c.link); err == nil {
			device.Root, device.Tags = b.link.Attrs().Index, b.tags
		}
		devices = append(devices, device)
	}
	devices, without := withinRoom(devices)
	assignIDs(devices, former)
	devices = append(devices, without...)
	sources := newSources(n, nodeAddrs, !d.knowsNode())
	for i := range devices {
		was := &devicemap.Device{}
		if at := slices.IndexFunc(former, func(f devicemap.Device) bool { return f.ID == devices[i].ID }); at >= 0 {
			was = &former[at]
		}
		if was.Ifindex == devices[i].Ifindex {
			devices[i].OwnQdisc, devices[i].NoXDP = was.OwnQdisc, was.NoXDP
			devices[i].XDPSend, devices[i].XDPSendBuffers = was.XDPSend, was.XDPSendBuffers
		}
		devices[i].Addr4 = sources.of(devices[i].Ifindex, netip.Addr.Is4, was.Addr4)
		devices[i].Addr6 = sources.of(devices[i].Ifindex, netip.Addr.Is6, was.Addr6)
		// Programs remember the ID of a device that they have met.
		if id := freeID(devices, former); id != 0 && len(d.state) == 0 && was.Ifindex == devices[i].Ifindex &&
			(n.leaves(was.Addr4, devices[i].Addr4) || n.leaves(was.Addr6, devices[i].Addr6)) {
			devices[i].ID = id
		}
	}
	return devices, unknown
}

// forPods reports whether what is configured says that pods are behind a device of that name.
func (d *Datapath) forPods(name string) bool {
	return d.opts.Internal.by(name) || matching(d.opts.PodDevices, name) != ""
}

// withinRoom returns the devices that may have an ID, and those that may not: of the devices that
// are chosen for their address alone, as of hundreds of VLANs, so many get one that overlays
// and other nodes' devices which come later find one, too; and of overlays so many, as where there is one to each
// node, that default routes and node IPs do.
func withinRoom(devices []devicemap.Device) (within, without []devicemap.Device) {
	addressed, overlays := 0, 0
	for i := range devices {
		d := &devices[i]
		if d.Addressed() {
			addressed++
		}
		if d.Overlay() {
			overlays++
		}
		if d.Addressed() && addressed > devicemap.MaxAddressed || d.Overlay() && overlays > devicemap.MaxOverlays {
			without = append(without, *d)
		} else {
			within = append(within, *d)
		}
	}
	return within, without
}

// leaves reports whether an address that the machine has is left for another one.
func (n *network) leaves(was, now netip.Addr) bool {
	_, held := n.held[was]
	return held && was != now
}

// assignIDs gives each device the ID that it or one of its name had, else one that
// no device had, else that of a device which is gone, or is replaced. An ID of 0 is left when
// there are none.
func assignIDs(devices, former []devicemap.Device) {
	taken := make(map[uint32]bool)
	take := func(like func(device, former *devicemap.Device) bool) {
		for i := range devices {
			for j := range former {
				if devices[i].ID == 0 && !taken[former[j].ID] && like(&devices[i], &former[j]) {
					devices[i].ID = former[j].ID
					taken[former[j].ID] = true
				}
			}
		}
	}
	take(func(device, former *devicemap.Device) bool {
		return device.Ifindex == former.Ifindex && !former.Replaced()
	})
	take(func(device, former *devicemap.Device) bool { return device.Name == former.Name && !former.Replaced() })
	for _, many := range []bool{false, true} {
		for i := range devices {
			if d := &devices[i]; d.ID == 0 && many == (d.Addressed() || d.Overlay()) {
				d.ID = freeID(devices, former)
			}
		}
	}
	take(func(_, former *devicemap.Device) bool { return former.Ifindex == 0 })
	take(func(_, former *devicemap.Device) bool { return former.Replaced() })
}

// freeID returns an ID that no device has or had; 0 is none.
func freeID(devices, former []devicemap.Device) uint32 {
	var used [devicemap.MaxDevices + 1]bool
	for _, list := range [][]devicemap.Device{devices, former} {
		for i := range list {
			used[list[i].ID] = true
		}
	}
	used[0] = true
	return uint32(max(0, slices.Index(used[:], false)))
}

// keepReplaced has flows go on from an address that their device was left without: see
// [devicemap.Device.Replaced]. To be called before programs run that have not met the device yet.
func (d *Datapath) keepReplaced(ds *deviceSync, n *network) error {
	var errs []error
	for _, was := range ds.former {
		at := slices.IndexFunc(ds.devices, func(v devicemap.Device) bool { return v.Ifindex == was.Ifindex && v.ID != 0 && v.ID != was.ID })
		if at < 0 {
			continue
		}
		if !n.leaves(was.Addr4, netip.Addr{}) && !n.leaves(was.Addr6, netip.Addr{}) {
			errs = append(errs, d.deviceMap.Delete(was))
			continue
		}
		errs = append(errs, d.deviceMap.Replace(was, ds.devices[at]))
		if !was.Replaced() {
			errs = append(errs, d.deviceMap.Put(ds.devices[at]))
		}
	}
	return errors.Join(errs...)
}

// attachDevice writes the device's entry and makes the programs run on it.
func (d *Datapath) attachDevice(device *devicemap.Device) error {
	if d.tcx {
		return d.attachLinks(device)
	}
	made, err := addQdisc(device.Ifindex)
	if err != nil {
		return err
	}
	device.OwnQdisc = device.OwnQdisc || made
	if err := d.deviceMap.Put(*device); err != nil {
		return err
	}
	for _, dir := range directions {
		name := dir.programFor(device.NoEthernet)
		program, err := d.deviceProgram(name)
		if err != nil {
			return err
		}
		if err := dir.attachFilter(device.Ifindex, name, program); err != nil {
			return fmt.Errorf("add the %s filter: %w", dir.name, err)
		}
	}
	return detachTCX(Dir(d.opts.BPFFS), func(ifindex int) bool { return ifindex != device.Ifindex })
}

// attachLinks is attachDevice for tcx links. Filters of a former agent are
// removed.
func (d *Datapath) attachLinks(device *devicemap.Device) error {
	if err := d.deviceMap.Put(*device); err != nil {
		return err
	}
	for _, dir := range directions {
		program, err := d.deviceProgram(dir.programFor(device.NoEthernet))
		if err != nil {
			return err
		}
		if err := dir.attachTCX(Dir(d.opts.BPFFS), device.Ifindex, program); err != nil {
			return fmt.Errorf("%s link: %w", dir.name, err)
		}
	}
	l, err := netlink.LinkByIndex(device.Ifindex)
	if err != nil {
		return err
	}
	if err := detachFilters(l, device.OwnQdisc); err != nil || !device.OwnQdisc {
		return err
	}
	device.OwnQdisc = false
	return d.deviceMap.Put(*device)
}

// detachOthers takes the programs off the devices that are not served any more.
func (d *Datapath) detachOthers(ds *deviceSync) error {
	served := ds.served()
	for ifindex, s := range d.state {
		if ifindex == 0 || served[ifindex] || !ds.now && !s.due() {
			continue
		}
		if err := d.detach(ifindex); err != nil {
			d.failed(ifindex, s.name, s.role, err)
		}
	}
	var errs []error
	if ds.changes.all {
		known := func(ifindex int) bool { return served[ifindex] || d.state[ifindex] != nil }
		errs = append(errs, detachTCX(Dir(d.opts.BPFFS), known), d.sweep(known))
	}
	for _, f := range ds.former {
		if f.Ifindex == 0 || served[f.Ifindex] && ds.serves(f.Ifindex) {
			continue
		}
		if !served[f.Ifindex] {
			if d.state[f.Ifindex] != nil {
				continue // its programs are still there
			}
			if err := d.removeFilters(f.Ifindex, f.OwnQdisc); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		reassigned := slices.ContainsFunc(ds.devices, func(v devicemap.Device) bool { return v.ID == f.ID })
		if !reassigned {
			errs = append(errs, d.deviceMap.Delete(f))
		}
	}
	return errors.Join(errs...)
}

// refuse is the fault of a device whose frames are not known. A former agent may have served it.
func (d *Datapath) refuse(c chosen) error {
	a := c.link.Attrs()
	fault := setting.Errorf("devices", "its frames, of type %s, are not known: packets are served at Ethernet devices and those without a link header; choose others", a.EncapType)
	return errors.Join(fault, d.takeOff(a.Index))
}

// detach takes the programs off a device, which may be gone, and then forgets what has been done
// about it.
func (d *Datapath) detach(ifindex int) error {
	if err := d.takeOff(ifindex); err != nil {
		return err
	}
	delete(d.state, ifindex)
	return nil
}

// takeOff takes the programs off a device, which may be gone.
func (d *Datapath) takeOff(ifindex int) error {
	var errs []error
	for _, dir := range directions {
		if err := removeLink(dir.pin(Dir(d.opts.BPFFS), ifindex)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(append(errs, d.removeFilters(ifindex, false))...); err != nil {
		return fmt.Errorf("take the programs off: %w", err)
	}
	return nil
}

// removeFilters removes our filters from a device, should it be there.
func (d *Datapath) removeFilters(ifindex int, ownQdisc bool) error {
	l, err := netlink.LinkByIndex(ifindex)
	if err == nil {
		err = detachFilters(l, ownQdisc)
	}
	if err != nil && !gone(err) {
		return fmt.Errorf("remove filters of device %d: %w", ifindex, err)
	}
	return nil
}

// Device is a device that packets are served on.
type Device struct {
	devicemap.Device
	// Mode is how the programs are attached; "" when one is not.
	Mode TCMode
	// XDP is [XDPNative], [XDPGeneric], or [XDPOff] where no XDP program of ours is
	// attached.
	XDP XDPMode
	// XDPBeside names the other programs that a dispatcher runs.
	XDPBeside []string
}

// Devices returns the devices that packets are served on, as the maps and the
// calling thread's network namespace tell.
func Devices(bpffs string, maps *bpfmap.Maps) ([]Device, error) {
	written, err := devicemap.New(maps).Present()
	if err != nil {
		return nil, err
	}
	var list []Device
	for _, w := range written {
		mode, err := attachedBy(Dir(bpffs), w.Ifindex)
		if err != nil {
			return nil, fmt.Errorf("look at device %s: %w", w.Name, err)
		}
		xdp, err := xdpMode(Dir(bpffs), w.Root)
		if err != nil {
			return nil, fmt.Errorf("look at device %s: %w", w.Name, err)
		}
		device := Device{Device: w, Mode: mode, XDP: xdp}
		if xdp == XDPOff && w.Root != 0 {
			var before, after []string
			if device.XDP, before, after, err = dispatcherMode(context.Background(), bpffs, w.Root); err != nil {
				return nil, fmt.Errorf("look at device %s: %w", w.Name, err)
			}
			if device.XDP != XDPOff {
				device.XDPBeside = append(before, after...)
			}
		}
		list = append(list, device)
	}
	return list, nil
}
