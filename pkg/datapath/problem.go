package datapath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// Problem is a program that does not run where it should, or a device that is not served.
type Problem struct {
	// Kind is one word: "link-removed", "link-detached" or "link-program" of a program in the
	// cgroup, "device-" and the same of one at a device, "xdp-detached", "foreign-before", "foreign-below",
	// "nested", "device-unserved", "device-failed", "device-entry", "nat-unserved", "pod-range", "cgroup-gone".
	Kind string
	Text string
}

// inspection collects problems.
type inspection struct {
	*Datapath
	dir   string
	known []netip.Prefix // ranges of pods, as the maps have them
	list  []Problem
}

func (i *inspection) add(kind, format string, args ...any) {
	i.list = append(i.list, Problem{kind, fmt.Sprintf(format, args...)})
}

// Problems returns what is wrong with the programs that an agent with these options has attached,
// and with its choice of devices, by the calling thread's network namespace. It changes nothing.
func Problems(bpffs string, tables *bpfmap.Maps, opts Options) ([]Problem, error) {
	d := &Datapath{opts: opts, maps: tables, deviceMap: devicemap.New(tables), pods: pods{own: opts.OwnPods, nodes: opts.PodsOfNodes}}
	d.watch = newWatch(d.relevantRoute)
	ranges, err := d.deviceMap.LocalCIDRs() // those that the agent knows
	i := &inspection{Datapath: d, dir: Dir(bpffs), known: ranges}
	if err == nil {
		i.rangesOfPods()
	}
	err = errors.Join(err, i.hooks(), i.devices())
	return i.list, err
}

// rangesOfPods looks at the ranges of pods, if all are known.
func (i *inspection) rangesOfPods() {
	ranges, all := i.podRanges()
	if want := devicemap.Covering(i.maps, ranges); all && !slices.Equal(want, i.known) {
		i.add("pod-range", "the programs take %v for the ranges of pods, want %v", i.known, want)
	}
}

// hooks looks at the programs in the cgroup.
func (i *inspection) hooks() error {
	folder, err := os.Open(i.opts.Cgroup)
	if err != nil {
		i.add("cgroup-gone", "the cgroup whose sockets are to be served cannot be opened: %v", err)
		return nil
	}
	defer folder.Close()
	id, err := cgroupID(i.opts.Cgroup)
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range i.opts.hooks() {
		errs = append(errs, i.hook(h, int(folder.Fd()), id))
	}
	return errors.Join(errs...)
}

func (i *inspection) hook(h hook, cgroup int, id uint64) error {
	l, err := h.describe(i.dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		i.add("link-removed", "the link of %s at %s is not pinned any more", h.program, h.at)
		return nil
	case err != nil:
		return fmt.Errorf("link of %s: %w", h.program, err)
	case l.Cgroup == 0:
		i.add("link-detached", "the link of %s at %s has been detached", h.program, h.at)
		return nil
	case l.Cgroup != id:
		i.add("link-detached", "the link of %s at %s is one to cgroup id %d, want %d (%s)", h.program, h.at, l.Cgroup, id, i.opts.Cgroup)
		return nil
	}
	if name := programName(l.ProgramID); name != shortName(h.program) {
		i.add("link-program", "the link of %s at %s runs the program %s (id %d)", h.program, h.at, name, l.ProgramID)
	}
	attached, err := link.QueryPrograms(link.QueryOptions{Target: cgroup, Attach: h.at})
	if err != nil {
		return fmt.Errorf("list the programs at %s: %w", h.at, err)
	}
	i.before(attached.Programs, l.ProgramID, fmt.Sprintf("at %s of cgroup %s", h.at, i.opts.Cgroup))
	return nil
}

// shortName returns the name of a program as the kernel cuts it.
func shortName(name string) string { return name[:min(len(name), 15)] }

