package datapath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/pause"
)

const (
	// attachedPeriod passes between two looks at whether programs are where they were attached. One
	// takes two system calls for each direction of a device, and some ten for pins and sockets.
	attachedPeriod = 2 * time.Second
	// attachedShare is how many times as long as a look worked is paused at least: with many devices,
	// or many filters at them, looks take a twentieth of a CPU at most.
	attachedShare = 19
)

// FollowPrograms attaches again what somebody has detached, and makes pins again that somebody has
// removed, until ctx ends: the kernel reports no such change. mended gets how many programs or entries
// of devices that were, with one for all pins of maps. The error is a [RunningError] when another agent
// has taken the place of this one, whose pins were removed.
func (d *Datapath) FollowPrograms(ctx context.Context, mended func(int)) error {
	logged := ""
	for next := attachedPeriod; pause.For(ctx, next); {
		var found int
		var err error
		took := pause.Work(func() { found, err = d.mendPrograms(ctx) })
		next = max(attachedPeriod, attachedShare*took)
		if found > 0 {
			mended(found)
		}
		if ctx.Err() != nil {
			return nil
		}
		if running := (*RunningError)(nil); errors.As(err, &running) {
			return fmt.Errorf("the pins were removed, and another agent has made them since: %w", err)
		}
		if text := fmt.Sprint(err); text != logged {
			if logged = text; err != nil {
				klog.ErrorS(err, "Programs could not all be looked at and attached again, trying again", "in", next)
			}
		}
	}
	return nil
}

// mendPrograms attaches again what is detached and returns how much that was.
func (d *Datapath) mendPrograms(ctx context.Context) (found int, err error) {
	d.mu.Lock()
	attached := !d.attached.IsZero()
	d.mu.Unlock()
	if !attached {
		return 0, nil
	}
	pins, err := d.mendPins()
	if err != nil {
		return 0, err
	}
	lost, err := d.lostHooks()
	if len(lost) > 0 {
		klog.InfoS("Socket programs were detached, attaching them again", "programs", lost)
		err = errors.Join(err, explain(attachHooks(Dir(d.opts.BPFFS), d.opts.Cgroup, d.opts.hooks(), d.sockets)))
	}
	var devices int
	var noted bool
	errDevices := d.netns.Run(func() (err error) {
		devices, noted, err = d.noteLostDevices(ctx)
		return err
	})
	if noted {
		d.syncNoted(ctx)
	}
	entries, errEntries := d.mendEntries()
	return pins + len(lost) + devices + entries, errors.Join(err, errDevices, errEntries)
}

