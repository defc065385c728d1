package lab

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// HaveTCX reports whether the kernel has tcx links. Kernels before Linux 6.6 take the question
// about a device's programs for a wrong one.
func HaveTCX(t testing.TB) bool {
	t.Helper()
	needRoot(t)
	_, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXIngress})
	if err != nil && !errors.Is(err, unix.EINVAL) {
		t.Fatal(err)
	}
	return err == nil
}

// AttachTCX attaches a program to a device of the namespace, until the test ends.
func (n *Namespace) AttachTCX(device string, program *ebpf.Program, at ebpf.AttachType, anchor link.Anchor) {
	n.t.Helper()
	err := n.Run(func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		attached, err := link.AttachTCX(link.TCXOptions{Program: program, Interface: l.Attrs().Index, Attach: at, Anchor: anchor})
		if err == nil {
			n.t.Cleanup(func() { attached.Close() })
		}
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
}

// FillTCX attaches as many programs to a device's egress as the kernel lets, so that no other can
// be attached by tcx, until the returned function is called. The device is one of the calling
// thread's network namespace.
func FillTCX(t testing.TB, ifindex int) (empty func()) {
	t.Helper()
	var links []link.Link
	empty = func() {
		for _, l := range links {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		links = nil
	}
	t.Cleanup(func() { empty() })
	for {
		l, err := attachTCX(ifindex)
		if errors.Is(err, unix.ERANGE) {
			return empty
		}
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, l)
	}
}

// attachTCX attaches a program that does nothing.
func attachTCX(ifindex int) (link.Link, error) {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}, License: "GPL",
	})
	if err != nil {
		return nil, err
	}
	defer program.Close()
	return link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: program, Attach: ebpf.AttachTCXEgress})
}
