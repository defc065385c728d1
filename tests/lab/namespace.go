package lab

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/devconf"
)

// Namespace is a network namespace and the cgroup of what runs in it. A thread
// of the test process lives in both; the namespace has no name and ends with it.
type Namespace struct {
	t      testing.TB
	cgroup string
	jobs   chan func()
	handle *os.File
}

// newNamespace makes a network namespace whose loopback device is up.
func newNamespace(t testing.TB, cgroup string) *Namespace {
	t.Helper()
	n := &Namespace{t: t, cgroup: cgroup, jobs: make(chan func())}
	ready := make(chan error)
	go n.live(ready)
	if err := <-ready; err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Cleanup(func() {
		close(n.jobs)
		n.handle.Close()
	})
	return n
}

// live is the namespace's thread, which ends with it.
func (n *Namespace) live(ready chan<- error) {
	runtime.LockOSThread()
	err := n.enter()
	ready <- err
	if err != nil {
		return
	}
	for job := range n.jobs {
		job()
	}
}

// join puts the calling thread, to which its goroutine is locked for good, into
// the namespace and the cgroup.
func (n *Namespace) join() error {
	if err := enterCgroup(n.cgroup); err != nil {
		return err
	}
	return unix.Setns(int(n.handle.Fd()), unix.CLONE_NEWNET)
}

// enterCgroup puts the calling thread into a cgroup.
func enterCgroup(cgroup string) error {
	thread := strconv.Itoa(unix.Gettid())
	return os.WriteFile(filepath.Join(cgroup, "cgroup.threads"), []byte(thread), 0)
}

// enter puts the calling thread into the cgroup and a new namespace.
func (n *Namespace) enter() error {
	if err := enterCgroup(n.cgroup); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	handle, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	n.handle = handle
	if err := devconf.Reset(); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// Run runs fn on the thread that is in the namespace and the cgroup. fn must not
// call t.FailNow.
func (n *Namespace) Run(fn func() error) error {
	done := make(chan error)
	n.jobs <- func() { done <- fn() }
	return <-done
}

// Thread runs fn on a thread of its own in the namespace and the cgroup. fn must
// not call t.FailNow.
func (n *Namespace) Thread(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := n.join()
		if err == nil {
			err = fn()
		}
		done <- err
	}()
	return <-done
}

// must is Run for what cannot fail but for a fault of the test.
func (n *Namespace) must(what string, fn func() error) {
	n.t.Helper()
	if err := n.Run(fn); err != nil {
		n.t.Fatalf("%s: %v", what, err)
	}
}

// AddAddr gives a device one more address, without duplicate address detection. The kernel makes the
// local route to one of IPv6 some time after it has answered, and until then sends the address's
// packets to the device: AddAddr returns when the route is there, unless the device is down.
func (n *Namespace) AddAddr(device, cidr string) {
	n.t.Helper()
	up := false
	n.changeAddr("add", device, cidr, func(link netlink.Link, addr *netlink.Addr) error {
		up = link.Attrs().Flags&net.FlagUp != 0
		return netlink.AddrAdd(link, addr)
	})
	if addr := netip.MustParsePrefix(cidr).Addr(); up && addr.Is6() {
		n.AwaitLocal(addr)
	}
}

// AwaitLocal waits until an address is local.
func (n *Namespace) AwaitLocal(addr netip.Addr) {
	n.t.Helper()
	Eventually(n.t, addr.String()+" is a local address", func() (local bool) {
		n.must("look up the route to "+addr.String(), func() error {
			routes, err := netlink.RouteGet(addr.AsSlice())
			local = err == nil && routes[0].Type == unix.RTN_LOCAL // without a route, it is an error
			return nil
		})
		return local
	})
}

// DeleteAddr takes an address off a device.
func (n *Namespace) DeleteAddr(device, cidr string) {
	n.t.Helper()
	n.changeAddr("delete", device, cidr, netlink.AddrDel)
}

func (n *Namespace) changeAddr(verb, device, cidr string, change func(netlink.Link, *netlink.Addr) error) {
	n.t.Helper()
	n.must(verb+" address "+cidr, func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(cidr)
		if err != nil {
			return err
		}
		addr.Flags = unix.IFA_F_NODAD
		return change(link, addr)
	})
}

// AddDevice makes a device pair between two namespaces and brings both ends up.
func (n *Namespace) AddDevice(name string, peer *Namespace, peerName string) {
	n.t.Helper()
	n.must("add device "+name, func() error {
		veth := netlink.NewVeth(netlink.LinkAttrs{Name: name})
		veth.PeerName = peerName
		veth.PeerNamespace = netlink.NsFd(int(peer.handle.Fd()))
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return netlink.LinkSetUp(veth)
	})
	peer.must("bring device "+peerName+" up", func() error {
		link, err := netlink.LinkByName(peerName)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})
}

// AddDefaultRoute sends what has no other route to a gateway.
func (n *Namespace) AddDefaultRoute(gateway string) {
	n.t.Helper()
	n.must("add route", func() error {
		via := netip.MustParseAddr(gateway)
		route := netlink.Route{Gw: via.AsSlice()}
		if err := netlink.RouteAdd(&route); err != nil {
			return fmt.Errorf("default route via %s: %w", via, err)
		}
		return nil
	})
}
