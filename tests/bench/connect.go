package main

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/model"
)

const (
	connectRounds = 400
	connectBatch  = 1000
	freshBatch    = 500
)

// The cgroups that are compared, by what is attached to their connect hooks.
const (
	plain   = "plain"   // nothing
	empty   = "empty"   // a program that only returns
	beeline = "beeline" // Beeline with 10,000 Services
)

// measureConnect measures the thread CPU time of connect() on a UDP socket. The
// socket's cgroup decides which program runs; everything else is alike.
func measureConnect(ctx context.Context, box *sandbox) ([]samples, error) {
	l := load{services: 10000, endpoints: destinations, protocol: model.UDP}
	groups, err := connectGroups(ctx, box, l)
	if err != nil {
		return nil, err
	}
	if err := addUplink(); err != nil {
		return nil, err
	}
	return measureFamilies(func(s samples, family model.Family) error {
		if err := measureReused(ctx, s, groups, l, family); err != nil {
			return err
		}
		return measureFresh(ctx, s, groups, l, family)
	})
}

// connectGroups makes the cgroups and attaches the programs.
func connectGroups(ctx context.Context, box *sandbox, l load) (map[string]string, error) {
	groups, err := servedGroups(ctx, box, l, plain, empty, beeline)
	if err != nil {
		return nil, err
	}
	for _, at := range []ebpf.AttachType{ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect} {
		if err := attachEmpty(groups[empty], at); err != nil {
			return nil, err
		}
	}
	return groups, nil
}

// servedGroups makes cgroups to compare, by their names, and has the load served in that of
// Beeline, which is one of them.
func servedGroups(ctx context.Context, box *sandbox, l load, names ...string) (map[string]string, error) {
	groups := make(map[string]string)
	for _, name := range names {
		var err error
		if groups[name], err = box.subgroup(name); err != nil {
			return nil, err
		}
	}
	_, err := serve(ctx, box, groups[beeline], l.update())
	return groups, err
}

// variant is a loop whose time is compared with others'.
type variant struct {
	name    string
	group   string // where its sockets are made
	targets *targets
	fd      uintptr
}

// openUDP makes a socket in the variant's cgroup.
func (v *variant) openUDP(groups map[string]string, family model.Family) error {
	if err := join(groups[v.group]); err != nil {
		return err
	}
	fd, err := unix.Socket(domain(family), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a socket: %w", err)
	}
	v.fd = uintptr(fd)
	return nil
}

// reuse connects the variant's socket again and again.
func (v *variant) reuse() (nsPerCall float64, err error) {
	pick := newPicker()
	start := threadTime()
	for range connectBatch {
		t := pick.from(v.targets)
		_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, v.fd, uintptr(unsafe.Pointer(t)), t.len)
		if errno != 0 {
			return 0, fmt.Errorf("connect: %w", errno)
		}
	}
	return float64(threadTime()-start) / connectBatch, nil
}

// fresh makes, connects and closes sockets. The process is in the variant's
// cgroup.
func (v *variant) fresh(family model.Family) (nsPerCall float64, err error) {
	pick := newPicker()
	start := threadTime()
	for range freshBatch {
		t := pick.from(v.targets)
		fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, uintptr(domain(family)), unix.SOCK_DGRAM, 0)
		if errno != 0 {
			return 0, fmt.Errorf("make a socket: %w", errno)
		}
		_, _, errno = unix.RawSyscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(t)), t.len)
		if errno != 0 {
			return 0, fmt.Errorf("connect: %w", errno)
		}
		unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
	}
	return float64(threadTime()-start) / freshBatch, nil
}

// measureReused measures connect() on sockets that have been connected before.
// Each round times every variant once, in an order of its own, and only times of
// one round are compared.
func measureReused(ctx context.Context, s samples, groups map[string]string, l load, family model.Family) error {
	const service, sticky = 4321, 4320
	none := toOutside(family)
	variants := []*variant{
		{name: "none/plain", group: plain, targets: none},
		{name: "none/empty", group: empty, targets: none},
		{name: "none/beeline", group: beeline, targets: none},
		{name: "service/empty", group: empty, targets: toEndpoints(l, service, family)},
		{name: "service/beeline", group: beeline, targets: toService(l, service, family)},
		{name: "affinity/empty", group: empty, targets: toOne(l.endpoint(sticky, 3, family), endpointPort)},
		{name: "affinity/beeline", group: beeline, targets: toService(l, sticky, family)},
	}
	var list []contestant
	for _, v := range variants {
		if err := v.openUDP(groups, family); err != nil {
			return err
		}
		defer unix.Close(int(v.fd))
		list = append(list, contestant{v.name, v.reuse})
	}
	return interleave(ctx, connectRounds, list, func(t measured) {
		clusterIP := t["service/beeline"] - t["service/empty"]
		s.add(of("connect/plain", family), t["none/plain"])
		s.add(of("connect/empty", family), t["none/empty"]-t["none/plain"])
		s.add(of("connect/none", family), t["none/beeline"]-t["none/empty"])
		s.add(of("connect/service", family), clusterIP)
		s.add(of("connect/affinity", family), t["affinity/beeline"]-t["affinity/empty"]-clusterIP)
	})
}

// measureFresh measures sockets that live for one connect().
func measureFresh(ctx context.Context, s samples, groups map[string]string, l load, family model.Family) error {
	const service = 4321
	none := toOutside(family)
	variants := []*variant{
		{name: "none/empty", group: empty, targets: none},
		{name: "none/beeline", group: beeline, targets: none},
		{name: "service/plain", group: plain, targets: toEndpoints(l, service, family)},
		{name: "service/empty", group: empty, targets: toEndpoints(l, service, family)},
		{name: "service/beeline", group: beeline, targets: toService(l, service, family)},
	}
	var list []contestant
	for _, v := range variants {
		list = append(list, contestant{v.name, func() (float64, error) {
			if err := join(groups[v.group]); err != nil {
				return 0, err
			}
			return v.fresh(family)
		}})
	}
	return interleave(ctx, connectRounds, list, func(t measured) {
		s.add(of("fresh/plain", family), t["service/plain"])
		s.add(of("fresh/none", family), t["none/beeline"]-t["none/empty"])
		s.add(of("fresh/service", family), t["service/beeline"]-t["service/empty"])
	})
}
