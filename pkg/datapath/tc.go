package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// TCMode is how programs for packets are attached to a device.
type TCMode string

// The modes. A tcx link is removed with its pin; a filter of the clsact qdisc
// stays with the device until it is removed.
const (
	TCAuto   TCMode = "auto" // tcx where the kernel has it, else clsact
	TCX      TCMode = "tcx"  // Linux 6.6 or newer
	TCClsact TCMode = "clsact"
)

// tcxPrefix begins the names of pins of links to devices.
const tcxPrefix = linkPrefix + "tcx_"

// direction is a hook of a device.
type direction struct {
	name    string
	program string
	pod     string // the program for the devices of pods
	// masquerade is the program for the devices that backends are behind which see
	// this node for their client.
	masquerade string
	at         ebpf.AttachType
	parent     uint32 // of filters
}

// directions lists the hooks in the order in which they are attached: a reply is
// translated from the first request on.
var directions = []direction{
	{"egress", bpf.TcProgBlEgress, bpf.TcProgBlPodEgress, bpf.TcProgBlPodEgress, ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS},
	{"ingress", bpf.TcProgBlIngress, bpf.TcProgBlPodIngress, bpf.TcProgBlBackendIngress, ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS},
}

// devicePrograms returns the names of the programs for devices that every node has which
// serves packets.
func devicePrograms() []string {
	var names []string
	for _, dir := range directions {
		names = append(names, dir.program)
	}
	return names
}

// deviceProgram returns a program for packets. One that few nodes need is loaded when it is needed
// first: the kernel takes as long to check each as for all others.
func (d *Datapath) deviceProgram(name string) (*ebpf.Program, error) {
	if p := d.devices[name]; p != nil {
		return p, nil
	}
	loaded, err := LoadDevices(d.maps, d.constants, name)
	if err != nil {
		return nil, explain(err)
	}
	d.devices[name] = loaded[name]
	return loaded[name], nil
}

// programFor returns the name of the direction's program for a device.
func (d direction) programFor(noEthernet bool) string {
	if noEthernet {
		return d.program + "_l3"
	}
	return d.program
}

func (d direction) pin(dir string, ifindex int) string {
	return filepath.Join(dir, fmt.Sprintf("%s%d_%s", tcxPrefix, ifindex, d.name))
}

// haveTCX reports whether the kernel has tcx links. It asks for one to no device.
func haveTCX() (bool, error) {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		return false, fmt.Errorf("load a program that asks for tcx: %w", err)
	}
	defer program.Close()
	l, err := link.AttachTCX(link.TCXOptions{Program: program, Attach: ebpf.AttachTCXIngress})
	if err == nil {
		_ = l.Close()
	}
	return !errors.Is(err, ebpf.ErrNotSupported), nil
}

// attachTCX makes program run first at the hook. A link that is pinned for the
// device is updated, so that there is no moment without a program.
func (d direction) attachTCX(dir string, ifindex int, program *ebpf.Program) error {
	path := d.pin(dir, ifindex)
	pinned, err := link.LoadPinnedLink(path, nil)
	if err == nil {
		defer pinned.Close()
		at, err := tcxDevice(pinned)
		if err != nil {
			return err
		}
		if at == ifindex {
			return pinned.Update(program)
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("open pin %s: %w", path, err)
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: program, Attach: d.at, Anchor: link.Head()})
	if err != nil {
		return err
	}
	return errors.Join(l.Pin(path), l.Close())
}

// tcxDevice returns the ifindex of a link's device, 0 when that is gone.
func tcxDevice(l link.Link) (int, error) {
	info, err := l.Info()
	if err != nil {
		return 0, fmt.Errorf("look at the link: %w", err)
	}
	if tcx := info.TCX(); tcx != nil {
		return int(tcx.Ifindex), nil
	}
	return 0, nil
}

// detachTCX removes the tcx links that are pinned for devices, except those that
// keep is true for.
func detachTCX(dir string, keep func(ifindex int) bool) error {
	return detachLinks(dir, tcxPrefix, keep)
}

