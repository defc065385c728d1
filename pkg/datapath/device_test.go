package datapath_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// uplink is the device of the default route. The dot may not be in a pin's name.
const uplink = "eth0.7"

// inNamespace moves the test to a network namespace that ends with it. To be called
// after [place]: what that cleans up is cleaned up here, too.
func inNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// addUplink makes the device of the default route.
func addUplink(t *testing.T) netlink.Link {
	t.Helper()
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: uplink})
	veth.PeerName = "wire"
	must(t, netlink.LinkAdd(veth))
	for _, name := range []string{uplink, "wire"} {
		l, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(l))
	}
	addAddr(t, veth, "192.0.2.1/24")
	must(t, netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(192, 0, 2, 254)}))
	return veth
}

// withUplink moves the test to a network namespace with an uplink, which options choose by
// themselves.
func withUplink(t *testing.T) (datapath.Options, netlink.Link) {
	t.Helper()
	opts := place(t)
	inNamespace(t)
	opts.Devices = []string{datapath.DevicesAuto}
	return opts, addUplink(t)
}

func addAddr(t *testing.T, l netlink.Link, cidr string) {
	t.Helper()
	addr, err := netlink.ParseAddr(cidr)
	must(t, err)
	must(t, netlink.AddrAdd(l, addr))
}

// eachMode runs a test with an uplink once for each TC mode.
func eachMode(t *testing.T, test func(*testing.T, datapath.Options, netlink.Link)) {
	for _, mode := range []datapath.TCMode{datapath.TCX, datapath.TCClsact} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			have := lab.HaveTCX(t)
			if mode == datapath.TCX && !have {
				t.Skip("the kernel lacks tcx links: they need Linux 6.6")
			}
			tier.Variant(t, (mode == datapath.TCX) == have)
			opts, l := withUplink(t)
			opts.TC = mode
			test(t, opts, l)
		})
	}
}

// devices returns what a look at the node shows.
func devices(t *testing.T, opts datapath.Options) []datapath.Device {
	t.Helper()
	maps, err := bpfmap.Open(datapath.Dir(opts.BPFFS))
	must(t, err)
	defer maps.Close()
	list, err := datapath.Devices(opts.BPFFS, maps)
	must(t, err)
	return list
}

// tcxPins returns the names of the pins of links to devices.
func tcxPins(t *testing.T, opts datapath.Options) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(datapath.Dir(opts.BPFFS), "link_tcx_*"))
	must(t, err)
	return paths
}

// attachedPrograms returns the ids of the programs at a device's hooks, whoever
// attached them.
func attachedPrograms(t *testing.T, l netlink.Link) []uint32 {
	t.Helper()
	var ids []uint32
	for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		if !lab.HaveTCX(t) {
			break
		}
		result, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: at})
		must(t, err)
		for _, p := range result.Programs {
			ids = append(ids, uint32(p.ID))
		}
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := netlink.FilterList(l, parent)
		must(t, err)
		for _, f := range filters {
			ids = append(ids, uint32(f.(*netlink.BpfFilter).Id))
		}
	}
	return ids
}

func hasClsact(t *testing.T, l netlink.Link) bool {
	t.Helper()
	qdiscs, err := netlink.QdiscList(l)
	must(t, err)
	return slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "clsact" })
}

func TestDevicesAreServedAndCleanedUp(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, opts datapath.Options, l netlink.Link) {
		attach(t, opts)
		list := devices(t, opts)
		if len(list) != 1 {
			t.Fatalf("served: %+v, want %s alone", list, uplink)
		}
		d := list[0]
		if d.Name != uplink || d.Reason != "default route" || d.Addr4 != netip.MustParseAddr("192.0.2.1") || d.Mode != opts.TC {
			t.Errorf("served: %+v", d)
		}
		if n := len(attachedPrograms(t, l)); n != 2 {
			t.Errorf("%d programs are attached, want 2", n)
		}
		if _, err := datapath.Cleanup(t.Context(), opts.BPFFS); err != nil {
			t.Fatal(err)
		}
		if left := attachedPrograms(t, l); len(left) > 0 || hasClsact(t, l) {
			t.Errorf("left after the clean-up: programs %d, clsact %v", left, hasClsact(t, l))
		}
	})
}

func TestNewAgentReplacesProgramsOfDevices(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, opts datapath.Options, l netlink.Link) {
		attach(t, opts)
		id, before := devices(t, opts)[0].ID, attachedPrograms(t, l)
		attach(t, opts)
		after := attachedPrograms(t, l)
		if len(after) != 2 {
			t.Fatalf("programs %d, want 2", after)
		}
		for _, p := range before {
			if slices.Contains(after, p) {
				t.Errorf("program %d of the former agent is still attached", p)
			}
		}
		if got := devices(t, opts)[0].ID; got != id {
			t.Errorf("the device's ID is %d, was %d", got, id)
		}
	})
}

