package datapath_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
)

// TestProgramsOfPodsDevices: an agent leaves at a pod's device what its own settings
// ask for, whatever a former one did and by which way.
func TestProgramsOfPodsDevices(t *testing.T) {
	eachMode(t, func(t *testing.T, opts datapath.Options, _ netlink.Link) {
		pod, err := netlink.LinkByName("wire")
		must(t, err)
		other := opts
		if other.TC = datapath.TCX; opts.TC == datapath.TCX || !haveTCX(t) {
			other.TC = datapath.TCClsact
		}
		for _, step := range []struct {
			name       string
			opts       datapath.Options
			pod        bool
			masquerade bool
			want       int
		}{
			{"a pod's", opts, true, false, 2},
			{"of a backend", opts, false, true, 1},
			{"both", opts, true, true, 2},
			{"of a backend, the other way", other, false, true, 1},
			{"a pod's, the first way", opts, true, false, 2},
			{"none", opts, false, false, 0},
			{"of a backend, again", opts, false, true, 1},
			{"none, the other way", other, false, false, 0},
		} {
			if step.opts.MasqueradeAll = step.masquerade; step.pod {
				step.opts.PodDevices = []string{"wire"}
			}
			attach(t, step.opts)
			if got := attachedPrograms(t, pod); len(got) != step.want {
				t.Errorf("%s: %d programs are attached, want %d", step.name, len(got), step.want)
			}
		}
	})
}

// TestInternalCIDRs: they are in the maps when the programs are at work, and follow.
func TestInternalCIDRs(t *testing.T) {
	opts := place(t)
	inNamespace(t)
	first, second := netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd44:0:0:1::/64")
	opts.Internal.CIDRs = []netip.Prefix{first}
	d := prepare(t, opts)
	must(t, d.Attach())
	for _, want := range [][]netip.Prefix{{first}, {first, second}, {second}, {}} {
		d.SetInternalCIDRs(want)
		must(t, d.SyncDevices())
		got, err := d.Maps().LocalCIDRs()
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("internal are %v, %v, want %v", got, err, want)
		}
	}
	must(t, d.Close())
}

// TestInternalDevices: a device counts as internal by its whole name or its
// beginning.
func TestInternalDevices(t *testing.T) {
	for _, tc := range []struct {
		internal datapath.Internal
		want     bool
	}{
		{datapath.Internal{}, false},
		{datapath.Internal{Bridge: uplink}, true},
		{datapath.Internal{Bridge: "eth0"}, false},
		{datapath.Internal{InterfacePrefix: "eth0"}, true},
		{datapath.Internal{InterfacePrefix: "0.7"}, false},
	} {
		opts := place(t)
		inNamespace(t)
		addUplink(t)
		opts.Devices, opts.Internal = []string{datapath.DevicesAuto}, tc.internal
		attach(t, opts)
		if got := devices(t, opts); len(got) != 1 || got[0].Internal != tc.want {
			t.Errorf("%+v: devices %+v, want %s with internal %t", tc.internal, got, uplink, tc.want)
		}
	}
}

// TestMasqueradeAddress: it is the node's own, else one of the device of the default
// route, and stays while the machine has it.
func TestMasqueradeAddress(t *testing.T) {
	opts := place(t)
	inNamespace(t)
	l := addUplink(t)
	opts.Devices, opts.MasqueradeAll = []string{datapath.DevicesAuto}, true
	address := func() netip.Addr {
		t.Helper()
		attach(t, opts)
		maps, err := bpfmap.Open(datapath.Dir(opts.BPFFS))
		must(t, err)
		addr, _, err := maps.Masquerade()
		must(t, errors.Join(err, maps.Close()))
		return addr
	}
	if got := address(); got != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("without a node IP it is %s", got)
	}
	addAddr(t, l, "198.51.100.1/24")
	opts.NodeAddrs = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
	if got := address(); got != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("with another node IP it becomes %s", got)
	}
	addr, err := netlink.ParseAddr("192.0.2.1/24")
	must(t, err, netlink.AddrDel(l, addr))
	if got := address(); got != netip.MustParseAddr("198.51.100.1") {
		t.Errorf("with the former address gone it is %s", got)
	}
}