// detachLinks removes the links that are pinned for devices under names that begin
// with prefix and the ifindex, except those that keep is true for. One that cannot be removed keeps
// no other.
func detachLinks(dir, prefix string, keep func(ifindex int) bool) error {
	pins, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range pins {
		var ifindex int
		number, _, _ := strings.Cut(strings.TrimPrefix(p.Name(), prefix), "_")
		if n, err := fmt.Sscan(number, &ifindex); n != 1 || err != nil || !strings.HasPrefix(p.Name(), prefix) || keep(ifindex) {
			continue
		}
		if err := removeLink(filepath.Join(dir, p.Name())); err != nil {
			errs = append(errs, fmt.Errorf("detach from device %d: %w", ifindex, err))
		}
	}
	return errors.Join(errs...)
}

func clsact(ifindex int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_CLSACT,
	}}
}

// addQdisc gives a device the qdisc that filters need. made is false when it has
// one.
func addQdisc(ifindex int) (made bool, err error) {
	err = netlink.QdiscAdd(clsact(ifindex))
	if errors.Is(err, unix.EEXIST) {
		return false, checkQdisc(ifindex)
	}
	if err != nil {
		return false, fmt.Errorf("add the clsact qdisc: %w", err)
	}
	return true, nil
}

// checkQdisc returns an error when a qdisc ingress is in the place of clsact. It would take
// the filter for egress for one of ingress.
func checkQdisc(ifindex int) error {
	l, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return err
	}
	qdiscs, err := rtnl.Complete(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(l) })
	if err != nil {
		return fmt.Errorf("list qdiscs: %w", err)
	}
	if slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "ingress" }) {
		return fmt.Errorf("it has the qdisc ingress, which has no egress: replace it by clsact (tc qdisc del dev %s ingress)", l.Attrs().Name)
	}
	return nil
}

// detachFilters removes our filters from a device, and its qdisc when that is ours and it has no other user.
func detachFilters(l netlink.Link, ownQdisc bool) error {
	_, _, err := detachFiltersOf(l, ownQdisc, func(uint32) bool { return true })
	return err
}

// detachFiltersOf is detachFilters for programs that are removable. It reports whether it has found such
// filters, and kept others of ours.
func detachFiltersOf(l netlink.Link, ownQdisc bool, removable func(program uint32) bool) (found, kept bool, err error) {
	others := false
	for _, d := range directions {
		filters, err := rtnl.Filters(l, d.parent)
		if err != nil {
			return found, kept, err
		}
		for _, f := range filters {
			if !d.owns(f) {
				others = true
				continue
			}
			if !removable(programOf(f)) {
				kept = true
				continue
			}
			found = true
			if err := d.remove(l, f); err != nil {
				return found, kept, err
			}
		}
	}
	if !ownQdisc || others || kept {
		return found, kept, nil
	}
	if err := netlink.QdiscDel(clsact(l.Attrs().Index)); err != nil && !gone(err) && !errors.Is(err, unix.ENOENT) {
		return found, kept, fmt.Errorf("remove the clsact qdisc of %s: %w", l.Attrs().Name, err)
	}
	return found, kept, nil
}

// Attached returns how programs for packets are attached to a device, "" when they are not.
func Attached(bpffs string, ifindex int) (TCMode, error) { return attachedBy(Dir(bpffs), ifindex) }

// attachedBy returns how the programs of both directions are attached to a device,
// "" when one of them is not.
func attachedBy(dir string, ifindex int) (TCMode, error) {
	links, filters := 0, 0
	for _, d := range directions {
		if at, err := d.pinnedTo(dir, ifindex); err != nil {
			return "", err
		} else if at == ifindex {
			links++
		}
		has, _, err := d.hasFilter(ifindex)
		if err != nil && !gone(err) {
			return "", err
		}
		if has {
			filters++
		}
	}
	switch len(directions) {
	case links:
		return TCX, nil
	case filters:
		return TCClsact, nil
	}
	return "", nil
}

// pinnedTo returns the ifindex that the link pinned for a device leads to, 0 when
// there is none.
func (d direction) pinnedTo(dir string, ifindex int) (int, error) {
	pinned, err := link.LoadPinnedLink(d.pin(dir, ifindex), nil)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer pinned.Close()
	return tcxDevice(pinned)
}

// gone reports whether an operation failed because the device is no more.
func gone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.As(err, &netlink.LinkNotFoundError{})
}
