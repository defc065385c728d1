package datapath

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/devicemap"
)

// writtenEntries are entries that were written as a whole, as the programs are to find them; nil: not
// written yet.
type writtenEntries struct {
	frames     map[devicemap.Frames]uint32
	macs       map[int]devicemap.MAC
	masquerade *[2]netip.Addr
}

// synced reports whether a pass over all devices has succeeded and none of all has failed since: what is in the maps
// is of this agent then.
func (d *Datapath) synced() bool { return d.written.frames != nil && d.state[0] == nil }

// mendEntries writes entries again that somebody has changed, by the same functions as before, and returns how
// many kinds of them those were. The entries of devices that were attached to are not among them: see
// [Datapath.lookAt].
func (d *Datapath) mendEntries() (found int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.synced() {
		return 0, nil
	}
	var errs []error
	for _, entries := range []struct {
		what string
		mend func() (changed bool, err error)
	}{
		{"the indexes of devices", d.mendIDs},
		{"the ranges of pods", d.mendPods},
		{"the frames of VLANs and bonds", d.mendFrames},
		{"the MAC addresses of devices", d.mendMACs},
		{"the source of masqueraded packets", d.mendMasquerade},
		{"network namespaces that translate their own connections", d.mendNAT},
		{"the devices of pods in sandboxes", d.mendSandboxes},
	} {
		changed, err := entries.mend()
		if changed {
			found++
			klog.InfoS("Entries of the tables were changed by another program; writing them again", "entries", entries.what)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", entries.what, err))
		}
	}
	return found, errors.Join(errs...)
}

func (d *Datapath) mendIDs() (bool, error) {
	devices, err := d.deviceMap.Present()
	if err != nil {
		return false, err
	}
	return d.deviceMap.SetIDs(devices)
}

func (d *Datapath) writeFrames(want map[devicemap.Frames]uint32) error {
	d.written.frames = want
	return d.deviceMap.SetFrames(want)
}

func (d *Datapath) mendFrames() (bool, error) {
	have, err := d.deviceMap.Frames()
	if err != nil || d.written.frames == nil || maps.Equal(have, d.written.frames) {
		return false, err
	}
	return true, d.deviceMap.SetFrames(d.written.frames)
}

func (d *Datapath) writeMACs(want map[int]devicemap.MAC) error {
	d.written.macs = want
	return d.deviceMap.SetMACs(want)
}

func (d *Datapath) mendMACs() (bool, error) {
	have, err := d.deviceMap.MACs()
	if err != nil || d.written.macs == nil || maps.Equal(have, d.written.macs) {
		return false, err
	}
	return true, d.deviceMap.SetMACs(d.written.macs)
}

func (d *Datapath) writeMasquerade(addr4, addr6 netip.Addr) error {
	d.written.masquerade = &[2]netip.Addr{addr4, addr6}
	return d.deviceMap.SetMasquerade(addr4, addr6)
}

// masquerade returns where packets to pods of this node come from that do not keep the client's address, by a former
// agent at first.
func (d *Datapath) masquerade() (addr4, addr6 netip.Addr, err error) {
	if d.written.masquerade == nil {
		addr4, addr6, err = d.deviceMap.Masquerade()
		if err != nil {
			return addr4, addr6, err
		}
		d.written.masquerade = &[2]netip.Addr{addr4, addr6}
	}
	return d.written.masquerade[0], d.written.masquerade[1], nil
}

func (d *Datapath) mendMasquerade() (bool, error) {
	addr4, addr6, err := d.deviceMap.Masquerade()
	want := d.written.masquerade
	if err != nil || want == nil || *want == [2]netip.Addr{addr4, addr6} {
		return false, err
	}
	return true, d.deviceMap.SetMasquerade(want[0], want[1])
}

func (d *Datapath) mendNAT() (changed bool, err error) {
	have, err := d.deviceMap.NAT()
	if err != nil || d.nat == nil {
		return false, err
	}
	var errs []error
	for cookie := range have {
		if _, noted := d.nat[cookie]; !noted {
			changed = true
			errs = append(errs, d.deviceMap.DeleteNAT(cookie))
		}
	}
	for cookie, left := range d.natLeft {
		want := d.nat[cookie]
		if !left {
			want = nil
		}
		if ifindexes, ok := have[cookie]; !ok || !slices.Equal(ifindexes, want) {
			changed = true
			delete(d.natLeft, cookie) // as if it had not been written
		}
	}
	if changed {
		errs = append(errs, d.writeNAT())
	}
	return changed, errors.Join(errs...)
}

func (d *Datapath) mendSandboxes() (changed bool, err error) {
	sandboxes := devicemap.NewSandboxes(d.maps)
	have, err := sandboxes.List()
	if err != nil || d.sandboxes == nil {
		return false, err
	}
	var errs []error
	for ifindex := range have {
		if !d.sandboxes[ifindex] {
			changed = true
			errs = append(errs, sandboxes.Remove(ifindex))
		}
	}
	for ifindex := range d.sandboxes {
		if !have[ifindex] {
			changed = true
			errs = append(errs, sandboxes.Add(ifindex))
		}
	}
	return changed, errors.Join(errs...)
}