func TestAnotherWayOfAttachingLeavesNothingOfTheFormer(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	eachMode(t, func(t *testing.T, opts datapath.Options, l netlink.Link) {
		if !lab.HaveTCX(t) {
			t.Skip("needs two ways of attaching")
		}
		other := opts
		other.TC = datapath.TCX
		if opts.TC == datapath.TCX {
			other.TC = datapath.TCClsact
		}
		attach(t, other)
		attach(t, opts)
		if n := len(attachedPrograms(t, l)); n != 2 || devices(t, opts)[0].Mode != opts.TC {
			t.Errorf("%d programs are attached, by %s; want 2 by %s", n, devices(t, opts)[0].Mode, opts.TC)
		}
		if opts.TC == datapath.TCX && hasClsact(t, l) {
			t.Error("the clsact qdisc that the agent made is still there")
		}
		if opts.TC == datapath.TCClsact && len(tcxPins(t, opts)) > 0 {
			t.Errorf("pins of links are still there: %q", tcxPins(t, opts))
		}
	})
}

// counting returns a program that lets every packet pass and the map of one entry
// that it counts in.
func counting(t *testing.T) (*ebpf.Program, *ebpf.Map) {
	t.Helper()
	counter, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	must(t, err)
	t.Cleanup(func() { counter.Close() })
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "other",
		Type: ebpf.SchedCLS,
		Instructions: asm.Instructions{
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, counter.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "pass"),
			asm.Mov.Imm(asm.R1, 1),
			asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
			asm.Mov.Imm(asm.R0, -1).WithSymbol("pass"),
			asm.Return(),
		},
		License: "GPL",
	})
	must(t, err)
	t.Cleanup(func() { program.Close() })
	return program, counter
}

// attachOther attaches another program to egress, in the same TC mode.
func attachOther(t *testing.T, mode datapath.TCMode, l netlink.Link, program *ebpf.Program) {
	t.Helper()
	if mode == datapath.TCX {
		held, err := link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: program, Attach: ebpf.AttachTCXEgress})
		must(t, err)
		t.Cleanup(func() { held.Close() })
		return
	}
	must(t, netlink.QdiscReplace(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}))
	must(t, netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_EGRESS,
			Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 50,
		},
		Fd: program.FD(), Name: "other", DirectAction: true,
	}))
}

// sees reports whether a packet that leaves by the uplink comes to the program of
// the counter.
func sees(t *testing.T, counter *ebpf.Map) bool {
	t.Helper()
	var before, after uint64
	must(t, counter.Lookup(uint32(0), &before))
	conn, err := net.Dial("udp", "192.0.2.255:9")
	must(t, err)
	defer conn.Close()
	raw, err := conn.(*net.UDPConn).SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1) }))
	_, err = conn.Write([]byte("x"))
	must(t, err)
	must(t, counter.Lookup(uint32(0), &after))
	return after > before
}

func TestOtherProgramsOfTheHookGoOn(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	eachMode(t, func(t *testing.T, opts datapath.Options, l netlink.Link) {
		program, counter := counting(t)
		attachOther(t, opts.TC, l, program)
		attach(t, opts)
		attach(t, opts)
		if !sees(t, counter) {
			t.Error("the other program sees no packet beside ours")
		}
		if n := len(attachedPrograms(t, l)); n != 3 {
			t.Errorf("%d programs are attached, want ours and the other", n)
		}
		if _, err := datapath.Cleanup(t.Context(), opts.BPFFS); err != nil {
			t.Fatal(err)
		}
		if n := len(attachedPrograms(t, l)); n != 1 || !sees(t, counter) {
			t.Errorf("after our clean-up %d programs are attached, and the other sees packets: %v", n, sees(t, counter))
		}
	})
}

func TestQdiscInUseStays(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts, l := withUplink(t)
	opts.TC = datapath.TCClsact
	attach(t, opts)
	program, counter := counting(t)
	attachOther(t, opts.TC, l, program)
	if _, err := datapath.Cleanup(t.Context(), opts.BPFFS); err != nil {
		t.Fatal(err)
	}
	if !sees(t, counter) {
		t.Error("our clean-up took the qdisc away from another program")
	}
}

