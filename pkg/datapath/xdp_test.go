package datapath_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/tests/tier"
)

// withXDP returns options for an uplink that is served by XDP.
func withXDP(t *testing.T, mode datapath.XDPMode) (datapath.Options, netlink.Link) {
	t.Helper()
	opts, l := withUplink(t)
	opts.XDP = mode
	return opts, l
}

// xdpOf returns the id of the XDP program that a device runs, 0 for none.
func xdpOf(t *testing.T, l netlink.Link) uint32 {
	t.Helper()
	l, err := netlink.LinkByIndex(l.Attrs().Index)
	must(t, err)
	if l.Attrs().Xdp == nil {
		return 0
	}
	return l.Attrs().Xdp.ProgId
}

// wantXDP fails the test unless the uplink is served so, with a reason that contains
// why.
func wantXDP(t *testing.T, opts datapath.Options, mode datapath.XDPMode, why string) {
	t.Helper()
	list := devices(t, opts)
	if len(list) != 1 {
		t.Fatalf("%d devices are served, want the uplink", len(list))
	}
	if d := list[0]; d.XDP != mode || (d.NoXDP == "") != (why == "") || !strings.Contains(d.NoXDP, why) || d.Mode == "" {
		t.Errorf("served by %q and XDP %q, reason %q; want XDP %q, reason %q", d.Mode, d.XDP, d.NoXDP, mode, why)
	}
}

func TestXDPIsReplacedAndCleanedUp(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts, l := withXDP(t, datapath.XDPNative)
	attach(t, opts)
	wantXDP(t, opts, datapath.XDPNative, "")
	first := xdpOf(t, l)
	attach(t, opts)
	if second := xdpOf(t, l); first == 0 || second == 0 || first == second {
		t.Errorf("the programs of two agents are %d and %d", first, second)
	}
	removed, err := datapath.Cleanup(t.Context(), opts.BPFFS)
	must(t, err)
	if !slices.ContainsFunc(removed, func(path string) bool { return strings.Contains(path, "link_xdp_") }) {
		t.Errorf("the clean-up tells of no XDP link: %q", removed)
	}
	if id := xdpOf(t, l); id != 0 {
		t.Errorf("program %d is left after the clean-up", id)
	}
}

func TestXDPIsTakenOffWhenOff(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	opts, l := withXDP(t, datapath.XDPNative)
	attach(t, opts)
	opts.XDP = datapath.XDPOff
	attach(t, opts)
	wantXDP(t, opts, datapath.XDPOff, "")
	if id := xdpOf(t, l); id != 0 {
		t.Errorf("program %d is still attached", id)
	}
}

// TestXDPModeChanges: an agent replaces the program of one that ran in the other mode.
func TestXDPModeChanges(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts, l := withXDP(t, datapath.XDPNative)
	last := uint32(0)
	modes := []datapath.XDPMode{datapath.XDPGeneric, datapath.XDPNative, datapath.XDPGeneric, datapath.XDPGeneric}
	if !tier.All(t) {
		modes = modes[:2] // to each of them once
	}
	for _, mode := range modes {
		opts.XDP = mode
		attach(t, opts)
		wantXDP(t, opts, mode, "")
		id := xdpOf(t, l)
		if id == 0 || id == last {
			t.Errorf("with XDP %s the device runs program %d, before %d", mode, id, last)
		}
		last = id
	}
	opts.XDP = datapath.XDPAuto
	attach(t, opts)
	wantXDP(t, opts, datapath.XDPOff, "veth")
	if id := xdpOf(t, l); id != 0 {
		t.Errorf("program %d is still attached", id)
	}
}

func TestXDPAutoLeavesVeth(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	opts, l := withXDP(t, datapath.XDPAuto)
	attach(t, opts)
	wantXDP(t, opts, datapath.XDPOff, "veth")
	if id := xdpOf(t, l); id != 0 {
		t.Errorf("program %d is attached", id)
	}
}

func TestXDPOfADriverWithoutIt(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	opts, _ := withXDP(t, datapath.XDPNative)
	opts.Devices = []string{"tunnel"}
	must(t, netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "tunnel"}, VxlanId: 7, Port: 4789}))
	attach(t, opts)
	wantXDP(t, opts, datapath.XDPOff, "its driver (vxlan) has no native XDP")
	opts.XDP = datapath.XDPGeneric
	attach(t, opts)
	wantXDP(t, opts, datapath.XDPGeneric, "")
	if d := devices(t, opts)[0]; !d.XDPSend || d.XDPSendBuffers {
		t.Errorf("XDP sends frames by it: %v, such as lie in several buffers: %v; want the former alone", d.XDPSend, d.XDPSendBuffers)
	}
}

// TestXDPKnowsTheDevicesAddress: also when it changes, and of two devices where there is
// place for one.
func TestXDPKnowsTheDevicesAddress(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts, l := withXDP(t, datapath.XDPNative)
	opts.Devices = []string{uplink, "second"}
	other := netlink.NewVeth(netlink.LinkAttrs{Name: "second", Index: l.Attrs().Index + devicemap.MACPlaces})
	other.PeerName = "elsewhere"
	must(t, netlink.LinkAdd(other))
	d := prepare(t, opts)
	defer d.Close()
	must(t, d.Attach(t.Context()))
	for _, mac := range []devicemap.MAC{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}} {
		must(t, netlink.LinkSetHardwareAddr(l, mac[:]), d.SyncDevices(t.Context()))
		macs, err := devicemap.New(d.Maps()).MACs()
		if want := map[int]devicemap.MAC{l.Attrs().Index: mac}; err != nil || !maps.Equal(macs, want) {
			t.Errorf("XDP knows %v, want %v: %v", macs, want, err)
		}
	}
	list := devices(t, opts)
	if len(list) != 2 || list[0].XDP != datapath.XDPNative || list[1].XDP != datapath.XDPOff || !strings.Contains(list[1].NoXDP, "low bits of that of "+uplink) {
		t.Errorf("served: %+v", list)
	}
}

// TestXDPProgramInTheWay: a device that runs somebody else's program keeps it and is
// served by tc; once it is gone ours takes its place.
func TestXDPProgramInTheWay(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	opts, l := withXDP(t, datapath.XDPNative)
	other, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "firewall",
		Type:         ebpf.XDP,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
		License:      "GPL",
	})
	must(t, err)
	defer other.Close()
	held, err := link.AttachXDP(link.XDPOptions{Program: other, Interface: l.Attrs().Index, Flags: link.XDPDriverMode})
	must(t, err)
	id := xdpOf(t, l)
	d := prepare(t, opts)
	defer d.Close()
	must(t, d.Attach(t.Context()))
	wantXDP(t, opts, datapath.XDPOff, fmt.Sprintf("device in use: XDP program firewall (id %d), no dispatcher of libxdp", id))
	if xdpOf(t, l) != id {
		t.Error("the other program is gone")
	}
	must(t, held.Close(), d.SyncDevices(t.Context()))
	wantXDP(t, opts, datapath.XDPNative, "")
}

func TestXDPDeviceThatComesBackIsServedAgain(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts, l := withXDP(t, datapath.XDPNative)
	d := prepare(t, opts)
	defer d.Close()
	must(t, d.Attach(t.Context()), netlink.LinkDel(l), d.SyncDevices(t.Context()))
	if list := devices(t, opts); len(list) != 0 {
		t.Errorf("devices are served although there are none: %v", list)
	}
	addUplink(t)
	must(t, d.SyncDevices(t.Context()))
	wantXDP(t, opts, datapath.XDPNative, "")
}
