// Package libxdp runs an XDP program beside others on a device that has a dispatcher of
// libxdp: a program which calls others, one after another. It keeps to the protocol by which
// programs that know nothing of each other share one (xdp-tools, lib/libxdp/protocol.org;
// Linux 5.10).
package libxdp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrNoDispatcher is returned for a device that runs no dispatcher of libxdp.
var ErrNoDispatcher = errors.New("no dispatcher of libxdp")

// A ForeignError is why a dispatcher of libxdp cannot be read or changed.
type ForeignError struct{ reason string }

func (e ForeignError) Error() string { return e.reason }

// Component is a program that a dispatcher calls.
type Component struct {
	Program *ebpf.Program // loaded for [Dispatcher.Target]
	Name    string
	ID      ebpf.ProgramID
	// Priority says where among the others it runs: lower ones come first.
	Priority uint32
	// Next has a bit for each verdict (1 << XDP_PASS) after which the next one runs.
	Next uint32
	// Flags are BPF_F_XDP_HAS_FRAGS if it takes packets that lie in several buffers. The
	// dispatcher does when all do.
	Flags uint32
}

// NewComponent returns a component with the program's name and ID.
func NewComponent(program *ebpf.Program) (Component, error) {
	info, err := program.Info()
	if err != nil {
		return Component{}, err
	}
	id, _ := info.ID()
	return Component{Program: program, Name: info.Name, ID: id}, nil
}

// Dispatcher is one that a device runs. Others may replace it at any time.
type Dispatcher struct {
	Device     string      // its name
	Components []Component // in the order in which they run

	bpffs   string
	ifindex int
	mode    uint32 // the flag for it
	version uint8
	program *ebpf.Program
}

// Change calls change with the dispatcher that a device runs, and again when another program
// has changed it meanwhile. Its pins are below the BPF file system. The error is
// [ErrNoDispatcher] when the device runs another program or none, and a [ForeignError] when
// the dispatcher is one that change could do nothing with.
func Change(ctx context.Context, bpffs string, ifindex int, change func(*Dispatcher) error) error {
	for try := 1; ; try++ {
		device, err := netlink.LinkByIndex(ifindex)
		if err != nil {
			return err
		}
		d, err := open(ctx, bpffs, device)
		if err == nil {
			err = errors.Join(change(d), d.close())
		}
		if err == nil || try == 10 {
			return err
		}
		now, noDevice := netlink.LinkByIndex(ifindex)
		if noDevice != nil || runs(now) == runs(device) {
			return err
		}
	}
}

// runs returns the id of the XDP program that a device runs, 0 for none.
func runs(device netlink.Link) uint32 {
	if xdp := device.Attrs().Xdp; xdp != nil && xdp.Attached {
		return xdp.ProgId
	}
	return 0
}

func open(ctx context.Context, bpffs string, device netlink.Link) (*Dispatcher, error) {
	id := runs(device)
	if id == 0 {
		return nil, ErrNoDispatcher
	}
	program, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return nil, err
	}
	d := &Dispatcher{
		Device: device.Attrs().Name, bpffs: bpffs, ifindex: device.Attrs().Index, program: program, mode: nl.XDP_FLAGS_DRV_MODE,
	}
	if device.Attrs().Xdp.AttachMode == nl.XDP_ATTACHED_SKB {
		d.mode = nl.XDP_FLAGS_SKB_MODE
	}
	config, err := readConfig(program)
	if err == nil {
		d.version = config.Version
		err = d.readComponents(ctx, config)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *Dispatcher) close() error {
	errs := []error{d.program.Close()}
	for _, c := range d.Components {
		errs = append(errs, c.Program.Close())
	}
	return errors.Join(errs...)
}

// Native reports whether it runs in the device's driver.
func (d *Dispatcher) Native() bool { return d.mode == nl.XDP_FLAGS_DRV_MODE }

// Target returns a function in whose place an [ebpf.Extension] can be loaded to be one of the
// components.
func (d *Dispatcher) Target() (program *ebpf.Program, function string) {
	return d.program, functionName(0)
}

// Replace makes the device run these programs in place of d's, at once, or none when there
// are none. It changes nothing when the device does not run d any more.
func (d *Dispatcher) Replace(ctx context.Context, components []Component) error {
	unlock, err := lock(ctx, d.bpffs)
	if err != nil {
		return err
	}
	defer unlock()
	if len(components) == 0 {
		if err := d.swap(-1); err != nil {
			return err
		}
		return d.unpin(d.program)
	}
	components = slices.Clone(components)
	slices.SortStableFunc(components, func(a, b Component) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Name, b.Name))
	})
	program, err := load(d.version, components)
	if err != nil {
		return err
	}
	defer program.Close()
	// It is whole, and stays so without us, before a packet comes to it.
	err = d.pin(program, components)
	if err == nil {
		err = d.swap(program.FD())
	}
	if err != nil {
		return errors.Join(err, d.unpin(program))
	}
	return d.unpin(d.program)
}

// swap makes the device run the program with this file descriptor, -1 for none, in place of
// d's.
func (d *Dispatcher) swap(fd int) error {
	const (
		expectedFD = 8      // IFLA_XDP_EXPECTED_FD
		replace    = 1 << 4 // XDP_FLAGS_REPLACE
	)
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(d.ifindex)
	request.AddData(message)
	xdp := nl.NewRtAttr(unix.IFLA_XDP|unix.NLA_F_NESTED, nil)
	xdp.AddRtAttr(nl.IFLA_XDP_FD, nl.Uint32Attr(uint32(fd)))
	xdp.AddRtAttr(nl.IFLA_XDP_FLAGS, nl.Uint32Attr(d.mode|replace))
	xdp.AddRtAttr(expectedFD, nl.Uint32Attr(uint32(d.program.FD())))
	request.AddData(xdp)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("replace the dispatcher: %w", err)
	}
	return nil
}