// mendPins makes pins of maps again that somebody has removed, and takes the lock again where that
// has gone with them. It returns how many times it did, 1 at most. After an error nothing is to be pinned.
func (d *Datapath) mendPins() (found int, err error) {
	if err := checkBPFFS(d.opts.BPFFS); err != nil {
		return 0, err
	}
	held, err := d.lock.held(d.opts.BPFFS)
	if err != nil {
		return 0, err
	}
	dir := Dir(d.opts.BPFFS)
	if held && d.maps.Pinned(dir) {
		return 0, nil
	}
	klog.ErrorS(nil, "Pins were removed, making them again: without its link's pin a program serves no more", "folder", dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, explain(fmt.Errorf("make the pins' folder: %w", err))
	}
	if !held {
		l, err := takeLock(d.opts.BPFFS)
		if err != nil {
			return 0, err
		}
		err = d.lock.release()
		d.lock = l
		if err != nil {
			return 0, err
		}
	}
	return 1, d.maps.Pin(dir)
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

// deviceLook is what a look at a device that was attached to has found.
type deviceLook struct {
	name    string
	ifindex int
	role    role
	lost    string // the reason why it is to be attached to again; "" is none
	// dispatcher is the device of which libxdp's dispatcher should run an XDP program of ours; 0 is none.
	dispatcher int
}

// noteLostDevices has the next sync attach to the devices that programs or entries are lost of, if it noted any, and
// returns how many those are, without those that are gone: with them go their programs, and a sync is about to find
// out. Dispatchers are looked at without d.mu: another process may hold their
// lock. All of them together wait for it until the next look is due.
func (d *Datapath) noteLostDevices(ctx context.Context) (lost int, noted bool, err error) {
	looks, err := d.lookAtDevices()
	errs := []error{err}
	ctx, cancel := context.WithTimeout(ctx, attachedPeriod)
	defer cancel()
	for _, l := range looks {
		if l.dispatcher != 0 {
			mode, _, _, err := dispatcherMode(ctx, d.opts.BPFFS, l.dispatcher)
			if err != nil {
				errs = append(errs, fmt.Errorf("device %s: look at its XDP dispatcher: %w", l.name, err))
				continue
			}
			if mode == XDPOff {
				l.lost = "no XDP program"
			}
		}
		if l.lost == "" {
			continue
		}
		noted = true
		d.watch.touch(l.ifindex)
		if _, err := netlink.LinkByIndex(l.ifindex); gone(err) {
			continue
		}
		lost++
		klog.InfoS("A device has lost programs or entries, attaching again", "device", l.name, "ifindex", l.ifindex, "for", l.role, "because", l.lost)
	}
	return lost, noted, errors.Join(errs...)
}

// lookAtDevices looks at the devices that were attached to, except into dispatchers.
func (d *Datapath) lookAtDevices() (looks []deviceLook, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	written, err := d.deviceMap.Present()
	if err != nil {
		return nil, err
	}
	entries := make(map[int]devicemap.Device, len(written))
	for _, w := range written {
		if _, known := d.state[w.Ifindex]; !known && d.synced() {
			looks = append(looks, deviceLook{name: w.Name, ifindex: w.Ifindex, role: forClients, lost: "an entry, though it is not served"})
		}
		entries[w.Ifindex] = w
	}
	var errs []error
	for ifindex, s := range d.state {
		if !s.ok {
			continue
		}
		l := deviceLook{name: s.name, ifindex: ifindex, role: s.role}
		if err := d.lookAt(&l, s, entries[ifindex]); gone(err) {
			continue // a sync is about to find out
		} else if err != nil {
			errs = append(errs, fmt.Errorf("look at device %d: %w", ifindex, err))
			continue
		}
		looks = append(looks, l)
	}
	return looks, errors.Join(errs...)
}

// lookAt completes a look at a device. An error says nothing about what is lost.
func (d *Datapath) lookAt(l *deviceLook, s *deviceState, written devicemap.Device) error {
	inPlace := true
	for _, at := range directions {
		name := at.pod
		switch s.role {
		case forClients:
			name = at.programFor(s.key.NoEthernet)
		case forBackends:
			name = at.masquerade
		}
		runs, first, err := d.runs(at, l.ifindex, name)
		if err != nil {
			return err
		}
		if !runs {
			l.lost = "no program at " + at.name
			return nil
		}
		inPlace = inPlace && first
	}
	if !inPlace && s.mayMove(time.Now()) {
		l.lost = "filters of others that came or went"
		return nil
	}
	if s.role != forClients {
		return nil
	}
	if !sameEntry(&s.key, &written) || s.xdp != nil && *s.xdp != xdpOf(&written) {
		l.lost = "another entry"
		return nil
	}
	if d.xdp == nil || written.NoXDP != "" || written.Root == 0 {
		return nil
	}
	mode, err := xdpMode(Dir(d.opts.BPFFS), written.Root)
	if err == nil && mode == XDPOff {
		l.dispatcher = written.Root
	}
	return err
}

// runs reports whether a program of ours runs in one direction of a device, and whether it does where
// it belongs among filters.
func (d *Datapath) runs(at direction, ifindex int, name string) (runs, inPlace bool, err error) {
	if !d.tcx {
		return at.hasFilter(ifindex)
	}
	info, err := pinnedInfo(at.pin(Dir(d.opts.BPFFS), ifindex))
	if err != nil || info == nil {
		return false, false, err
	}
	tcx := info.TCX()
	return tcx != nil && int(tcx.Ifindex) == ifindex && uint32(info.Program) == d.programID(d.devices[name]), true, nil
}

// sameEntry reports whether two entries of a device differ in nothing that programs go by and that
// follows from the device.
func sameEntry(a, b *devicemap.Device) bool {
	return a.ID == b.ID && a.Ifindex == b.Ifindex && a.Name == b.Name && a.MTU == b.MTU && a.Root == b.Root && a.Tags == b.Tags &&
		a.Addr4 == b.Addr4 && a.Addr6 == b.Addr6 && a.NoEthernet == b.NoEthernet && a.Internal == b.Internal && a.AllPods == b.AllPods
}