func TestDeviceThatComesBackIsServedAgain(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	eachMode(t, func(t *testing.T, opts datapath.Options, l netlink.Link) {
		d := prepare(t, opts)
		defer d.Close()
		must(t, d.Attach(t.Context()))
		id := devices(t, opts)[0].ID

		must(t, netlink.LinkDel(l))
		must(t, d.SyncDevices(t.Context()))
		if list, pins := devices(t, opts), tcxPins(t, opts); len(list) > 0 || len(pins) > 0 {
			t.Errorf("the device is gone; served: %+v, pins: %q", list, pins)
		}

		l = addUplink(t)
		must(t, d.SyncDevices(t.Context()))
		list := devices(t, opts)
		if len(list) != 1 || list[0].ID != id || list[0].Mode != opts.TC || list[0].Ifindex != l.Attrs().Index {
			t.Errorf("served: %+v; want %s with ID %d by %s", list, uplink, id, opts.TC)
		}
	})
}

func TestDeviceMadeAgainUnnoticed(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	eachMode(t, func(t *testing.T, opts datapath.Options, l netlink.Link) {
		attach(t, opts)
		must(t, netlink.LinkDel(l))
		l = addUplink(t)
		attach(t, opts)
		if list := devices(t, opts); len(list) != 1 || list[0].Ifindex != l.Attrs().Index || list[0].Mode != opts.TC {
			t.Errorf("served: %+v", list)
		}
		if pins := tcxPins(t, opts); opts.TC == datapath.TCX && len(pins) != 2 {
			t.Errorf("pins: %q, want two", pins)
		}
	})
}

func TestDeviceThatIsNoLongerChosenIsLeft(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	eachMode(t, func(t *testing.T, opts datapath.Options, l netlink.Link) {
		attach(t, opts)
		opts.Devices = []string{datapath.DevicesNone}
		attach(t, opts)
		if left := attachedPrograms(t, l); len(left) > 0 || hasClsact(t, l) || len(devices(t, opts)) > 0 {
			t.Errorf("left: programs %d, clsact %v, served %+v", left, hasClsact(t, l), devices(t, opts))
		}
	})
}

func TestSourceAddressStaysWhileTheDeviceHasIt(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts, l := withUplink(t)
	d := prepare(t, opts)
	defer d.Close()
	must(t, d.Attach(t.Context()))
	addAddr(t, l, "198.51.100.1/24")
	must(t, d.SyncDevices(t.Context()))
	if got := devices(t, opts)[0].Addr4; got != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("with a second address the source became %s", got)
	}
	addr, err := netlink.ParseAddr("192.0.2.1/24")
	must(t, err)
	must(t, netlink.AddrDel(l, addr))
	must(t, d.SyncDevices(t.Context()))
	if got := devices(t, opts)[0].Addr4; got != netip.MustParseAddr("198.51.100.1") {
		t.Errorf("the source is %s, and the device holds only 198.51.100.1", got)
	}
}

// TestSourceAddressIsReplaced: an agent that is started takes a better source than the former one, and the flows of
// that keep theirs, as long as the machine has it; one that has begun already changes it for all.
func TestSourceAddressIsReplaced(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	eachMode(t, func(t *testing.T, opts datapath.Options, l netlink.Link) {
		addAddr(t, l, "198.51.100.1/24")
		addAddr(t, l, "203.0.113.1/24")
		opts.WithoutNode = true
		start := func(nodeIP string) *datapath.Datapath {
			opts.NodeAddrs = []netip.Addr{netip.MustParseAddr(nodeIP)}
			d := prepare(t, opts)
			must(t, d.Attach(t.Context()))
			return d
		}
		check := func(when string, d *datapath.Datapath, want ...devicemap.Device) {
			t.Helper()
			list, err := devicemap.New(d.Maps()).List()
			if err != nil || len(list) != len(want) {
				t.Fatalf("%s: %+v, %v", when, list, err)
			}
			for i, w := range want {
				if have := list[i]; have.Ifindex != w.Ifindex || have.Ifindex != 0 && (have.Addr4 != w.Addr4 || have.MTU != w.MTU || have.Replaced() != w.Replaced()) {
					t.Errorf("%s: device %d is %+v, want %+v", when, i+1, have, w)
				}
			}
			if served := devices(t, opts); len(served) != 1 || served[0].Addr4 != want[len(want)-1].Addr4 || served[0].Mode != opts.TC {
				t.Errorf("%s: served are %+v", when, served)
			}
			if found, err := d.MendPrograms(t.Context()); err != nil || found != 0 {
				t.Errorf("%s: %d things were mended, %v", when, found, err)
			}
		}
		first := devicemap.Device{Ifindex: l.Attrs().Index, Addr4: netip.MustParseAddr("192.0.2.1"), MTU: 1500}
		second := first
		second.Addr4 = netip.MustParseAddr("198.51.100.1")

		d := start("192.0.2.1")
		check("at first", d, first)
		must(t, d.Close())
		d = start("198.51.100.1")
		first.Reason = devicemap.ReasonReplaced
		check("with another node IP", d, first, second)
		must(t, netlink.LinkSetMTU(l, 1400), d.SyncDevices(t.Context()))
		first.MTU, second.MTU = 1400, 1400
		check("with another MTU", d, first, second)
		must(t, d.Close())
		d = start("198.51.100.1")
		check("started again", d, first, second)
		d.SetNodeAddrs([]netip.Addr{netip.MustParseAddr("203.0.113.1")})
		must(t, d.SyncDevices(t.Context()))
		second.Addr4 = netip.MustParseAddr("203.0.113.1")
		check("with another node IP meanwhile", d, first, second)
		addr, err := netlink.ParseAddr("192.0.2.1/24")
		must(t, err, netlink.AddrDel(l, addr), d.SyncDevices(t.Context()))
		check("without the first address", d, devicemap.Device{}, second)
		must(t, d.Close())
	})
}

