package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"runtime/debug"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/model"
)

const (
	connectRounds = 400
	connectBatch  = 1000
	freshBatch    = 500
	// destinations is how many addresses a batch goes round: as many as a Service
	// has endpoints, so that the kernel meets as many without Beeline.
	destinations = 10
)

// The cgroups that are compared, by what is attached to their connect hooks.
const (
	plain   = "plain"   // nothing
	empty   = "empty"   // a program that only returns
	beeline = "beeline" // Beeline with 10,000 Services
)

// measureConnect measures the thread CPU time of connect() on a UDP socket. The
// socket's cgroup decides which program runs; everything else is alike.
func measureConnect(ctx context.Context, box *sandbox) (samples, error) {
	l := load{services: 10000, endpoints: destinations, protocol: model.UDP}
	groups, err := connectGroups(ctx, box, l)
	if err != nil {
		return nil, err
	}
	if err := addUplink(); err != nil {
		return nil, err
	}
	if err := quiet(); err != nil {
		return nil, err
	}
	s := make(samples)
	for _, family := range model.Families {
		if err := measureReused(ctx, s, groups, l, family); err != nil {
			return nil, err
		}
		if err := measureFresh(ctx, s, groups, l, family); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// connectGroups makes the cgroups and attaches the programs.
func connectGroups(ctx context.Context, box *sandbox, l load) (map[string]string, error) {
	groups := make(map[string]string)
	for _, name := range []string{plain, empty, beeline} {
		var err error
		if groups[name], err = box.subgroup(name); err != nil {
			return nil, err
		}
	}
	for _, at := range []ebpf.AttachType{ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect} {
		if err := attachEmpty(groups[empty], at); err != nil {
			return nil, err
		}
	}
	_, err := serve(ctx, box, groups[beeline], l.update())
	return groups, err
}

// attachEmpty attaches a program that does nothing, until the process ends.
func attachEmpty(cgroup string, at ebpf.AttachType) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.CGroupSockAddr,
		AttachType:   at,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
		License:      "GPL",
	})
	if err != nil {
		return fmt.Errorf("load an empty program: %w", err)
	}
	hook, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: at, Program: program})
	if err != nil {
		return fmt.Errorf("attach an empty program: %w", err)
	}
	keep = append(keep, program, hook)
	return nil
}

// keep holds what must not be closed by the garbage collector.
var keep []any

// quiet makes this goroutine's thread the only one that works, on the last CPU.
func quiet() error {
	runtime.GC()
	debug.SetGCPercent(-1)
	runtime.LockOSThread()
	var cpus unix.CPUSet
	cpus.Set(runtime.NumCPU() - 1)
	if err := unix.SchedSetaffinity(0, &cpus); err != nil {
		return fmt.Errorf("pin the thread to a CPU: %w", err)
	}
	return nil
}

// sockaddr is an address as the kernel takes it.
type sockaddr struct {
	raw [unix.SizeofSockaddrInet6]byte
	len uintptr
}

func newSockaddr(addr netip.Addr, port uint16) sockaddr {
	var s sockaddr
	if addr.Is4() {
		s.len = unix.SizeofSockaddrInet4
		sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&s.raw))
		sa.Family, sa.Addr = unix.AF_INET, addr.As4()
	} else {
		s.len = unix.SizeofSockaddrInet6
		sa := (*unix.RawSockaddrInet6)(unsafe.Pointer(&s.raw))
		sa.Family, sa.Addr = unix.AF_INET6, addr.As16()
	}
	s.raw[2], s.raw[3] = byte(port>>8), byte(port)
	return s
}

// targets are the addresses that a batch goes round.
type targets [destinations]sockaddr

func toService(l load, i int, family model.Family) *targets {
	var t targets
	for e := range t {
		t[e] = newSockaddr(l.clusterIP(i, family), servicePort)
	}
	return &t
}

func toEndpoints(l load, i int, family model.Family) *targets {
	var t targets
	for e := range t {
		t[e] = newSockaddr(l.endpoint(i, e, family), endpointPort)
	}
	return &t
}

