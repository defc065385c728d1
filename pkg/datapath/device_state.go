package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/devicemap"
)

const (
	// A device that could not be attached to is tried again after firstRetry, and after
	// twice the time each time, up to lastRetry.
	firstRetry, lastRetry = time.Second, 2 * time.Minute
	// checkPeriod is how often all devices are looked at, for changes without an event.
	checkPeriod = 10 * time.Minute
	// logLines is how many devices a sync logs the faults of.
	logLines = 10
)

// role is the reason for which a device is served.
type role string

const (
	forClients  role = "clients"
	forPods     role = "pods"
	forBackends role = "backends" // that see this node for their client
	forNothing  role = "all"      // the devices could not be looked at
)

// deviceState is the state of a device. Its owner is [Datapath.served].
type deviceState struct {
	name string
	role role
	key  devicemap.Device // what it was attached as, see clientKey
	ok   bool             // the programs run
	xdp  *xdpEntry        // nil: not written yet
	// fault is the last one, until a sync has ended without.
	fault  devicemap.Fault
	logged bool
	fresh  bool // it is of the sync under way
	// moves is how often in a row filters were found out of their place, moved is when last.
	moves int
	moved time.Time
}

// backoff returns the pause after so many tries: first, and twice the time each time, up to lastRetry.
func backoff(first time.Duration, tries int) time.Duration {
	return min(first<<min(tries, 10), lastRetry)
}

// mayMove reports whether filters that are out of their place, because of those of others, are to be moved.
// Each time in a row comes later than the one before: somebody else may insist on the same place.
func (s *deviceState) mayMove(now time.Time) bool {
	since := now.Sub(s.moved)
	if since < backoff(attachedPeriod, s.moves) {
		return false
	}
	if since > 2*lastRetry {
		s.moves = 0
	}
	s.moves, s.moved = s.moves+1, now
	return true
}

// deviceSync is one pass over the devices.
type deviceSync struct {
	now     bool // failed devices are tried whether or not their time has come
	changes changes
	former  []devicemap.Device
	devices []devicemap.Device
	unknown []chosen // devices whose frames are not known
	pods    []netlink.Link
	// masqueraded are the devices of backends.
	masqueraded []netlink.Link

	clients bool // a device that clients are behind was attached to, or failed
	xdp     error
}

// serves reports whether clients are behind a device.
func (ds *deviceSync) serves(ifindex int) bool {
	return slices.ContainsFunc(ds.devices, func(v devicemap.Device) bool { return v.Ifindex == ifindex })
}

// served returns the indexes of the devices that are to have programs, or a fault.
func (ds *deviceSync) served() map[int]bool {
	served := make(map[int]bool, len(ds.devices)+len(ds.pods)+len(ds.masqueraded))
	for i := range ds.devices {
		served[ds.devices[i].Ifindex] = true
	}
	for _, c := range ds.unknown {
		served[c.link.Attrs().Index] = true
	}
	for _, list := range [][]netlink.Link{ds.pods, ds.masqueraded} {
		for _, l := range list {
			served[l.Attrs().Index] = true
		}
	}
	return served
}

// clientKey returns what of a device that clients are behind is written when it is attached
// to. The rest is XDP's, and of the attaching itself.
func clientKey(d devicemap.Device) devicemap.Device {
	d.NoXDP, d.XDPSend, d.XDPSendBuffers, d.OwnQdisc = "", false, false, false
	return d
}

// served has a device attached to, unless that has been done and nothing has changed since,
// or it has failed and its time has not come.
func (d *Datapath) served(ds *deviceSync, ifindex int, name string, role role, key devicemap.Device, attach func() error) {
	s := d.state[ifindex]
	if s != nil && (s.role != role || !s.ok && s.fault.Name != name) {
		s = nil
	}
	switch {
	case s == nil || ds.now:
	case !s.due():
		return
	case s.ok && !ds.changes.all && !ds.changes.links[ifindex] && s.key == key:
		return
	}
	ds.clients = ds.clients || role == forClients
	err := attach()
	if gone(err) {
		// One direction may have been attached to before the device went.
		err = d.detach(ifindex)
		if err == nil {
			return
		}
	}
	if err != nil {
		d.failed(ifindex, name, role, explain(err))
		return
	}
	done := &deviceState{name: name, role: role, key: key, ok: true}
	if s != nil {
		done.fault, done.logged, done.moves, done.moved = s.fault, s.logged, s.moves, s.moved
	}
	d.state[ifindex] = done
}

