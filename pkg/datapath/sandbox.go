package datapath

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/bpf"
	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// sandboxRest passes before the device of the same address is looked for again, and of so many
// addresses behind one device in that time, for a pod can forge addresses.
const (
	sandboxRest = 10 * time.Second
	sandboxMost = 256
)

// FollowSandboxes has the packets of a pod whose sockets the kernel does not see served at the pod's
// device, once one that goes to a Service was about to leave the node, until ctx ends.
func (d *Datapath) FollowSandboxes(ctx context.Context) {
	if !d.servesPackets() {
		return
	}
	followSeen(ctx, d.maps.BlSandboxSeen, "Packets of pods in sandboxes are served where they would leave the node", func(records [][]byte) error {
		packets := make(map[bpf.SockBlSandboxPacket]bool)
		for _, r := range records {
			var p bpf.SockBlSandboxPacket
			if _, err := binary.Decode(r, binary.NativeEndian, &p); err == nil {
				packets[p] = true
			}
		}
		added, err := d.addSandboxes(packets)
		if added {
			d.syncNoted(ctx)
		}
		return err
	})
}

// addSandboxes notes the devices by which packets have come that pods are behind, and reports whether
// there are new ones.
func (d *Datapath) addSandboxes(packets map[bpf.SockBlSandboxPacket]bool) (added bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.loadSandboxes(); err != nil {
		return false, err
	}
	maps.DeleteFunc(d.sandboxSought, func(_ bpf.SockBlSandboxPacket, at time.Time) bool { return time.Since(at) >= sandboxRest })
	behind := make(map[uint32]int)
	for p := range d.sandboxSought {
		behind[p.Ifindex]++
	}
	var errs []error
	for p := range packets {
		if _, sought := d.sandboxSought[p]; sought || behind[p.Ifindex] >= sandboxMost {
			continue
		}
		d.sandboxSought[p] = time.Now()
		behind[p.Ifindex]++
		found, err := d.addSandbox(int(p.Ifindex), p.Addr.Netip())
		errs = append(errs, err)
		added = added || found
	}
	return added, errors.Join(errs...)
}

// addSandbox notes the device of a pod, and reports whether it is new.
func (d *Datapath) addSandbox(ifindex int, addr netip.Addr) (bool, error) {
	var link netlink.Link
	err := d.netns.Run(func() (err error) {
		link, err = podDevice(ifindex, addr)
		return err
	})
	sandboxes := devicemap.NewSandboxes(d.maps)
	if err != nil || link == nil || d.sandboxes[link.Attrs().Index] || len(d.sandboxes) >= sandboxes.Max() {
		return false, err
	}
	if err := sandboxes.Add(link.Attrs().Index); err != nil {
		return false, err
	}
	klog.InfoS("A pod sends packets to Services for which no socket has asked, as from a sandbox: they are served at its device",
		"device", link.Attrs().Name, "address", addr)
	d.sandboxes[link.Attrs().Index] = true
	return true, nil
}

// loadSandboxes reads the devices that a former agent has noted.
func (d *Datapath) loadSandboxes() (err error) {
	if d.sandboxes == nil {
		d.sandboxes, err = devicemap.NewSandboxes(d.maps).List()
	}
	return err
}

// Sandbox returns the device at which the packets of a pod in a sandbox are served: the pod has the
// address, to which the device of an index leads from the calling thread's network namespace. nil when it
// is no such pod's.
func Sandbox(maps *bpfmap.Maps, ifindex int, addr netip.Addr) (netlink.Link, error) {
	noted, err := devicemap.NewSandboxes(maps).List()
	if err != nil || len(noted) == 0 {
		return nil, err
	}
	l, err := podDevice(ifindex, addr)
	if err != nil || l == nil || !noted[l.Attrs().Index] {
		return nil, err
	}
	return l, nil
}

// podDevice returns the device that a pod with the address is behind whose packets come in by the
// device of an index: that, or a port of that bridge. nil when there is none, or none of such a kind.
func podDevice(ifindex int, addr netip.Addr) (netlink.Link, error) {
	l, err := netlink.LinkByIndex(ifindex)
	if err == nil && l.Type() == "bridge" {
		l, err = bridgePort(l, addr)
	}
	if gone(err) {
		return nil, nil
	}
	if err != nil || l == nil || !podDeviceType(l) {
		return nil, err
	}
	return l, nil
}

// podDeviceType reports whether the device is of a kind that single pods are behind, and its packets have
// Ethernet headers.
func podDeviceType(l netlink.Link) bool {
	switch l.Type() {
	case "veth", "netkit", "tuntap", "macvtap":
		return !noEthernet(l)
	}
	return false
}

// bridgePort returns the port of a bridge that a neighbor is behind, nil when it is not known.
func bridgePort(bridge netlink.Link, addr netip.Addr) (netlink.Link, error) {
	family := netlink.FAMILY_V4
	if addr.Is6() {
		family = netlink.FAMILY_V6
	}
	neighbors, err := rtnl.Complete(func() ([]netlink.Neigh, error) { return netlink.NeighList(bridge.Attrs().Index, family) })
	if err != nil {
		return nil, err
	}
	for _, n := range neighbors {
		if !n.IP.Equal(addr.AsSlice()) || len(n.HardwareAddr) == 0 {
			continue
		}
		ports, err := rtnl.Complete(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, unix.AF_BRIDGE) })
		if err != nil {
			return nil, err
		}
		for _, p := range ports {
			if p.MasterIndex == bridge.Attrs().Index && bytes.Equal(p.HardwareAddr, n.HardwareAddr) {
				return netlink.LinkByIndex(p.LinkIndex)
			}
		}
	}
	return nil, nil
}

// planSandboxes adds the devices of sandboxes to those of pods, and forgets those that are gone.
func (d *Datapath) planSandboxes(ds *deviceSync, n *network) error {
	if err := d.loadSandboxes(); err != nil {
		return err
	}
	var errs []error
	for ifindex := range d.sandboxes {
		links := n.at([]int{ifindex})
		ds.addPods(links)
		if len(links) > 0 {
			continue
		}
		if err := devicemap.NewSandboxes(d.maps).Remove(ifindex); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(d.sandboxes, ifindex)
	}
	return errors.Join(errs...)
}
