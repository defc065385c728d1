package datapath

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/libxdp"
)

const (
	// xdpPriority is the place of our program among others: behind those with libxdp's
	// default, 50, and so behind filters, which are to see what clients have sent.
	xdpPriority = 60
	// xdpNext is the verdict after which the next one runs, XDP_PASS.
	xdpNext = 1 << 2
)

// xdpPart returns what [Datapath.xdpProgram] does, for dispatchers. It is loaded when it is
// needed first.
func (d *Datapath) xdpPart(dispatcher *libxdp.Dispatcher, owns bool) (libxdp.Component, error) {
	program := d.xdpParts[owns]
	if program == nil {
		var err error
		target, function := dispatcher.Target()
		if program, err = loadXDPPart(d.maps, d.constants, !owns, target, function); errors.Is(err, unix.EINVAL) {
			return libxdp.Component{}, fmt.Errorf("libxdp older than 1.5.5: %w", err)
		} else if err != nil {
			return libxdp.Component{}, err
		}
		d.xdpParts[owns] = program
	}
	part, err := libxdp.NewComponent(program)
	part.Priority, part.Next = xdpPriority, xdpNext
	if d.opts.XDP != XDPGeneric { // see loadXDP
		part.Flags = unix.BPF_F_XDP_HAS_FRAGS
	}
	return part, err
}

// ownPart reports whether a program of a dispatcher is one of ours, of any version.
func ownPart(c libxdp.Component) bool { return ownXDP(c.Name) }

// joinDispatcher makes our program one of those that a device's dispatcher calls, in place
// of a former agent's.
func (d *Datapath) joinDispatcher(ctx context.Context, ifindex int, owns bool) error {
	return libxdp.Change(ctx, d.opts.BPFFS, ifindex, func(dispatcher *libxdp.Dispatcher) error {
		if mode := modeOf(dispatcher); (mode == XDPGeneric) != (d.opts.XDP == XDPGeneric) {
			return fmt.Errorf("xdp is not %s", mode)
		}
		own, err := d.xdpPart(dispatcher, owns)
		if err != nil {
			return err
		}
		parts := slices.Clone(dispatcher.Components)
		if slices.ContainsFunc(parts, func(c libxdp.Component) bool { return c.ID == own.ID }) {
			return nil
		}
		return dispatcher.Replace(ctx, append(slices.DeleteFunc(parts, ownPart), own))
	})
}

// modeOf returns how a dispatcher is attached.
func modeOf(dispatcher *libxdp.Dispatcher) XDPMode {
	if dispatcher.Native() {
		return XDPNative
	}
	return XDPGeneric
}

// foreign reports whether an error says that no program of ours is in a dispatcher there.
func foreign(err error) bool {
	return errors.Is(err, libxdp.ErrNoDispatcher) || errors.As(err, &libxdp.ForeignError{})
}

// leaveDispatchers takes our programs out of the dispatchers of devices that are not to be
// kept, with what an agent has left that was killed while it changed one, and returns the names of those
// devices. The others' programs run on.
func leaveDispatchers(ctx context.Context, bpffs string, keep func(ifindex int) bool) (left []string, err error) {
	devices, err := libxdp.Devices(bpffs)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, ifindex := range devices {
		if keep(ifindex) {
			continue
		}
		err := libxdp.Change(ctx, bpffs, ifindex, func(dispatcher *libxdp.Dispatcher) error {
			others := slices.DeleteFunc(slices.Clone(dispatcher.Components), ownPart)
			if len(others) == len(dispatcher.Components) {
				return nil
			}
			if err := dispatcher.Replace(ctx, others); err != nil {
				return err
			}
			left = append(left, dispatcher.Device)
			return nil
		})
		if err == nil || foreign(err) {
			err = libxdp.Sweep(ctx, bpffs, ifindex, ownPart)
		}
		if gone(err) {
			err = libxdp.Forget(ctx, bpffs, ifindex, ownPart)
		}
		if err != nil && !foreign(err) {
			errs = append(errs, fmt.Errorf("leave the XDP dispatcher of device %d: %w", ifindex, err))
		}
	}
	return left, errors.Join(errs...)
}

// dispatcherMode returns how our program is attached to a device by a dispatcher, and the names of
// the programs that run before and after it. Where it is not attached the mode is [XDPOff], and
// all programs are in before.
func dispatcherMode(ctx context.Context, bpffs string, ifindex int) (mode XDPMode, before, after []string, err error) {
	mode = XDPOff
	err = libxdp.Change(ctx, bpffs, ifindex, func(dispatcher *libxdp.Dispatcher) error {
		mode, before, after = XDPOff, nil, nil
		for _, c := range dispatcher.Components {
			switch {
			case ownPart(c):
				mode = modeOf(dispatcher)
			case mode == XDPOff:
				before = append(before, c.Name)
			default:
				after = append(after, c.Name)
			}
		}
		return nil
	})
	if foreign(err) || gone(err) {
		return XDPOff, nil, nil, nil
	}
	return mode, before, after, err
}