func TestNodeIPChoosesItsDevice(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts, _ := withUplink(t)
	addAddr(t, addDevice(t, "br0"), "203.0.113.7/24")
	d := prepare(t, opts)
	defer d.Close()
	must(t, d.Attach(t.Context()))
	d.SetNodeAddrs([]netip.Addr{netip.MustParseAddr("203.0.113.7")})
	must(t, d.SyncDevices(t.Context()))
	list := devices(t, opts)
	if len(list) != 2 || list[1].Name != "br0" || list[1].Reason != "holds node IP 203.0.113.7" || list[1].Mode == "" {
		t.Errorf("served: %+v", list)
	}
}

// TestNodeNotKnownYet: a device that a former agent knew by a node IP alone is served, and the ranges of
// pods stay, before the agent knows the Nodes, which it may attach earlier than; and as long as the
// Node has no IP.
func TestNodeNotKnownYet(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts, _ := withUplink(t)
	opts.Internal.OfNode = true
	bridge := addDevice(t, "br0")
	addAddr(t, bridge, "203.0.113.7/24")
	nodeIP, pods := netip.MustParseAddr("203.0.113.7"), []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	others := []netip.Prefix{netip.MustParsePrefix("10.244.7.0/24")}
	d := prepare(t, opts)
	must(t, d.Attach(t.Context()))
	d.SetNodeAddrs([]netip.Addr{nodeIP})
	d.SetOwnPods(pods)
	d.SetPodsOfNodes(others)
	must(t, d.SyncDevices(t.Context()))
	must(t, d.Close())

	check := func(when string, d *datapath.Datapath, served bool, ranges []netip.Prefix) {
		t.Helper()
		if got := len(attachedPrograms(t, bridge)) > 0; got != served {
			t.Errorf("%s the device with the node IP is served: %t, want %t", when, got, served)
		}
		if got, err := devicemap.New(d.Maps()).LocalCIDRs(); err != nil || !slices.Equal(got, ranges) {
			t.Errorf("%s pods are in %v, %v, want %v", when, got, err, ranges)
		}
	}
	opts.Sizes.Flows *= 4
	d = prepare(t, opts)
	check("after an early attach", d, true, slices.Concat(pods, others))
	must(t, d.Attach(t.Context()))
	check("without the Node", d, true, slices.Concat(pods, others))
	d.SetNodeAddrs(nil)
	d.SetOwnPods(nil)
	must(t, d.SyncDevices(t.Context()))
	check("with a Node without addresses", d, true, slices.Concat(pods, others))
	other := []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}
	d.SetNodeAddrs([]netip.Addr{netip.MustParseAddr("192.0.2.1")})
	d.SetOwnPods(other)
	must(t, d.SyncDevices(t.Context()))
	check("with another node IP", d, false, slices.Concat(pods, other, others))
	d.SetPodsOfNodes(nil)
	must(t, d.SyncDevices(t.Context()))
	check("without a tunnel", d, false, other)
	must(t, d.Close())

	opts.Internal.OfNode = false
	d = prepare(t, opts)
	d.SetPodsOfNodes(nil)
	must(t, d.Attach(t.Context()))
	check("without ranges of the Node", d, false, nil)
	d.SetNodeAddrs([]netip.Addr{nodeIP})
	must(t, d.SyncDevices(t.Context()))
	check("with the node IP again", d, true, nil)
	must(t, d.Close())
	for _, tc := range []struct {
		given  string
		served bool
	}{{"2001:db8::7", true}, {"192.0.2.1", false}} {
		opts.NodeAddrs = []netip.Addr{netip.MustParseAddr(tc.given)}
		d = prepare(t, opts)
		must(t, d.Attach(t.Context()))
		check("given "+tc.given+" alone", d, tc.served, nil)
		must(t, d.Close())
	}
}