func toOne(addr netip.Addr, port uint16) *targets {
	var t targets
	for e := range t {
		t[e] = newSockaddr(addr, port)
	}
	return &t
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

func domain(family model.Family) int {
	if family == model.IPv4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// reuse connects the variant's socket again and again.
func (v *variant) reuse() (nsPerCall float64, err error) {
	random := uint32(rand.Uint64() | 1)
	start := threadTime()
	for range connectBatch {
		random ^= random << 13
		random ^= random >> 17
		random ^= random << 5
		t := &v.targets[uint64(random)*destinations>>32]
		_, _, errno := unix.RawSyscall(unix.SYS_CONNECT, v.fd, uintptr(unsafe.Pointer(t)), t.len)
		if errno != 0 {
			return 0, fmt.Errorf("%s: connect: %w", v.name, errno)
		}
	}
	return float64(threadTime()-start) / connectBatch, nil
}

// fresh makes, connects and closes sockets. The process is in the variant's
// cgroup.
func (v *variant) fresh(family model.Family) (nsPerCall float64, err error) {
	random := uint32(rand.Uint64() | 1)
	start := threadTime()
	for range freshBatch {
		random ^= random << 13
		random ^= random >> 17
		random ^= random << 5
		t := &v.targets[uint64(random)*destinations>>32]
		fd, _, errno := unix.RawSyscall(unix.SYS_SOCKET, uintptr(domain(family)), unix.SOCK_DGRAM, 0)
		if errno != 0 {
			return 0, fmt.Errorf("%s: socket: %w", v.name, errno)
		}
		_, _, errno = unix.RawSyscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(t)), t.len)
		if errno != 0 {
			return 0, fmt.Errorf("%s: connect: %w", v.name, errno)
		}
		unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
	}
	return float64(threadTime()-start) / freshBatch, nil
}

// threadTime returns the CPU time of this thread, ns.
func threadTime() int64 {
	var t unix.Timespec
	// It fails for a wrong clock only.
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return t.Nano()
}

// measureReused measures connect() on sockets that have been connected before.
// Each round times every variant once, in an order of its own, and only times of
// one round are compared.
func measureReused(ctx context.Context, s samples, groups map[string]string, l load, family model.Family) error {
	const service, sticky = 4321, 4320
	outside := outside4
	if family == model.IPv6 {
		outside = outside6
	}
	none := toOne(nth(outside, 7), 53)
	variants := []*variant{
		{name: "none/plain", group: plain, targets: none},
		{name: "none/empty", group: empty, targets: none},
		{name: "none/beeline", group: beeline, targets: none},
		{name: "service/plain", group: plain, targets: toEndpoints(l, service, family)},
		{name: "service/empty", group: empty, targets: toEndpoints(l, service, family)},
		{name: "service/beeline", group: beeline, targets: toService(l, service, family)},
		{name: "affinity/empty", group: empty, targets: toOne(l.endpoint(sticky, 3, family), endpointPort)},
		{name: "affinity/beeline", group: beeline, targets: toService(l, sticky, family)},
	}
	for _, v := range variants {
		if err := v.openUDP(groups, family); err != nil {
			return err
		}
		defer unix.Close(int(v.fd))
	}
	return interleave(ctx, connectRounds, variants, (*variant).reuse, func(t times) {
		s.add(family, "connect/none/plain", t["none/plain"])
		s.add(family, "connect/none/hook", t["none/empty"]-t["none/plain"])
		s.add(family, "connect/none", t["none/beeline"]-t["none/empty"])
		clusterIP := t["service/beeline"] - t["service/empty"]
		s.add(family, "connect/service/plain", t["service/plain"])
		s.add(family, "connect/service", clusterIP)
		s.add(family, "connect/affinity", t["affinity/beeline"]-t["affinity/empty"]-clusterIP)
	})
}

// measureFresh measures sockets that live for one connect().
func measureFresh(ctx context.Context, s samples, groups map[string]string, l load, family model.Family) error {
	const service = 4321
	outside := outside4
	if family == model.IPv6 {
		outside = outside6
	}
	none := toOne(nth(outside, 7), 53)
	variants := []*variant{
		{name: "none/empty", group: empty, targets: none},
		{name: "none/beeline", group: beeline, targets: none},
		{name: "service/plain", group: plain, targets: toEndpoints(l, service, family)},
		{name: "service/empty", group: empty, targets: toEndpoints(l, service, family)},
		{name: "service/beeline", group: beeline, targets: toService(l, service, family)},
	}
	once := func(v *variant) (float64, error) {
		if err := join(groups[v.group]); err != nil {
			return 0, err
		}
		return v.fresh(family)
	}
	return interleave(ctx, connectRounds, variants, once, func(t times) {
		s.add(family, "fresh/none", t["none/beeline"]-t["none/empty"])
		s.add(family, "fresh/service/plain", t["service/plain"])
		s.add(family, "fresh/service", t["service/beeline"]-t["service/empty"])
	})
}

// times are the results of one round, by variant.
type times map[string]float64

// interleave times every variant once a round, in random order.
func interleave(ctx context.Context, rounds int, variants []*variant, once func(*variant) (float64, error), round func(times)) error {
	for range rounds {
		if err := ctx.Err(); err != nil {
			return err
		}
		t := make(times)
		for _, i := range rand.Perm(len(variants)) {
			var err error
			if t[variants[i].name], err = once(variants[i]); err != nil {
				return err
			}
		}
		round(t)
	}
	return nil
}
