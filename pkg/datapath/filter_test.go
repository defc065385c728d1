package datapath_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/tests/tier"
)

// otherFilter is a filter of somebody else at ingress of a device.
type otherFilter struct {
	name       string
	priority   uint16
	protocol   uint16 // 0 is all
	classifier bool   // selects packets, and does nothing to them
}

// add adds the filter by a handle of its own: the one that is added last runs first among those of a
// priority.
func (o otherFilter) add(t *testing.T, l netlink.Link, handle uint32) *netlink.BpfFilter {
	t.Helper()
	program, _ := counting(t)
	f := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{
		LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: handle,
		Priority: o.priority, Protocol: unix.ETH_P_ALL,
	}, Fd: program.FD(), Name: o.name, DirectAction: !o.classifier}
	if o.protocol != 0 {
		f.Protocol = o.protocol
	}
	must(t, netlink.FilterAdd(f))
	return f
}

// filterNames returns the names and priorities of the filters at ingress, as the kernel runs them.
func filterNames(t *testing.T, l netlink.Link) (names []string) {
	t.Helper()
	filters, err := netlink.FilterList(l, netlink.HANDLE_MIN_INGRESS)
	must(t, err)
	for _, f := range filters {
		names = append(names, fmt.Sprintf("%s %d", f.(*netlink.BpfFilter).Name, f.Attrs().Priority))
	}
	return names
}

// withClsact is [withUplink] where the device has the qdisc already, for filters of others.
func withClsact(t *testing.T) (datapath.Options, netlink.Link) {
	t.Helper()
	opts, l := withUplink(t)
	opts.TC = datapath.TCClsact
	must(t, netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}))
	return opts, l
}

// TestFilterPlace: whoever is first, our filter runs before programs that decide about all packets, and
// where it always has been among other filters. When those are gone it is back at its usual place,
// which former versions know.
func TestFilterPlace(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	for name, test := range map[string]struct {
		others []otherFilter
		want   []string
	}{
		"behind":             {[]otherFilter{{name: "other", priority: 50}}, []string{"bl_ingress 8", "other 50"}},
		"before":             {[]otherFilter{{name: "other", priority: 1}}, []string{"bl_ingress 1", "other 1"}},
		"of the same place":  {[]otherFilter{{name: "other", priority: 8}}, []string{"bl_ingress 8", "other 8"}},
		"two":                {[]otherFilter{{name: "a", priority: 1}, {name: "b", priority: 1}}, []string{"bl_ingress 1", "b 1", "a 1"}},
		"for one protocol":   {[]otherFilter{{name: "other", priority: 1, protocol: unix.ETH_P_IP}}, []string{"other 1", "bl_ingress 8"}},
		"of a kind before":   {[]otherFilter{{name: "a", priority: 1, classifier: true}, {name: "b", priority: 2}}, []string{"a 1", "bl_ingress 2", "b 2"}},
		"before and between": {[]otherFilter{{name: "b", priority: 3}, {name: "a", priority: 1}}, []string{"bl_ingress 1", "a 1", "b 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, name == "before and between" || name == "for one protocol" || name == "of a kind before")
			opts, l := withClsact(t)
			var others []*netlink.BpfFilter
			add := func() {
				for i, o := range test.others {
					others = append(others, o.add(t, l, uint32(i+1)))
				}
			}
			wantFilters := func(when string, want ...string) {
				t.Helper()
				if got := filterNames(t, l); !slices.Equal(got, want) {
					t.Errorf("%s: filters %q, want %q", when, got, want)
				}
			}
			add()
			d := prepare(t, opts)
			must(t, d.Attach(t.Context()))
			wantFilters("others first", test.want...)
			for _, f := range others {
				must(t, netlink.FilterDel(f))
			}
			must(t, d.SyncDevices(t.Context()))
			wantFilters("without others", "bl_ingress 8")
			others = nil
			add()
			for range 3 { // those that follow find ours in its place
				must(t, d.SyncDevices(t.Context()))
				wantFilters("ours first", test.want...)
			}
			if d := devices(t, opts); len(d) != 1 || d[0].Mode != datapath.TCClsact {
				t.Errorf("served: %+v", d)
			}
			must(t, d.Close())
			_, err := datapath.Cleanup(t.Context(), opts.BPFFS)
			must(t, err)
			if got := filterNames(t, l); len(got) != len(test.others) {
				t.Errorf("after the clean-up there are filters %q, want %d of others", got, len(test.others))
			}
		})
	}
}

// TestFilterPriorityTaken: where a filter of another protocol or kind has the priority, which the kernel gives
// to one of each, ours is before it.
func TestFilterPriorityTaken(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	ip := func(name string, priority uint16) otherFilter {
		return otherFilter{name: name, priority: priority, protocol: unix.ETH_P_IP}
	}
	for name, test := range map[string]struct {
		others []otherFilter
		want   []string
	}{
		"one": {[]otherFilter{ip("other", 8)}, []string{"bl_ingress 7", "other 8"}},
		"two": {[]otherFilter{ip("a", 7), ip("b", 8)}, []string{"bl_ingress 6", "a 7", "b 8"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts, l := withClsact(t)
			for i, o := range test.others {
				o.add(t, l, uint32(i+1))
			}
			d := prepare(t, opts)
			must(t, d.Attach(t.Context()))
			for range 2 {
				if got := filterNames(t, l); !slices.Equal(got, test.want) {
					t.Errorf("filters %q, want %q", got, test.want)
				}
				must(t, d.SyncDevices(t.Context()))
			}
			must(t, d.Close())
			_, err := datapath.Cleanup(t.Context(), opts.BPFFS)
			must(t, err)
			if got := filterNames(t, l); !slices.Equal(got, test.want[1:]) {
				t.Errorf("after the clean-up there are filters %q, want %q", got, test.want[1:])
			}
		})
	}
}

// TestNoFightForAPlace: filters are moved at once, and ever less often when somebody else moves his
// before them again and again.
func TestNoFightForAPlace(t *testing.T) {
	t.Parallel()
	if n := datapath.Moves(time.Second); n != 1 {
		t.Errorf("%d moves at the first look, want one", n)
	}
	if n := datapath.Moves(time.Hour); n < 20 || n > 40 {
		t.Errorf("%d moves in an hour, want one in two minutes", n)
	}
}