// before names the programs that run before one of ours.
func (i *inspection) before(attached []link.AttachedProgram, own uint32, place string) {
	for _, p := range attached {
		if uint32(p.ID) == own {
			return
		}
		i.add("foreign-before", "program %s (id %d) runs before Beeline's %s", programName(uint32(p.ID)), p.ID, place)
	}
}

// devices looks at the devices, as a sync would choose them.
func (i *inspection) devices() error {
	former, err := i.deviceMap.List()
	if err != nil {
		return err
	}
	if err := errors.Join(i.faults(), i.natFaults(), i.loadSandboxes()); err != nil || !i.servesPackets() {
		return err
	}
	n, _, err := i.watch.look(true)
	if err != nil {
		return err
	}
	n.generic = i.opts.XDP == XDPGeneric
	chosen, _ := i.plan(n, former, i.knownNodeAddrs(former), i.ownPods(i.known))
	errs := []error{i.frames(n, chosen)}
	for at := range chosen {
		errs = append(errs, i.device(&chosen[at], former))
	}
	ds := &deviceSync{devices: chosen, pods: n.pods(i.opts.PodDevices, chosen)}
	for _, ifindexes := range i.nat {
		ds.addPods(n.at(ifindexes))
	}
	for ifindex := range i.sandboxes {
		ds.addPods(n.at([]int{ifindex}))
	}
	for _, l := range ds.pods {
		errs = append(errs, i.podDevice(l, func(d *direction) string { return d.pod }))
	}
	if i.opts.MasqueradeAll {
		for _, l := range n.masqueraded(chosen, ds.pods) {
			errs = append(errs, i.podDevice(l, func(d *direction) string { return d.masquerade }))
		}
	}
	return errors.Join(errs...)
}

// faults tells of the devices that the agent could not attach to.
func (i *inspection) faults() error {
	faults, err := i.deviceMap.Faults()
	for _, f := range faults {
		name := f.Name
		if name == "" {
			name = "all devices"
		}
		i.add("device-failed", "%s (for %s) cannot be served: %s", name, f.Role, f.Error)
	}
	return err
}

// device looks at a device that clients are behind. was are those that the maps have.
func (i *inspection) device(device *devicemap.Device, was []devicemap.Device) error {
	at := slices.IndexFunc(was, func(f devicemap.Device) bool { return f.Ifindex == device.Ifindex && !f.Replaced() })
	if at < 0 {
		i.add("device-unserved", "device %s is to be served (%s) and is not", device.Name, device.Reason)
		return nil
	}
	written := was[at]
	i.entry(device, &written)
	serves, err := i.deviceMap.Serves(device.Ifindex)
	if err != nil {
		return err
	}
	if !serves {
		i.add("device-entry", "device %s is not looked up by its index, %d", device.Name, device.Ifindex)
	}
	var errs []error
	for _, dir := range directions {
		errs = append(errs, i.direction(dir, device.Ifindex, device.Name, dir.programFor(device.NoEthernet)))
	}
	return errors.Join(append(errs, i.xdpAt(&written))...)
}

// frames looks at what XDP knows the frames by that are for a device.
func (i *inspection) frames(n *network, devices []devicemap.Device) error {
	frames, err := i.deviceMap.Frames()
	if err == nil && !maps.Equal(frames, n.frames(devices)) {
		i.add("device-entry", "XDP takes other frames of VLANs and bonds for those of the devices than they have")
	}
	macs, errMACs := i.deviceMap.MACs()
	want := make(map[int]devicemap.MAC)
	for at := range devices {
		if d := &devices[at]; d.ID != 0 && i.opts.XDP != "" && i.opts.XDP != XDPOff && d.NoXDP == "" {
			want[d.Ifindex] = n.mac(d.Ifindex)
		}
	}
	if errMACs == nil && !maps.Equal(macs, want) {
		i.add("device-entry", "XDP knows the MAC addresses %x of devices by their indexes, want %x", macs, want)
	}
	return errors.Join(err, errMACs)
}

