package datapath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/pause"
)

// attachedPeriod passes between two looks at whether programs are where they were attached. One
// takes two system calls for each direction of a device.
const attachedPeriod = 2 * time.Second

// FollowPrograms attaches again what somebody has detached, until ctx ends: the kernel reports no
// such change. mended gets how many programs or entries of devices that were.
func (d *Datapath) FollowPrograms(ctx context.Context, mended func(int)) {
	logged := ""
	for pause.For(ctx, attachedPeriod) {
		found, err := d.mendPrograms(ctx)
		if text := fmt.Sprint(err); text != logged {
			if logged = text; err != nil {
				klog.ErrorS(err, "Programs that were detached are not all attached again, trying again", "in", attachedPeriod)
			}
		}
		if found > 0 {
			mended(found)
		}
	}
}

// mendPrograms attaches again what is detached and returns how much that was.
func (d *Datapath) mendPrograms(ctx context.Context) (found int, err error) {
	d.mu.Lock()
	attached := !d.attached.IsZero()
	d.mu.Unlock()
	if !attached {
		return 0, nil
	}
	lost, err := d.lostHooks()
	if len(lost) > 0 {
		klog.InfoS("Socket programs were detached, attaching them again", "programs", lost)
		err = errors.Join(err, explain(attachHooks(Dir(d.opts.BPFFS), d.opts.Cgroup, d.opts.hooks(), d.sockets)))
	}
	var devices int
	errDevices := d.netns.Run(func() (err error) {
		devices, err = d.noteLostDevices()
		return err
	})
	if devices > 0 {
		errDevices = errors.Join(errDevices, d.sync(ctx, false, false))
	}
	return len(lost) + devices, errors.Join(err, errDevices)
}

// lostHooks returns the names of the programs that do not run at their hooks of the cgroup.
func (d *Datapath) lostHooks() (lost []string, err error) {
	id, err := cgroupID(d.opts.Cgroup)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, h := range d.opts.hooks() {
		ok, err := h.attached(Dir(d.opts.BPFFS), id, d.programID(h.of(d.sockets)))
		errs = append(errs, err)
		if err == nil && !ok {
			lost = append(lost, h.program)
		}
	}
	return lost, errors.Join(errs...)
}

// attached reports whether the pinned link runs a program at the hook of a cgroup.
func (h hook) attached(dir string, cgroup uint64, program uint32) (bool, error) {
	info, err := pinnedInfo(h.pin(dir))
	if err != nil || info == nil {
		return false, err
	}
	at := info.Cgroup()
	return at != nil && at.CgroupId == cgroup && uint32(info.Program) == program, nil
}

// programID returns the id of a program; 0 when the kernel does not tell, or there is none. The kernel
// is asked once: it copies all instructions with its answer. To be called in [Datapath.FollowPrograms].
func (d *Datapath) programID(p *ebpf.Program) uint32 {
	if p == nil {
		return 0
	}
	if id, known := d.programIDs[p]; known {
		return id
	}
	info, err := p.Info()
	if err != nil {
		return 0
	}
	id, _ := info.ID()
	d.programIDs[p] = uint32(id)
	return uint32(id)
}

// pinnedInfo returns what the kernel tells of a pinned link; nil when none is pinned.
func pinnedInfo(path string) (*link.Info, error) {
	pinned, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open pin %s: %w", path, err)
	}
	defer pinned.Close()
	info, err := pinned.Info()
	if err != nil {
		return nil, fmt.Errorf("look at the link %s: %w", path, err)
	}
	return info, nil
}

// noteLostDevices has the next sync attach to the devices that programs or entries are lost of, and
// returns how many those are.
func (d *Datapath) noteLostDevices() (lost int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	written, err := d.deviceMap.List()
	if err != nil {
		return 0, err
	}
	entries := make(map[int]devicemap.Device, len(written))
	for _, w := range written {
		entries[w.Ifindex] = w
	}
	var errs []error
	for ifindex, s := range d.state {
		if !s.ok {
			continue
		}
		why, err := d.lostOf(ifindex, s, entries[ifindex])
		if gone(err) {
			continue // a sync is about to find out
		}
		errs = append(errs, err)
		if why == "" {
			continue
		}
		lost++
		klog.InfoS("A device has lost programs or entries, attaching again", "device", s.key.Name, "ifindex", ifindex, "for", s.role, "because", why)
		d.watch.touch(ifindex)
	}
	return lost, errors.Join(errs...)
}

// lostOf says what is lost of a device that was attached to; "" is nothing.
func (d *Datapath) lostOf(ifindex int, s *deviceState, written devicemap.Device) (string, error) {
	dir := Dir(d.opts.BPFFS)
	for _, at := range directions {
		name := at.pod
		switch s.role {
		case forClients:
			name = at.programFor(s.key.NoEthernet)
		case forBackends:
			name = at.masquerade
		}
		if ok, err := d.runs(at, ifindex, name); err != nil || !ok {
			return "no program at " + at.name, err
		}
	}
	if s.role != forClients {
		return "", nil
	}
	if !sameEntry(&s.key, &written) {
		return "another entry", nil
	}
	serves, err := d.deviceMap.Serves(ifindex)
	if err != nil || !serves {
		return "no entry by its index", err
	}
	if d.xdp == nil || written.NoXDP != "" || written.Root == 0 {
		return "", nil
	}
	mode, err := xdpMode(dir, written.Root)
	if err == nil && mode == XDPOff {
		mode, _, _, err = dispatcherMode(context.Background(), d.opts.BPFFS, written.Root)
	}
	if err != nil || mode == XDPOff {
		return "no XDP program", err
	}
	return "", nil
}

// runs reports whether a program of ours runs in one direction of a device.
func (d *Datapath) runs(at direction, ifindex int, name string) (bool, error) {
	if !d.tcx {
		return at.hasFilter(ifindex)
	}
	info, err := pinnedInfo(at.pin(Dir(d.opts.BPFFS), ifindex))
	if err != nil || info == nil {
		return false, err
	}
	tcx := info.TCX()
	return tcx != nil && int(tcx.Ifindex) == ifindex && uint32(info.Program) == d.programID(d.devices[name]), nil
}

// sameEntry reports whether two entries of a device differ in nothing that programs go by and that
// follows from the device.
func sameEntry(a, b *devicemap.Device) bool {
	return a.ID == b.ID && a.Ifindex == b.Ifindex && a.Name == b.Name && a.MTU == b.MTU && a.Root == b.Root && a.Tags == b.Tags &&
		a.Addr4 == b.Addr4 && a.Addr6 == b.Addr6 && a.NoEthernet == b.NoEthernet && a.Internal == b.Internal
}
