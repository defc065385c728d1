package rtnl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/netns"
	"github.com/beeline-lb/beeline/tests/wait"
)

// limit is how long anything may take to happen.
var limit = wait.Limit

// TestInterruptedListIsReadAgain, a bounded number of times. The kernel cannot be made to
// interrupt its answers at will.
func TestInterruptedListIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		interrupted := func(times int) func() ([]int, error) {
			calls = 0
			return func() ([]int, error) {
				if calls++; calls <= times {
					return []int{1}, netlink.ErrDumpInterrupted
				}
				return []int{1, 2}, nil
			}
		}
		if list, err := Complete(interrupted(3)); len(list) != 2 || err != nil {
			t.Errorf("after three interruptions: %v, %v", list, err)
		}
		start := time.Now()
		if list, err := Complete(interrupted(1000)); list != nil || !errors.Is(err, netlink.ErrDumpInterrupted) {
			t.Errorf("after interruptions without end: %v, %v", list, err)
		}
		if took := time.Since(start); calls != attempts || took > time.Second {
			t.Errorf("%d attempts in %s", calls, took)
		}
		failed := errors.New("failed")
		if _, err := Complete(func() (int, error) { return 0, failed }); err != failed {
			t.Errorf("another error became %v", err)
		}
	})
}

// inNamespace calls fn in a network namespace that ends with the test.
func inNamespace(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
}

// following is a Follow that goes on in the test's network namespace.
type following struct {
	calls  chan bool // all
	answer chan time.Duration
}

// start runs Follow until the test ends. Each call waits for the test to take and to answer
// it.
func start(t *testing.T, h Handlers, also <-chan struct{}) *following {
	t.Helper()
	namespace, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	f := &following{make(chan bool), make(chan time.Duration)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		ended <- namespace.Run(func() error {
			Follow(ctx, h, also, func(all bool) time.Duration {
				select {
				case f.calls <- all:
					return <-f.answer
				case <-ctx.Done():
					return 0
				}
			})
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, namespace.Close()); err != nil {
			t.Error(err)
		}
	})
	return f
}

// expect waits for a call and answers it.
func (f *following) expect(t *testing.T, after string, all bool, again time.Duration) {
	t.Helper()
	select {
	case got := <-f.calls:
		if got != all {
			t.Errorf("the call after %s is for all: %v", after, got)
		}
		f.answer <- again
	case <-time.After(limit):
		t.Fatalf("no call after %s", after)
	}
}

// TestFollow: each kind of change leads to a call, an irrelevant one to none.
func TestFollow(t *testing.T) {
	inNamespace(t)
	also := make(chan struct{}, 1)
	var wanted atomic.Value
	wanted.Store("")
	f := start(t, Handlers{
		Link: func(u *netlink.LinkUpdate) bool {
			return u.Attrs().Name == wanted.Load() && u.Header.Type == unix.RTM_NEWLINK
		},
		Addr:  func(u *netlink.AddrUpdate) bool { return u.LinkAddress.IP.String() == wanted.Load() },
		Route: func(u *netlink.RouteUpdate) bool { return u.Gw.String() == wanted.Load() },
	}, also)
	f.expect(t, "the start", true, 0)
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	addr, err := netlink.ParseAddr("192.0.2.1/24")
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range []struct {
		wanted string
		make   func() error
	}{
		{"br0", func() error { return netlink.LinkAdd(bridge) }},
		{"192.0.2.1", func() error { return errors.Join(netlink.LinkSetUp(bridge), netlink.AddrAdd(bridge, addr)) }},
		{"192.0.2.254", func() error { return netlink.RouteAdd(&netlink.Route{Gw: []byte{192, 0, 2, 254}}) }},
		{"a value from elsewhere", func() error { also <- struct{}{}; return nil }},
	} {
		wanted.Store(change.wanted)
		if err := change.make(); err != nil {
			t.Fatalf("%s: %v", change.wanted, err)
		}
		f.expect(t, change.wanted, false, 0)
		wanted.Store("")
	}
	also <- struct{}{}
	f.expect(t, "a value, which all that nobody wanted came before", false, time.Millisecond)
	f.expect(t, "the time that was asked for", false, 0)
	select {
	case <-f.calls:
		t.Error("a call without any reason")
	case also <- struct{}{}:
	}
	f.expect(t, "the last value", false, 0)
}

// TestFastChangesAreActedUponTogether: however fast things change, calls take a tenth of the
// time at most.
func TestFastChangesAreActedUponTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		also := make(chan struct{})
		go func() {
			for {
				select {
				case also <- struct{}{}:
				case <-ctx.Done():
					return
				}
			}
		}()
		const took = 100 * time.Millisecond
		calls := 0
		Follow(ctx, Handlers{}, also, func(bool) time.Duration {
			calls++
			time.Sleep(took)
			return 0
		})
		if most := int(limit / (took * (rest + 1))); calls > most+1 || calls < most/2 {
			t.Errorf("%d calls that take %s each in %s, want %d at most", calls, took, limit, most)
		}
	})
}

