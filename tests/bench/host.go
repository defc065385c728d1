package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/devconf"
)

// host is a network namespace. It goes with the process.
type host struct {
	netns int
	// port is the name of the other end of the device that plug makes.
	port string
	mac  net.HardwareAddr // of that device
}

// newHost makes a namespace with its loopback device up.
func newHost() (*host, error) {
	h := &host{netns: -1}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		h.netns = fd
		return errors.Join(err, devconf.Reset(), setUp("lo"))
	})
	return h, err
}

// do runs fn in the namespace: sockets that fn makes and processes that it starts
// belong there.
func (h *host) do(fn func() error) error {
	return onThread(func() error {
		if err := unix.Setns(h.netns, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter a network namespace: %w", err)
		}
		return fn()
	})
}

// onThread runs fn on a thread that nothing else uses.
func onThread(fn func() error) error {
	done := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()
		done <- fn()
	}()
	return <-done
}

// plug connects the host to a bridge of this namespace by a device with that
// name.
func (h *host) plug(bridge netlink.Link, name string, addr netip.Prefix) error {
	port := netlink.NewVeth(netlink.LinkAttrs{Name: fmt.Sprintf("port%d", h.netns), MasterIndex: bridge.Attrs().Index})
	port.PeerName, port.PeerNamespace = name, netlink.NsFd(h.netns)
	h.port = port.Name
	if err := netlink.LinkAdd(port); err != nil {
		return fmt.Errorf("add device %s: %w", port.Name, err)
	}
	return errors.Join(setUp(port.Name), h.do(func() error {
		device, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		h.mac = device.Attrs().HardwareAddr
		return address(name, addr)
	}))
}

// addPod returns a namespace behind a device of the host's.
func (h *host) addPod(name string, gateway, addr netip.Prefix) (*host, error) {
	pod, err := newHost()
	if err != nil {
		return nil, err
	}
	err = h.do(func() error {
		veth := netlink.NewVeth(netlink.LinkAttrs{Name: name})
		veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsFd(pod.netns)
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("add device %s: %w", name, err)
		}
		return address(name, gateway)
	})
	if err != nil {
		return nil, err
	}
	return pod, pod.do(func() error {
		if err := address("eth0", addr); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Gw: gateway.Addr().AsSlice()})
	})
}

// address gives a device an address and sets it up.
func address(device string, addr netip.Prefix) error {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	own, err := netlink.ParseAddr(addr.String())
	if err != nil {
		return err
	}
	own.Flags = unix.IFA_F_NODAD
	if err := netlink.AddrAdd(link, own); err != nil {
		return fmt.Errorf("add address %s: %w", addr, err)
	}
	return setUp(device)
}

// sysctl sets a kernel variable of the calling thread's network namespace.
func sysctl(name, value string) error {
	return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)
}
