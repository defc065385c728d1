package datapath_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/flock"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// dispatcherObject is libxdp's dispatcher, as package libxdp loads it.
const dispatcherObject = "../libxdp/dispatcher_bpfel.o"

// dispatchers returns the folder of libxdp's pins.
func dispatchers(opts datapath.Options) string { return filepath.Join(opts.BPFFS, "xdp") }

// runDispatcher makes a device run a dispatcher with one program that is called like ours, by its
// pins and settings. It is in place of no function: not every kernel can do that.
func runDispatcher(t *testing.T, opts datapath.Options, l netlink.Link) {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec(dispatcherObject)
	must(t, err)
	config := make([]byte, 124)
	config[0], config[1], config[2] = 'X'+'D'+'P', 2, 1 // magic, version and count
	must(t, spec.Variables["config"].Set(config))
	var programs struct {
		Dispatcher *ebpf.Program `ebpf:"xdp_dispatcher"`
	}
	must(t, spec.LoadAndAssign(&programs, nil))
	defer programs.Dispatcher.Close()
	own, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "bl_xdp", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	must(t, err)
	defer own.Close()
	info, err := programs.Dispatcher.Info()
	must(t, err)
	id, _ := info.ID()
	t.Cleanup(func() { must(t, os.RemoveAll(dispatchers(opts))) })
	pins := filepath.Join(dispatchers(opts), fmt.Sprintf("dispatch-%d-%d", l.Attrs().Index, id))
	must(t, os.MkdirAll(pins, 0o700), own.Pin(filepath.Join(pins, "prog0-prog")))
	must(t, netlink.LinkSetXdpFdWithFlags(l, programs.Dispatcher.FD(), nl.XDP_FLAGS_SKB_MODE))
}

// holdDispatchers has another process hold libxdp's lock, until release is called or the test ends.
func holdDispatchers(t *testing.T, opts datapath.Options) (release func()) {
	t.Helper()
	folder, err := os.Open(dispatchers(opts))
	must(t, err)
	t.Cleanup(func() { folder.Close() })
	must(t, flock.Exclusive(t.Context(), folder))
	return func() { must(t, folder.Close()) }
}

// waiting counts the open files of this process that stand for the folder of libxdp's pins, except
// the one of [holdDispatchers]: one waits for the lock.
func waiting(t *testing.T, opts datapath.Options) (n int) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, f := range files {
		if path, err := os.Readlink(filepath.Join("/proc/self/fd", f.Name())); err == nil && path == dispatchers(opts) {
			n++
		}
	}
	return n - 1
}

// dispatched returns an agent, to be closed, whose uplink is served by a program in a dispatcher, and
// options for the next one.
func dispatched(t *testing.T) (*datapath.Datapath, datapath.Options, netlink.Link) {
	t.Helper()
	opts, l := withXDP(t, datapath.XDPGeneric)
	d := prepare(t, opts)
	must(t, d.Attach(t.Context()))
	wantXDP(t, opts, datapath.XDPGeneric, "")
	must(t, os.Remove(filepath.Join(datapath.Dir(opts.BPFFS), fmt.Sprintf("link_xdp_%d", l.Attrs().Index))))
	wait.Until(t, "the kernel has detached the link", func() bool { return xdpOf(t, l) == 0 })
	runDispatcher(t, opts, l)
	wantXDP(t, opts, datapath.XDPGeneric, "")
	return d, opts, l
}

// TestDispatchersLockIsHeld: nothing counts as lost because another process holds libxdp's lock, the
// wait keeps devices from nothing, and it ends with the agent.
func TestDispatchersLockIsHeld(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	d, opts, _ := dispatched(t)
	t.Cleanup(func() { must(t, d.Close()) })
	release := holdDispatchers(t, opts)
	ctx, cancel := context.WithCancel(context.Background())
	var lost atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = d.FollowPrograms(ctx, func(n int) { lost.Add(int64(n)) })
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	waits := func() bool { return waiting(t, opts) > 0 }
	wait.Until(t, "a change of devices while the lock is waited for", func() bool {
		wait.Until(t, "the lock is waited for", waits)
		must(t, d.EndMasquerade(ctx, time.Now())) // needs what a sync of devices needs
		return waits()
	})
	wait.Until(t, "the wait ends", func() bool { return !waits() })
	wait.Until(t, "the lock is waited for again", waits)
	cancel()
	<-ended
	if n := lost.Load(); n > 0 {
		t.Errorf("%d programs or devices are said to be lost", n)
	}
	release()
	wantXDP(t, opts, datapath.XDPGeneric, "")
}