// TestBrokenSubscriptionLeavesNothing behind: neither sockets nor goroutines.
func TestBrokenSubscriptionLeavesNothing(t *testing.T) {
	inNamespace(t)
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	blocked := make(chan chan struct{})
	f := start(t, Handlers{Addr: func(*netlink.AddrUpdate) bool {
		select {
		case wait := <-blocked:
			<-wait
		default:
		}
		return false
	}}, nil)
	f.expect(t, "the start", true, 0)
	sockets, goroutines := netlinkSockets(t), runtime.NumGoroutine()
	for round := range 3 {
		wait := make(chan struct{})
		// The subscription of the round before may be on its way out: its last call is one for all, too.
		block(t, bridge, blocked, wait)
		for i := range 4000 {
			addAddr(t, bridge, fmt.Sprintf("10.%d.%d.%d/32", round, i/250, i%250+1))
		}
		close(wait)
		f.expect(t, "a subscription that broke", true, 0)
	}
	for deadline := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		s, g := netlinkSockets(t), runtime.NumGoroutine()
		if s <= sockets && g <= goroutines {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d sockets and %d goroutines, were %d and %d before", s, g, sockets, goroutines)
		}
	}
}

// TestBurstOfRoutesHoldsUpNothing: after more changes of routes than the kernel keeps, routes are
// followed again before everything is listed, and a change of an address is acted upon meanwhile.
func TestBurstOfRoutesHoldsUpNothing(t *testing.T) {
	inNamespace(t)
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	var addrs, markers atomic.Int32
	blocked := make(chan chan struct{}, 1)
	f := start(t, Handlers{
		Addr: func(*netlink.AddrUpdate) bool { addrs.Add(1); return true },
		Route: func(u *netlink.RouteUpdate) bool {
			if u.Type == unix.RTM_NEWROUTE && u.Dst.String() == marker.Dst.String() {
				markers.Add(1)
			}
			select {
			case wait := <-blocked:
				<-wait
			default:
			}
			return false
		},
	}, nil)
	f.expect(t, "the start", true, 0)
	// Whether the address or the list comes first is a matter of time, of which there is more each round.
	for round := range 8 {
		wait := make(chan struct{})
		blocked <- wait
		burst(t, round)
		close(wait)
		missMarker(t, &markers)
		before := addrs.Load()
		addAddr(t, bridge, fmt.Sprintf("192.0.2.%d/32", round+1))
		alone := false
		for all := false; !all; f.answer <- 0 {
			select {
			case all = <-f.calls:
				alone = alone || !all && addrs.Load() > before
			case <-time.After(limit):
				t.Fatal("no call after a burst of routes")
			}
		}
		if alone {
			return
		}
	}
	t.Error("each change of an address was acted upon with the list of everything")
}

// marker is a route that no burst has.
var marker = &netlink.Route{Type: unix.RTN_BLACKHOLE, Dst: &net.IPNet{IP: net.IPv4(198, 51, 100, 0).To4(), Mask: net.CIDRMask(24, 32)}}

// missMarker makes a route come and go until a subscription tells of it.
func missMarker(t *testing.T, seen *atomic.Int32) {
	t.Helper()
	before := seen.Load()
	wait.Until(t, "a subscription tells of routes", func() bool {
		if err := errors.Join(netlink.RouteAdd(marker), netlink.RouteDel(marker)); err != nil {
			t.Fatal(err)
		}
		return seen.Load() > before
	})
}

// burst adds more routes than the kernel keeps changes of.
func burst(t *testing.T, round int) {
	t.Helper()
	for i := range 40000 {
		dst := net.IPv4(10, byte(round), byte(i>>8), byte(i)).To4()
		if err := netlink.RouteAdd(&netlink.Route{Type: unix.RTN_BLACKHOLE, Dst: &net.IPNet{IP: dst, Mask: net.CIDRMask(32, 32)}}); err != nil {
			t.Fatal(err)
		}
	}
}

// block changes addresses until a subscription tells of one, and has it wait.
func block(t *testing.T, device netlink.Link, blocked chan<- chan struct{}, blocker chan struct{}) {
	t.Helper()
	wait.Until(t, "a subscription tells of addresses", func() (waits bool) {
		addr := addAddr(t, device, "192.0.2.1/32")
		select {
		case blocked <- blocker:
			waits = true
		case <-time.After(20 * time.Millisecond):
		}
		if err := netlink.AddrDel(device, addr); err != nil {
			t.Fatal(err)
		}
		return waits
	})
}

func addAddr(t *testing.T, device netlink.Link, text string) *netlink.Addr {
	t.Helper()
	addr, err := netlink.ParseAddr(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(device, addr); err != nil {
		t.Fatal(err)
	}
	return addr
}

// netlinkSockets counts those of the process.
func netlinkSockets(t *testing.T) (n int) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		fd, err := strconv.Atoi(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil && domain == unix.AF_NETLINK {
			n++
		}
	}
	return n
}