// TestNodeIPForgotten: without a Node object, a node IP that is not configured any more is none.
func TestNodeIPForgotten(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts, _ := withUplink(t)
	addAddr(t, addDevice(t, "br0"), "203.0.113.7/24")
	opts.WithoutNode, opts.NodeAddrs = true, []netip.Addr{netip.MustParseAddr("203.0.113.7")}
	for _, served := range []int{2, 1} {
		d := prepare(t, opts)
		must(t, d.Attach(t.Context()))
		if list := devices(t, opts); len(list) != served {
			t.Errorf("with the node IPs %v served: %+v, want %d devices", opts.NodeAddrs, list, served)
		}
		must(t, d.Close())
		opts.NodeAddrs = nil
	}
}

func TestOverlayGetsTheNodesAddress(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts, l := withUplink(t)
	must(t, netlink.LinkAdd(&netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: "overlay"}, VxlanId: 7, VtepDevIndex: l.Attrs().Index, Port: 4789,
	}))
	overlay, err := netlink.LinkByName("overlay")
	must(t, err)
	must(t, netlink.LinkSetUp(overlay))
	attach(t, opts)
	list := devices(t, opts)
	if len(list) != 2 || list[1].Reason != "overlay (vxlan)" || list[1].Addr4 != netip.MustParseAddr("192.0.2.1") || list[1].Mode == "" {
		t.Errorf("served: %+v", list)
	}
}

func TestDeviceWithoutEthernetHeader(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	eachMode(t, func(t *testing.T, opts datapath.Options, _ netlink.Link) {
		tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN, Queues: 1}
		if err := netlink.LinkAdd(tun); err != nil {
			t.Skipf("needs tun devices: %v", err)
		}
		t.Cleanup(func() {
			for _, f := range tun.Fds {
				f.Close()
			}
		})
		must(t, netlink.LinkSetUp(tun))
		attach(t, opts)
		list := devices(t, opts)
		if len(list) != 2 || list[1].Name != "tun0" || !list[1].NoEthernet || list[0].NoEthernet || list[1].Mode != opts.TC {
			t.Fatalf("served: %+v", list)
		}
		for _, id := range attachedPrograms(t, tun) {
			program, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
			must(t, err)
			info, err := program.Info()
			must(t, err, program.Close())
			if !strings.HasSuffix(info.Name, "_l3") {
				t.Errorf("%s is attached to a device without Ethernet header", info.Name)
			}
		}
	})
}

func TestWithoutDevicesSocketsAreServed(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	inNamespace(t)
	opts.Devices = []string{datapath.DevicesAuto}
	attach(t, opts)
	if list, programs := devices(t, opts), links(t, opts); len(list) > 0 || len(programs) != 9 {
		t.Errorf("devices %+v, %d programs of sockets; want none and 9", list, len(programs))
	}
}

func TestDevicesAreLeftAloneBeforeAttach(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts, l := withUplink(t)
	d := prepare(t, opts)
	defer d.Close()
	must(t, d.SyncDevices(t.Context()))
	if programs := attachedPrograms(t, l); len(programs) > 0 {
		t.Errorf("programs %d are attached before Attach", programs)
	}
}

func TestDevicesOfThePreparingThreadsNamespace(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts, _ := withUplink(t)
	d := prepare(t, opts)
	defer d.Close()
	done := make(chan error)
	go func() { done <- d.Attach(t.Context()) }() // on a thread of the test process's namespace
	must(t, <-done)
	if list := devices(t, opts); len(list) != 1 || list[0].Mode == "" {
		t.Errorf("served: %+v, want %s", list, uplink)
	}
}

func TestUnknownTCModeIsRejected(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	opts.TC = "xdp"
	_, err := datapath.Prepare(t.Context(), opts)
	if err == nil || !strings.Contains(err.Error(), "tcx or clsact") {
		t.Errorf("got %v, want what is allowed", err)
	}
	if pins, err := os.ReadDir(datapath.Dir(opts.BPFFS)); err != nil || len(pins) > 0 {
		t.Errorf("left: %v, %v", pins, err)
	}
}
