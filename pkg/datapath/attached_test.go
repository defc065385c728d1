package datapath_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// TestRemovedPins: an agent whose pins somebody removes makes them again, attaches its programs, and
// keeps other agents off as before.
func TestRemovedPins(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	eachMode(t, func(t *testing.T, opts datapath.Options, l netlink.Link) {
		d := prepare(t, opts)
		t.Cleanup(func() { must(t, d.Close()) })
		must(t, d.Attach(t.Context()))
		statusmap.New(d.Maps()).SetAgent(statusmap.Agent{PID: 4711})
		root, dir := filepath.Join(opts.BPFFS, "beeline"), datapath.Dir(opts.BPFFS)
		for what, remove := range map[string]func() error{
			"all":           func() error { return os.RemoveAll(root) },
			"this schema's": func() error { return os.RemoveAll(dir) },
			"a map's":       func() error { return os.Remove(filepath.Join(dir, bpfmap.PinName("bl_agent"))) },
		} {
			must(t, remove())
			if found, err := d.MendPrograms(t.Context()); found == 0 || err != nil {
				t.Errorf("%s: found %d, %v", what, found, err)
			}
			// The kernel detaches a program some time after the last pin of its link is gone.
			eventually(t, what+": all programs are attached again", func() bool {
				_ = d.SyncDevices(t.Context())
				list := devices(t, opts)
				return len(list) == 1 && list[0].Mode == opts.TC && len(attachedPrograms(t, l)) == 2 && len(links(t, opts)) == 9
			})
			maps, err := bpfmap.Open(dir)
			must(t, err)
			if pid := statusmap.New(maps).Agent().PID; pid != 4711 {
				t.Errorf("%s: other maps are pinned, with the agent's pid %d", what, pid)
			}
			must(t, maps.Close())
			var running *datapath.RunningError
			if other, err := datapath.Prepare(t.Context(), opts); !errors.As(err, &running) {
				t.Errorf("%s: a second agent: %v, want a RunningError", what, err)
				if err == nil {
					must(t, other.Close())
				}
			}
			if found, err := d.MendPrograms(t.Context()); found != 0 || err != nil {
				t.Errorf("%s: the next look found %d, %v", what, found, err)
			}
		}
	})
}

// TestMendedWithinFiveSeconds: what somebody detaches, or changes of devices and pods, right after a look is as before
// within 5 s, where the looks themselves take no time.
func TestMendedWithinFiveSeconds(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	eachMode(t, func(t *testing.T, opts datapath.Options, _ netlink.Link) {
		d := prepare(t, opts)
		t.Cleanup(func() { must(t, d.Close()) })
		must(t, d.Attach(t.Context()))
		ranges := devicemap.New(d.Maps())
		pin := filepath.Join(datapath.Dir(opts.BPFFS), "link_bl_connect4")
		damage := func() {
			_, err := ranges.SetLocalCIDRs([]netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")})
			must(t, os.Remove(pin), err)
		}
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var damaged time.Time
			damage()
			must(t, d.FollowPrograms(ctx, func(found int) {
				if damaged.IsZero() { // a look has just ended
					damage()
					damaged = time.Now()
					return
				}
				if took := time.Since(damaged); took > 5*time.Second || found != 2 {
					t.Errorf("found %d after %s; want a link and the ranges of pods", found, took)
				}
				cancel()
			}))
		})
		if list, err := ranges.LocalCIDRs(); err != nil || len(list) > 0 {
			t.Errorf("ranges of pods are %v, %v", list, err)
		}
		if _, err := os.Stat(pin); err != nil {
			t.Error(err)
		}
	})
}

// TestRemovedXDPPin: XDP is tried again soon when the pins are removed and the kernel has not let the former
// link go yet, here because a process has it open.
func TestRemovedXDPPin(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts, l := withXDP(t, datapath.XDPNative)
	d := prepare(t, opts)
	must(t, d.Attach(t.Context()))
	wantXDP(t, opts, datapath.XDPNative, "")
	former := xdpOf(t, l)
	pins, err := filepath.Glob(filepath.Join(datapath.Dir(opts.BPFFS), "link_xdp_*"))
	if err != nil || len(pins) != 1 {
		t.Fatalf("pins of XDP links: %q, %v", pins, err)
	}
	held, err := link.LoadPinnedLink(pins[0], nil)
	must(t, err)
	must(t, os.RemoveAll(filepath.Join(opts.BPFFS, "beeline")))
	if _, err := d.MendPrograms(t.Context()); err != nil {
		t.Error(err)
	}
	if now := xdpOf(t, l); now != former {
		t.Errorf("the device runs XDP program %d, want the former link's, %d", now, former)
	}
	must(t, held.Close())
	eventually(t, "the device is served by XDP again", func() bool {
		_ = d.SyncChanged(t.Context())
		list := devices(t, opts)
		return len(list) == 1 && list[0].XDP == datapath.XDPNative && list[0].NoXDP == ""
	})
	must(t, d.Close())
}

// TestPlaceTaken: an agent whose pins were removed ends when another one has begun to run meanwhile.
func TestPlaceTaken(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	first := prepare(t, opts)
	must(t, first.Attach(t.Context()))
	must(t, os.RemoveAll(filepath.Join(opts.BPFFS, "beeline")))
	second := prepare(t, opts)
	must(t, second.Attach(t.Context()))
	before := links(t, opts)
	var running *datapath.RunningError
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	if err := first.FollowPrograms(ctx, func(int) {}); !errors.As(err, &running) {
		t.Errorf("the first agent: %v, want a RunningError", err)
	}
	if after := links(t, opts); len(after) != len(before) || after[0] != before[0] {
		t.Errorf("links of the second agent: %+v, were %+v", after, before)
	}
	must(t, first.Close(), second.Close())
}

// TestPinsOutOfSight: no second set of programs is attached beside one whose pins cannot be seen.
func TestPinsOutOfSight(t *testing.T) {
	t.Parallel()
	tier.SameInEveryKernel(t)
	opts := place(t)
	d := prepare(t, opts)
	must(t, d.Attach(t.Context()))
	root, elsewhere := filepath.Join(opts.BPFFS, "beeline"), filepath.Join(opts.BPFFS, "elsewhere")
	must(t, os.Rename(root, elsewhere))
	if found, err := d.MendPrograms(t.Context()); found != 0 || err == nil || !strings.Contains(err.Error(), "renamed or something was mounted over it") {
		t.Errorf("found %d, %v", found, err)
	}
	if list := links(t, opts); len(list) > 0 {
		t.Errorf("attached beside: %+v", list)
	}
	must(t, os.Rename(elsewhere, root))
	if found, err := d.MendPrograms(t.Context()); found != 0 || err != nil {
		t.Errorf("when they are back: found %d, %v", found, err)
	}
	must(t, d.Close())
}
