package datapath_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// TestProgramsOfPodsDevices: an agent leaves at a pod's device what its own settings
// ask for, whatever a former one did and in which TC mode.
func TestProgramsOfPodsDevices(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	eachMode(t, func(t *testing.T, opts datapath.Options, _ netlink.Link) {
		pod, err := netlink.LinkByName("wire")
		must(t, err)
		other := opts
		if other.TC = datapath.TCX; opts.TC == datapath.TCX || !lab.HaveTCX(t) {
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
			{"of a backend", opts, false, true, 2},
			{"both, the other way", other, true, true, 2},
			{"of a backend, the first way", opts, false, true, 2},
		} {
			if step.opts.MasqueradeAll = step.masquerade; step.pod {
				step.opts.PodDevices = []string{"wire"}
			}
			attach(t, step.opts)
			if got := attachedPrograms(t, pod); len(got) != step.want {
				t.Errorf("%s: %d programs are attached, want %d", step.name, len(got), step.want)
			}
		}
		before := time.Now()
		opts.MasqueradeAll = false
		d := prepare(t, opts)
		must(t, d.Attach(t.Context()))
		for _, step := range []struct {
			name string
			when time.Time
			want int
		}{
			{"no flow was left before it was attached", before, 2},
			{"no flow is left", time.Now(), 0},
		} {
			must(t, d.EndMasquerade(t.Context(), step.when))
			if got := attachedPrograms(t, pod); len(got) != step.want {
				t.Errorf("%s: %d programs are attached, want %d", step.name, len(got), step.want)
			}
		}
		must(t, d.Close())
	})
}

// TestRangesOfPods: they are in the maps when the programs are at work, and follow.
func TestRangesOfPods(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	inNamespace(t)
	first, second := netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd44:0:0:1::/64")
	third := netip.MustParsePrefix("fd44:0:0:7::/64")
	opts.ClusterCIDRs = []netip.Prefix{first}
	d := prepare(t, opts)
	must(t, d.Attach(t.Context()))
	for _, step := range []struct{ own, nodes, want []netip.Prefix }{
		{nil, nil, []netip.Prefix{first}},
		{[]netip.Prefix{second}, nil, []netip.Prefix{first, second}},
		{[]netip.Prefix{second}, []netip.Prefix{first, second, third}, []netip.Prefix{first, second, third}},
		{nil, []netip.Prefix{third}, []netip.Prefix{first, third}},
		{nil, nil, []netip.Prefix{first}},
	} {
		d.SetOwnPods(step.own)
		d.SetPodsOfNodes(step.nodes)
		must(t, d.SyncDevices(t.Context()))
		got, err := devicemap.New(d.Maps()).LocalCIDRs()
		if err != nil || !slices.Equal(got, step.want) {
			t.Errorf("pods are in %v, %v, want %v", got, err, step.want)
		}
	}
	must(t, d.Close())
}

// TestMasqueradeAddress: it is the node's own, else one of the device of the default
// route, and stays while the machine has it.
func TestMasqueradeAddress(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts, l := withUplink(t)
	opts.MasqueradeAll = true
	d := prepare(t, opts)
	must(t, d.Attach(t.Context()))
	check := func(when, want string) {
		t.Helper()
		must(t, d.SyncDevices(t.Context()))
		if got, _, err := devicemap.New(d.Maps()).Masquerade(); err != nil || got != netip.MustParseAddr(want) {
			t.Errorf("%s it is %s, %v, want %s", when, got, err, want)
		}
	}
	check("without a node IP", "192.0.2.1")
	addAddr(t, l, "198.51.100.1/24")
	d.SetNodeAddrs([]netip.Addr{netip.MustParseAddr("198.51.100.1")})
	check("with another node IP", "192.0.2.1")
	addr, err := netlink.ParseAddr("192.0.2.1/24")
	must(t, err, netlink.AddrDel(l, addr))
	check("with the former address gone", "198.51.100.1")
	must(t, d.Close())
}
