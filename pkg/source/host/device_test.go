package host_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/source/host"
)

// patience is how long a call may take to come; quiet is how long none must.
const (
	patience = 10 * time.Second
	quiet    = 300 * time.Millisecond
)

// follow runs FollowDevices in a network namespace of the test's own, in which the
// test goes on, and returns where calls arrive and are answered.
func follow(t *testing.T, also <-chan struct{}) (calls <-chan struct{}, answers chan<- error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	runtime.LockOSThread() // for good: the thread and the namespace end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	namespace, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	called, answer, ended := make(chan struct{}), make(chan error), make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			host.FollowDevices(ctx, also, func() error {
				select {
				case called <- struct{}{}:
					return <-answer
				case <-ctx.Done():
					return nil
				}
			})
		}
		ended <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, namespace.Close()); err != nil {
			t.Error(err)
		}
	})
	return called, answer
}

func expect(t *testing.T, calls <-chan struct{}, after string) {
	t.Helper()
	select {
	case <-calls:
	case <-time.After(patience):
		t.Fatalf("no call after %s", after)
	}
}

func TestFollowDevices(t *testing.T) {
	also := make(chan struct{}, 1)
	calls, answers := follow(t, also)
	expect(t, calls, "the start")
	answers <- nil

	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	addr, err := netlink.ParseAddr("192.0.2.1/24")
	if err != nil {
		t.Fatal(err)
	}
	route := &netlink.Route{Gw: []byte{192, 0, 2, 254}}
	for _, change := range []struct {
		name string
		make func() error
	}{
		{"a new device", func() error { return netlink.LinkAdd(bridge) }},
		{"a device that came up", func() error { return netlink.LinkSetUp(bridge) }},
		{"a new address", func() error { return netlink.AddrAdd(bridge, addr) }},
		{"a new route", func() error { return netlink.RouteAdd(route) }},
		{"a removed device", func() error { return netlink.LinkDel(bridge) }},
		{"a value from elsewhere", func() error { also <- struct{}{}; return nil }},
	} {
		settle(calls, answers)
		if err := change.make(); err != nil {
			t.Fatalf("%s: %v", change.name, err)
		}
		expect(t, calls, change.name)
		answers <- nil
	}
}

// settle answers calls until none comes any more: devices change by themselves for
// a while.
func settle(calls <-chan struct{}, answers chan<- error) {
	for {
		select {
		case <-calls:
			answers <- nil
		case <-time.After(quiet):
			return
		}
	}
}

func TestFailedCallIsMadeAgain(t *testing.T) {
	calls, answers := follow(t, nil)
	expect(t, calls, "the start")
	answers <- errors.New("no luck")
	expect(t, calls, "a call that failed")
	answers <- nil
}
