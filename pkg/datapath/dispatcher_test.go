package datapath_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/flock"
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

// dispatched returns an agent whose uplink is served by a program in a dispatcher, and options
// for the next one.
func dispatched(t *testing.T) (*datapath.Datapath, datapath.Options, netlink.Link) {
	t.Helper()
	opts, l := withXDP(t, datapath.XDPGeneric)
	d := prepare(t, opts)
	t.Cleanup(func() { must(t, d.Close()) })
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
	release := holdDispatchers(t, opts)
	ctx, cancel := context.WithCancel(context.Background())
	var lost atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.FollowPrograms(ctx, func(n int) { lost.Add(int64(n)) })
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