// TestDispatcherIsLeftWhenItCanBe: an agent without XDP takes the former one's program out of a
// dispatcher once nobody holds libxdp's lock any more, and tells of it until then.
func TestDispatcherIsLeftWhenItCanBe(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	former, opts, l := dispatched(t)
	must(t, former.Close())
	release := holdDispatchers(t, opts)
	opts.XDP = datapath.XDPOff
	d := prepare(t, opts)
	t.Cleanup(func() { must(t, d.Close()) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it waits for no lock
	must(t, d.Attach(ctx))
	_ = d.SyncChanged(ctx) // its time has not come, or it fails once more
	if list := faults(t, opts); len(list) != 1 || !strings.Contains(list[0].Error, "lock") {
		t.Errorf("faults: %+v, want one of the lock", list)
	}
	if xdpOf(t, l) == 0 {
		t.Error("the program is gone although the lock is held")
	}
	release()
	eventually(t, "no fault is told of", func() bool { return d.SyncChanged(t.Context()) == nil && len(faults(t, opts)) == 0 })
	if id := xdpOf(t, l); id != 0 {
		t.Errorf("program %d is still there", id)
	}
}

// TestDispatcherIsJoinedWhenItCanBe: a lock that another process holds is no reason to leave a device
// without XDP. The former agent's program runs on until it is replaced.
func TestDispatcherIsJoinedWhenItCanBe(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	former, opts, l := dispatched(t)
	must(t, former.Close())
	runs := xdpOf(t, l)
	release := holdDispatchers(t, opts)
	d := prepare(t, opts)
	t.Cleanup(func() { must(t, d.Close()) })
	must(t, d.Attach(t.Context()))
	if list := faults(t, opts); len(list) != 1 || list[0].Name != uplink || !strings.Contains(list[0].Error, "lock") {
		t.Errorf("faults: %+v, want one of the lock", list)
	}
	if id := xdpOf(t, l); id != runs {
		t.Errorf("the device runs program %d, want the former agent's, %d", id, runs)
	}
	release()
	follow(t, d)
	eventually(t, "no fault is told of", func() bool { return len(faults(t, opts)) == 0 })
	if xdpOf(t, l) == runs {
		t.Error("the former agent's program is still there")
	}
}

// TestCleanupOfTheRest: what cannot be removed keeps nothing else, and the next clean-up removes it.
func TestCleanupOfTheRest(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	d, opts, l := dispatched(t)
	odd := oddPin(t, opts, 9999)
	must(t, d.Close())
	release := holdDispatchers(t, opts)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it waits for no lock
	removed, err := datapath.Cleanup(ctx, opts.BPFFS)
	if err == nil || !strings.Contains(err.Error(), odd) || !strings.Contains(err.Error(), "lock") {
		t.Errorf("the error is %v, want one of the pin %s and of the lock", err, odd)
	}
	left, err := filepath.Glob(filepath.Join(datapath.Dir(opts.BPFFS), "link_*"))
	must(t, err)
	if !slices.Equal(left, []string{odd}) {
		t.Errorf("links are left: %q, want %s alone", left, odd)
	}
	if ids := attachedPrograms(t, l); len(ids) > 0 || len(removed) == 0 {
		t.Errorf("programs %d are left at tc, removed was %q", ids, removed)
	}
	release()
	must(t, os.Remove(odd))
	_, err = datapath.Cleanup(t.Context(), opts.BPFFS)
	must(t, err)
	if id := xdpOf(t, l); id != 0 {
		t.Errorf("program %d is left after the second clean-up", id)
	}
	if _, err := os.Stat(datapath.Dir(opts.BPFFS)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pins are left: %v", err)
	}
}

// pinProgram pins a program of that name, which is called by no dispatcher, as one of a dispatcher.
func pinProgram(t *testing.T, path, name string) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	must(t, err)
	must(t, os.MkdirAll(filepath.Dir(path), 0o700), program.Pin(path), program.Close())
}

// pinMap pins a map there.
func pinMap(t *testing.T, path string) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	must(t, err)
	must(t, os.MkdirAll(filepath.Dir(path), 0o700), m.Pin(path), m.Close())
}

// TestCleanupOfKilledChanges: the clean-up removes the pins that an agent has left which was killed while it
// changed a dispatcher, and no others', of whatever kind, whether there are other pins of ours or not.
func TestCleanupOfKilledChanges(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	d, opts, l := dispatched(t)
	must(t, d.Close())
	for _, when := range []string{"with pins of ours", "without"} {
		at := func(id string) string {
			return filepath.Join(dispatchers(opts), fmt.Sprintf("dispatch-%d-%s", l.Attrs().Index, id))
		}
		pinProgram(t, filepath.Join(at("4000000001"), "prog0-prog"), "filter")
		pinProgram(t, filepath.Join(at("4000000001"), "prog1-prog"), "bl_xdp")
		must(t, os.MkdirAll(at("4000000002"), 0o700))
		pinProgram(t, filepath.Join(at("4000000003"), "prog0-prog"), "filter")
		pinMap(t, filepath.Join(at("4000000004"), "odd"))
		gone := filepath.Join(dispatchers(opts), "dispatch-99999-1")
		pinMap(t, filepath.Join(gone, "prog0-prog"))
		_, err := datapath.Cleanup(t.Context(), opts.BPFFS)
		must(t, err)
		left, err := filepath.Glob(at("*"))
		if must(t, err); !slices.Equal(left, []string{at("4000000003"), at("4000000004")}) {
			t.Errorf("%s: left are %q, want the other program's and the map's alone", when, left)
		}
		must(t, os.RemoveAll(at("4000000003")), os.RemoveAll(at("4000000004")), os.RemoveAll(gone))
	}
	if id := xdpOf(t, l); id != 0 {
		t.Errorf("program %d is left at the device", id)
	}
}

