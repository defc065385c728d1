package datapath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/devicemap"
)

// XDPMode is whether and how packets are served by XDP.
type XDPMode string

// The modes.
const (
	XDPOff XDPMode = "off"
	// XDPAuto is [XDPNative] on devices whose driver has it, but not on veth: what the
	// other end sends may have its checksum unfinished, which XDP cannot tell.
	XDPAuto XDPMode = "auto"
	// XDPNative runs the program in the device's driver.
	XDPNative XDPMode = "native"
	// XDPGeneric runs it where the kernel receives packets of any device.
	XDPGeneric XDPMode = "generic"
)

// XDPModes lists the modes that can be asked for.
var XDPModes = []XDPMode{XDPOff, XDPAuto, XDPNative, XDPGeneric}

// xdpPrefix begins the names of pins of XDP links.
const xdpPrefix = linkPrefix + "xdp_"

func xdpPin(dir string, ifindex int) string {
	return filepath.Join(dir, fmt.Sprintf("%s%d", xdpPrefix, ifindex))
}

// xdpError is why a device is not served by XDP. tc serves it all the same.
type xdpError struct{ reason string }

func (e xdpError) Error() string { return e.reason }

// xdpEntry is what of a device's entry says how far XDP serves it.
type xdpEntry struct{ serves, send, sendBuffers bool }

func xdpOf(d *devicemap.Device) xdpEntry {
	return xdpEntry{d.NoXDP == "", d.XDPSend, d.XDPSendBuffers}
}

// syncXDP attaches the XDP programs where they can serve the devices, and writes into
// each one's entry how far they can. It takes them off others.
func (d *Datapath) syncXDP(ctx context.Context, n *network, ds *deviceSync) {
	devices := ds.devices
	dir := Dir(d.opts.BPFFS)
	on := make(map[int]bool)
	macs := make(map[int]devicemap.MAC)
	for i := range devices {
		device := devices[i]
		if device.ID == 0 {
			continue // its fault is told already
		}
		device.NoXDP = ""
		if d.xdp != nil {
			root, err := d.attachXDP(ctx, n, devices, &device)
			if err != nil && ctx.Err() != nil {
				ds.xdp = err // what runs goes on
				return
			}
			var no xdpError
			switch {
			case err == nil:
				on[root] = true
				macs[device.Ifindex] = n.mac(device.Ifindex)
			case errors.As(err, &no):
				device.NoXDP = no.reason
			case !gone(err):
				// What runs there goes on until it is tried again.
				on[device.Root] = true
				macs[device.Ifindex] = n.mac(device.Ifindex)
				d.failed(device.Ifindex, device.Name, forClients, explain(fmt.Errorf("attach XDP: %w", err)))
			}
		}
		device.XDPSend, device.XDPSendBuffers = d.xdpSends(&device)
		if s := d.state[device.Ifindex]; s != nil {
			s.xdp = new(xdpOf(&device))
		}
		if device == devices[i] {
			continue
		}
		// The entry has room for the beginning.
		if was := devices[i].NoXDP; device.NoXDP != "" && (was == "" || !strings.HasPrefix(device.NoXDP, was)) {
			klog.InfoS("Device is served without XDP", "device", device.Name, "reason", device.NoXDP)
		}
		devices[i] = device
		if err := d.deviceMap.Put(device); err != nil {
			d.failed(device.Ifindex, device.Name, forClients, err)
		}
	}
	keep := func(ifindex int) bool { return on[ifindex] }
	_, err := leaveDispatchers(ctx, d.opts.BPFFS, keep)
	ds.xdp = errors.Join(d.writeMACs(macs), detachLinks(dir, xdpPrefix, keep), err)
}

// attachXDP makes a program run where it can serve the device, and returns the ifindex
// of that place.
func (d *Datapath) attachXDP(ctx context.Context, n *network, devices []devicemap.Device, device *devicemap.Device) (int, error) {
	l, err := netlink.LinkByIndex(device.Ifindex)
	if err != nil {
		return 0, err
	}
	b, err := n.base(l)
	if err != nil {
		return 0, err
	}
	root := b.link.Attrs().Index
	if device.NoEthernet {
		return 0, xdpError{"its packets have no Ethernet header"}
	}
	if d.opts.XDP == XDPAuto && slices.ContainsFunc(n.drivers(b.link), func(l netlink.Link) bool { return l.Type() == "veth" }) {
		return 0, xdpError{"veth: checksums may be unfinished; set xdp to native"}
	}
	if err := n.checkTags(b.link); err != nil {
		return 0, err
	}
	if at := slices.IndexFunc(devices, func(other devicemap.Device) bool {
		return other.Ifindex < device.Ifindex && other.Ifindex%devicemap.MACPlaces == device.Ifindex%devicemap.MACPlaces
	}); at >= 0 {
		return 0, xdpError{fmt.Sprintf("its index, %d, has the low bits of that of %s: create the device again", device.Ifindex, devices[at].Name)}
	}
	if root != device.Ifindex {
		if b.link, err = netlink.LinkByIndex(root); err != nil {
			return 0, err
		}
	}
	return root, d.runXDP(ctx, b.link, n.ownsFrames(b.link, devices))
}

// xdpProgram returns the program for a device that owns the frames which it gets, or for
// one that need not. The latter is loaded when it is needed first.
func (d *Datapath) xdpProgram(owns bool) (program *ebpf.Program, err error) {
	if owns {
		return d.xdp, nil
	}
	if d.xdpBelow == nil {
		d.xdpBelow, err = LoadXDPBelow(d.maps, d.constants)
	}
	return d.xdpBelow, err
}