// failed notes that a device could not be served, and when to try again.
func (d *Datapath) failed(ifindex int, name string, role role, err error) {
	s := d.state[ifindex]
	now := time.Now()
	if s == nil || s.role != role || s.fault.Name != name {
		s = &deviceState{name: name, role: role, fault: devicemap.Fault{Ifindex: ifindex, Name: name, Role: string(role), Since: now}}
		d.state[ifindex] = s
	}
	if s.fault.Error != err.Error() {
		s.fault.Error, s.logged = err.Error(), false
	}
	s.ok, s.fresh = false, true
	s.fault.Next = now.Add(backoff(firstRetry, s.fault.Tries))
	s.fault.Tries++
}

// nextTry returns how long it is until a device is to be tried again.
func (d *Datapath) nextTry() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := checkPeriod
	for _, s := range d.state {
		if !s.ok {
			next = min(next, max(time.Until(s.fault.Next), firstRetry/10))
		}
	}
	return next
}

// due reports whether the time has come to try again what has failed of a device, or of all
// together; also when nothing has.
func (s *deviceState) due() bool { return s.ok || !time.Now().Before(s.fault.Next) }

// logFaults logs what is new of the devices that are not served, writes all of them for
// people, and returns those of this pass as an error. whole is what failed of a pass over the devices that is
// not a matter of one alone. It has failed until a pass over all of them ends without.
func (d *Datapath) logFaults(whole error, all bool) error {
	if whole != nil {
		d.failed(0, "", forNothing, whole)
	} else if all {
		delete(d.state, 0)
	}
	var errs []error
	var faults []devicemap.Fault
	count := make(map[DeviceCount]int)
	fresh := 0
	for _, s := range d.state {
		count[DeviceCount{string(s.role), s.ok}]++
		f := &s.fault
		if s.ok && f.Tries > 0 {
			klog.InfoS("Device is served now", "device", f.Name, "for", f.Role, "after", time.Since(f.Since).Round(time.Second))
			*f, s.logged = devicemap.Fault{}, false
		}
		if s.ok {
			continue
		}
		faults = append(faults, *f)
		if f.Ifindex != 0 && s.fresh {
			errs = append(errs, fmt.Errorf("device %s (for %s): %s", f.Name, f.Role, f.Error))
		}
		s.fresh = false
		if s.logged {
			continue
		}
		s.logged = true
		if fresh++; fresh <= logLines {
			klog.ErrorS(errors.New(f.Error), "Device is not served, trying again", "device", f.Name, "for", f.Role, "in", time.Until(f.Next).Round(time.Second))
		}
	}
	if fresh > logLines {
		klog.InfoS("More devices are not served", "devices", fresh-logLines)
	}
	delete(count, DeviceCount{string(forNothing), true})
	d.counts.Store(&count)
	// Those that clients are behind first: there may be more than there is room for.
	slices.SortFunc(faults, func(a, b devicemap.Fault) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Ifindex, b.Ifindex))
	})
	return errors.Join(append(errs, d.deviceMap.SetFaults(faults))...)
}

// behind returns an error that names the devices which could not be attached to and may still run
// programs of a former agent, which know its tables alone; the role for all of them.
func (d *Datapath) behind() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	err := d.netns.Run(func() error {
		for ifindex, s := range d.state {
			if !s.ok && (ifindex == 0 || d.mayRunFormer(ifindex)) {
				names = append(names, cmp.Or(s.name, string(s.role)))
			}
		}
		return nil
	})
	if err != nil || len(names) == 0 {
		return err
	}
	slices.Sort(names)
	return fmt.Errorf("devices run programs that know the former tables alone: %s", strings.Join(names, ", "))
}

// mayRunFormer reports whether anything of a former agent is at a device of the calling thread's
// network namespace, or cannot be looked for.
func (d *Datapath) mayRunFormer(ifindex int) bool {
	for _, dir := range directions {
		if _, err := os.Lstat(dir.pin(Dir(d.opts.BPFFS), ifindex)); !errors.Is(err, os.ErrNotExist) {
			return true
		}
		if found, _, err := dir.hasFilter(ifindex); found || err != nil && !gone(err) {
			return true
		}
	}
	return false
}

// DeviceCount is a kind of device: its role, and whether it is served.
type DeviceCount struct {
	Role   string
	Served bool
}

// DeviceCounts returns how many devices there are of each kind.
func (d *Datapath) DeviceCounts() map[DeviceCount]int {
	if c := d.counts.Load(); c != nil {
		return *c
	}
	return nil
}