// TestCleanupWithoutPins: what outlives its pins is found by its names.
func TestCleanupWithoutPins(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	opts, l := withUplink(t)
	opts.TC = datapath.TCClsact
	attach(t, opts)
	removePins(t, opts)
	runDispatcher(t, opts, l)
	removed, err := datapath.Cleanup(t.Context(), opts.BPFFS)
	must(t, err)
	if want := []string{"filters of " + uplink, "program of the XDP dispatcher of " + uplink}; !slices.Equal(removed, want) {
		t.Errorf("removed %q, want %q", removed, want)
	}
	if ids, xdp := attachedPrograms(t, l), xdpOf(t, l); len(ids) > 0 || xdp != 0 {
		t.Errorf("programs are left: %d at tc, %d at XDP", ids, xdp)
	}
	if removed, err := datapath.Cleanup(t.Context(), opts.BPFFS); err != nil || len(removed) > 0 {
		t.Errorf("a second clean-up: %q, %v", removed, err)
	}
}

// removePins removes the pins, as when the BPF file system is unmounted, and waits until the kernel has let the
// links go.
func removePins(t *testing.T, opts datapath.Options) {
	t.Helper()
	list := links(t, opts)
	must(t, os.RemoveAll(filepath.Join(opts.BPFFS, "beeline")))
	for _, l := range list {
		lab.Eventually(t, "the links are gone", func() bool {
			left, err := link.NewFromID(link.ID(l.ID))
			if err == nil {
				must(t, left.Close())
			}
			return errors.Is(err, os.ErrNotExist)
		})
	}
}

// TestCleanupOfAnotherNode: a clean-up with another BPF file system than that of a node which serves leaves its
// filters and says so, whether an agent runs, has ended, or is drained. Once nothing else serves it takes them.
func TestCleanupOfAnotherNode(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	opts, l := withUplink(t)
	opts.TC = datapath.TCClsact
	d := prepare(t, opts)
	must(t, d.Attach(t.Context()))
	ids := attachedPrograms(t, l)
	other := lab.NewBPFFS(t)
	leaves := func(when string) {
		t.Helper()
		removed, err := datapath.Cleanup(t.Context(), other)
		if want := "the filters of " + uplink + " serve with the maps of another BPF file system"; err == nil || !strings.Contains(err.Error(), want) || len(removed) > 0 {
			t.Errorf("%s: removed %q, %v, want an error: %s", when, removed, err, want)
		}
		if left := attachedPrograms(t, l); len(ids) != 2 || !slices.Equal(left, ids) {
			t.Errorf("%s: programs %d are attached, want %d", when, left, ids)
		}
	}
	leaves("beside an agent")
	must(t, d.Close())
	leaves("between two agents")
	held, err := datapath.Hold(opts.BPFFS)
	must(t, err)
	leaves("beside a drain")
	must(t, held.Close())
	removePins(t, opts)
	if removed, err := datapath.Cleanup(t.Context(), other); err != nil || !slices.Equal(removed, []string{"filters of " + uplink}) {
		t.Errorf("without the node's pins: removed %q, %v", removed, err)
	}
}

// TestCleanupBesideAnotherNode: a clean-up takes the filters of its own maps and leaves those of others, which
// keep nothing else, and no process that locks the network namespace keeps it from that.
func TestCleanupBesideAnotherNode(t *testing.T) {
	tier.SameInEveryKernel(t)
	t.Parallel()
	opts, l := withUplink(t)
	opts.TC = datapath.TCClsact
	former := opts
	former.BPFFS, former.Cgroup, former.Devices = lab.NewBPFFS(t), lab.NewCgroup(t), []string{datapath.DevicesNone}
	attach(t, former)
	attach(t, opts) // the later one, for it takes filters of others off
	ids := attachedPrograms(t, l)
	namespace, err := os.Open("/proc/thread-self/ns/net")
	must(t, err)
	defer namespace.Close()
	must(t, unix.Flock(int(namespace.Fd()), unix.LOCK_SH))
	removed, err := datapath.Cleanup(t.Context(), former.BPFFS)
	if left := attachedPrograms(t, l); err != nil || len(ids) != 2 || !slices.Equal(left, ids) {
		t.Errorf("of a node without devices: %v; programs %d are attached, want %d", err, left, ids)
	}
	if slices.Contains(removed, "filters of "+uplink) {
		t.Error("of a node without devices: filters are said to be removed")
	}
	if left, err := os.ReadDir(former.BPFFS); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	removed, err = datapath.Cleanup(t.Context(), opts.BPFFS)
	if left := attachedPrograms(t, l); err != nil || len(left) > 0 || !slices.Contains(removed, "filters of "+uplink) {
		t.Errorf("of the node: %v; programs %d are left", err, left)
	}
}