// runXDP makes the program run on a device, which owns the frames that it gets or not. A link
// that is pinned for it is updated, so that there is no moment without a program, unless it
// is of the other mode.
func (d *Datapath) runXDP(ctx context.Context, l netlink.Link, owns bool) error {
	ifindex := l.Attrs().Index
	program, err := d.xdpProgram(owns)
	if err != nil {
		return err
	}
	path := xdpPin(Dir(d.opts.BPFFS), ifindex)
	mode, flags := XDPNative, link.XDPDriverMode
	if d.opts.XDP == XDPGeneric {
		mode, flags = XDPGeneric, link.XDPGenericMode
	}
	pinned, err := link.LoadPinnedLink(path, nil)
	if err == nil {
		defer pinned.Close()
		if have, err := xdpMode(Dir(d.opts.BPFFS), ifindex); err != nil {
			return err
		} else if have == mode {
			return pinned.Update(program)
		}
		if err := removeLink(path); err != nil {
			return err
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("open pin %s: %w", path, err)
	}
	attached, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: ifindex, Flags: flags})
	if err == nil {
		return errors.Join(attached.Pin(path), attached.Close())
	}
	if now, gone := netlink.LinkByIndex(ifindex); gone == nil {
		l = now // a link of ours may just have been removed
	}
	if xdp := l.Attrs().Xdp; xdp != nil && xdp.Attached {
		if ownXDP(programName(xdp.ProgId)) {
			return fmt.Errorf("program %d of a former link is still there: %w", xdp.ProgId, err) // it goes soon after its pin
		}
		if err := d.joinDispatcher(ctx, ifindex, owns); err != nil {
			if errors.Is(err, unix.EWOULDBLOCK) {
				return err // for another process holds libxdp's lock
			}
			return xdpError{fmt.Sprintf("device in use: XDP program %s (id %d), %v", programName(xdp.ProgId), xdp.ProgId, err)}
		}
		return nil
	}
	return noXDP(l, err)
}

// ownXDP reports whether an XDP program is one of ours, of any version, by its name.
func ownXDP(name string) bool { return strings.HasPrefix(name, "bl_xdp") }

// noXDP says why the program could not be attached.
func noXDP(l netlink.Link, err error) error {
	switch {
	case l.Type() == "bond" && errors.Is(err, unix.EOPNOTSUPP):
		return xdpError{"its mode or a port's driver has no native XDP, or a port runs a program"}
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, ebpf.ErrNotSupported):
		return xdpError{fmt.Sprintf("its driver (%s) has no native XDP", l.Type())}
	case gone(err):
		return err
	}
	return xdpError{err.Error()}
}

func programName(id uint32) string {
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return "unknown"
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil || info.Name == "" {
		return "unnamed"
	}
	return info.Name
}

// xdpMode returns how our program is attached to a device, [XDPOff] when it is not.
func xdpMode(dir string, ifindex int) (XDPMode, error) {
	pinned, err := link.LoadPinnedLink(xdpPin(dir, ifindex), nil)
	if errors.Is(err, os.ErrNotExist) {
		return XDPOff, nil
	}
	if err != nil {
		return XDPOff, err
	}
	defer pinned.Close()
	info, err := pinned.Info()
	if err != nil {
		return XDPOff, fmt.Errorf("look at the link: %w", err)
	}
	if at := info.XDP(); at == nil || int(at.Ifindex) != ifindex {
		return XDPOff, nil
	}
	// The link does not tell, but a device runs programs in one mode only.
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return XDPOff, err
	}
	if xdp := l.Attrs().Xdp; xdp != nil && xdp.AttachMode == nl.XDP_ATTACHED_SKB {
		return XDPGeneric, nil
	}
	return XDPNative, nil
}

// What a driver can do for XDP, from include/uapi/linux/netdev.h (Linux 6.3).
const (
	netdevCommandGet     = 1
	netdevIfindex        = 1
	netdevFeatures       = 3
	netdevXDPSend        = 1 << 2
	netdevXDPSendBuffers = 1 << 6
)

// xdpSends reports whether XDP programs can send by a device, and what lies in
// several buffers too.
func (d *Datapath) xdpSends(device *devicemap.Device) (frames, buffers bool) {
	if d.xdp == nil || device.NoEthernet || device.Root == 0 {
		return false, false
	}
	if d.opts.XDP == XDPGeneric {
		// The kernel sends as it sends any packet, of which it has made one buffer.
		return true, false
	}
	features, err := xdpFeatures(device.Root)
	if err != nil {
		// Before Linux 6.3 the kernel does not tell. A driver that runs programs sends.
		return device.NoXDP == "", false
	}
	return features&netdevXDPSend != 0, features&netdevXDPSendBuffers != 0
}

// xdpFeatures asks the kernel what a device's driver can do for XDP.
func xdpFeatures(ifindex int) (uint64, error) {
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return 0, err
	}
	request := nl.NewNetlinkRequest(int(family.ID), 0)
	request.AddData(&nl.Genlmsg{Command: netdevCommandGet, Version: uint8(family.Version)})
	request.AddData(nl.NewRtAttr(netdevIfindex, nl.Uint32Attr(uint32(ifindex))))
	answers, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return 0, err
	}
	for _, answer := range answers {
		attributes, err := nl.ParseRouteAttr(answer[nl.SizeofGenlmsg:])
		if err != nil {
			return 0, err
		}
		for _, a := range attributes {
			if a.Attr.Type == netdevFeatures && len(a.Value) == 8 {
				return nl.NativeEndian().Uint64(a.Value), nil
			}
		}
	}
	return 0, errors.New("the kernel tells no features")
}