// entry compares a device's entry with the device.
func (i *inspection) entry(want, have *devicemap.Device) {
	if !sameEntry(want, have) {
		i.add("device-entry", "device %s is described as MTU %d, addresses %s and %s, sent by device %d; want MTU %d, %s and %s, device %d",
			want.Name, have.MTU, have.Addr4, have.Addr6, have.Root, want.MTU, want.Addr4, want.Addr6, want.Root)
	}
}

// podDevice looks at a device that pods are behind.
func (i *inspection) podDevice(l netlink.Link, program func(*direction) string) error {
	var errs []error
	for _, dir := range directions {
		errs = append(errs, i.direction(dir, l.Attrs().Index, l.Attrs().Name, program(&dir)))
	}
	return errors.Join(errs...)
}

// direction looks at the program in one direction of a device.
func (i *inspection) direction(dir direction, ifindex int, name, program string) error {
	info, err := pinnedInfo(dir.pin(i.dir, ifindex))
	if err != nil {
		return err
	}
	if info == nil {
		return i.filter(dir, ifindex, name)
	}
	if tcx := info.TCX(); tcx == nil || int(tcx.Ifindex) != ifindex {
		i.add("device-link-detached", "the %s link of device %s has been detached", dir.name, name)
		return nil
	}
	if runs := programName(uint32(info.Program)); runs != shortName(program) {
		i.add("device-link-program", "the %s link of device %s runs the program %s, want %s", dir.name, name, runs, program)
	}
	attached, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: dir.at})
	if err != nil {
		return fmt.Errorf("list the programs at %s of %s: %w", dir.name, name, err)
	}
	i.before(attached.Programs, uint32(info.Program), fmt.Sprintf("at tc %s of device %s", dir.name, name))
	return nil
}

// filter looks at the filter in one direction of a device that has no link.
func (i *inspection) filter(dir direction, ifindex int, name string) error {
	l, err := netlink.LinkByIndex(ifindex)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	filters, err := rtnl.Filters(l, dir.parent)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(filters, dir.owns) {
		i.add("device-link-removed", "no program of Beeline is at tc %s of device %s any more", dir.name, name)
		return nil
	}
	place := fmt.Sprintf("at tc %s of device %s", dir.name, name)
	// A kernel before Linux 6.6 has no tcx, which is an error.
	if attached, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: dir.at}); err == nil {
		i.before(attached.Programs, 0, place)
	}
	for _, f := range filters {
		if dir.owns(f) {
			break
		}
		i.add("foreign-before", "filter of priority %d (%s) runs before Beeline's %s", f.Attrs().Priority, f.Type(), place)
	}
	return nil
}

// xdpAt looks at the XDP program that serves a device.
func (i *inspection) xdpAt(device *devicemap.Device) error {
	if device.Root == 0 {
		return nil
	}
	mode, err := xdpMode(i.dir, device.Root)
	if err != nil && !gone(err) {
		return err
	}
	if mode != XDPOff {
		return nil
	}
	mode, before, _, err := dispatcherMode(context.Background(), i.opts.BPFFS, device.Root)
	if err != nil {
		return err
	}
	for _, name := range before {
		i.add("foreign-before", "XDP program %s runs before Beeline's at device %s, by libxdp's dispatcher", name, device.Name)
	}
	if mode != XDPOff {
		return nil
	}
	if i.opts.XDP != "" && i.opts.XDP != XDPOff && device.NoXDP == "" {
		i.add("xdp-detached", "the XDP program of device %s has been detached", device.Name)
	}
	l, err := netlink.LinkByIndex(device.Root)
	if err != nil {
		return err
	}
	if xdp := l.Attrs().Xdp; xdp != nil && xdp.Attached && len(before) == 0 {
		i.add("foreign-before", "XDP program %s (id %d) runs before Beeline's at device %s", programName(xdp.ProgId), xdp.ProgId, device.Name)
	}
	return nil
}
