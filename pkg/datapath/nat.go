package datapath

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"github.com/beeline-lb/beeline/pkg/devicemap"
	"github.com/beeline-lb/beeline/pkg/netns"
	"github.com/beeline-lb/beeline/pkg/rtnl"
)

// natRest passes before a network namespace for which there was no room, or which could not be looked
// at, is looked for again, and so many others are in that time: who has one can make more.
const (
	natRest = 10 * time.Second
	natMost = 256
)

// leavesNAT reports whether sockets are left alone in network namespaces that translate their
// own connections: only where packets are served.
func (d *Datapath) leavesNAT() bool {
	return d.opts.LeaveNAT && !d.opts.HostSocketsOnly && d.servesPackets()
}

// FollowNAT has packets served, in place of sockets, for each network namespace that the
// programs see to translate its own connections, until ctx ends.
func (d *Datapath) FollowNAT(ctx context.Context) {
	if !d.leavesNAT() {
		return
	}
	followSeen(ctx, d.maps.BlNatSeen, "Sockets in network namespaces with nat rules of their own are served like others", func(records [][]byte) error {
		cookies := make(map[uint64]bool)
		for _, r := range records {
			if len(r) >= 8 {
				cookies[binary.NativeEndian.Uint64(r)] = true
			}
		}
		added, err := d.addNAT(cookies)
		if added {
			d.syncNoted(ctx)
		}
		return err
	})
}

// addNAT finds the devices of network namespaces, and reports whether there are new ones to be served.
// A namespace that cannot be found has none, and is looked for again when all devices are.
func (d *Datapath) addNAT(cookies map[uint64]bool) (added bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.loadNAT(); err != nil {
		return false, err
	}
	maps.DeleteFunc(d.natSought, func(_ uint64, at time.Time) bool { return time.Since(at) >= natRest })
	maps.DeleteFunc(cookies, func(cookie uint64, _ bool) bool {
		_, known := d.nat[cookie]
		_, sought := d.natSought[cookie]
		return known || sought || len(d.natSought) >= natMost
	})
	if len(cookies) == 0 {
		return false, nil
	}
	known := len(d.nat)
	err = d.findNAT(cookies)
	for cookie := range cookies {
		if _, noted := d.nat[cookie]; !noted && (err != nil || !d.noteNAT(cookie, nil)) {
			d.natSought[cookie] = time.Now()
		}
	}
	return len(d.nat) > known, err
}

// noteNAT notes a network namespace with the node's side of its devices, and reports whether there was
// room. Those without a device leave half of it to others.
func (d *Datapath) noteNAT(cookie uint64, peers []int) bool {
	room := d.deviceMap.MaxNAT()
	if len(peers) == 0 {
		room /= 2
	}
	full := len(d.nat) >= room
	if full && !d.natFull {
		klog.InfoS("More network namespaces translate their own connections than are noted: the sockets of the others are served like others",
			"noted", len(d.nat), "cookie", cookie)
	}
	if full || len(peers) == 0 {
		d.natFull = full
	}
	if !full {
		d.nat[cookie] = peers
	}
	return !full
}

// loadNAT reads the network namespaces that a former agent has written.
func (d *Datapath) loadNAT() (err error) {
	if d.nat == nil {
		d.nat, err = d.deviceMap.NAT()
	}
	return err
}

// findNAT notes the node's side of the devices of network namespaces, by their cookies.
func (d *Datapath) findNAT(cookies map[uint64]bool) error {
	return d.eachNetns(func() error {
		cookie, err := NetnsCookie()
		if err != nil || !cookies[cookie] {
			return err
		}
		peers, err := d.peers()
		if err != nil {
			return err
		}
		if d.noteNAT(cookie, peers) {
			logNAT(cookie, peers)
		}
		return nil
	})
}

// peers returns the node's ends of the devices in the calling thread's network namespace, as many as fit into
// an entry.
func (d *Datapath) peers() ([]int, error) {
	peers, err := Peers(d.netns)
	return peers[:min(len(peers), devicemap.MaxNATDevices)], err
}

// Peers returns the ends that a network namespace has of the devices in the calling thread's, by index.
func Peers(of *netns.Namespace) ([]int, error) {
	id, err := of.ID()
	if err != nil || id < 0 {
		return nil, err
	}
	links, err := rtnl.Links()
	if err != nil {
		return nil, err
	}
	var peers []int
	for _, l := range links {
		a := l.Attrs()
		if (l.Type() == "veth" || l.Type() == "netkit") && a.NetNsID == id && a.ParentIndex != 0 {
			peers = append(peers, a.ParentIndex)
		}
	}
	slices.Sort(peers)
	return peers, nil
}

// logNAT logs what becomes of the sockets in the calling thread's network namespace, which people
// know by its addresses.
func logNAT(cookie uint64, peers []int) {
	var addrs []string
	if list, err := net.InterfaceAddrs(); err == nil {
		for _, a := range list {
			if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
				addrs = append(addrs, ip.IP.String())
			}
		}
	}
	if len(peers) > 0 {
		klog.V(2).InfoS("A network namespace translates its own connections: its packets are served at its devices in place of its sockets",
			"cookie", cookie, "addresses", addrs, "devices", peers)
		return
	}
	klog.InfoS("A network namespace translates its own connections, but no veth or netkit device leads to it from here: "+
		"its sockets are served like others, so its rules see endpoints in place of Services", "cookie", cookie, "addresses", addrs)
}

// planNAT adds the devices of network namespaces whose sockets are left alone to those of pods,
// and forgets namespaces that are gone.
func (d *Datapath) planNAT(ds *deviceSync, n *network) error {
	if err := d.loadNAT(); err != nil {
		return err
	}
	var errs []error
	for cookie, ifindexes := range d.nat {
		links := n.at(ifindexes)
		if !d.leavesNAT() || len(links) == 0 && (len(ifindexes) > 0 || ds.changes.all) {
			if err := d.deviceMap.DeleteNAT(cookie); err != nil {
				errs = append(errs, err)
				continue
			}
			delete(d.nat, cookie)
			delete(d.natLeft, cookie)
			continue
		}
		ds.addPods(links)
	}
	return errors.Join(errs...)
}

// addPods adds devices to those that pods are behind, unless clients are.
func (ds *deviceSync) addPods(links []netlink.Link) {
	for _, l := range links {
		if ifindex := l.Attrs().Index; !ds.served()[ifindex] {
			ds.pods = append(ds.pods, l)
		}
	}
}

// at returns the devices of the indexes, as far as there are such.
func (n *network) at(ifindexes []int) []netlink.Link {
	return slices.DeleteFunc(slices.Clone(n.links), func(l netlink.Link) bool { return !slices.Contains(ifindexes, l.Attrs().Index) })
}

// writeNAT has the sockets left alone whose packets are served at all devices of their network
// namespace, and no others.
func (d *Datapath) writeNAT() error {
	var errs []error
	for cookie, ifindexes := range d.nat {
		unserved := func(ifindex int) bool { return d.state[ifindex] == nil || !d.state[ifindex].ok }
		left := len(ifindexes) > 0 && !slices.ContainsFunc(ifindexes, unserved)
		if was, known := d.natLeft[cookie]; known && was == left {
			continue
		}
		if !left {
			ifindexes = nil
		}
		err := d.deviceMap.PutNAT(cookie, ifindexes)
		if err == nil {
			d.natLeft[cookie] = left
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// natFaults tells of network namespaces whose sockets are served although they translate their
// own connections.
func (i *inspection) natFaults() error {
	if err := i.loadNAT(); err != nil {
		return err
	}
	for cookie, ifindexes := range i.nat {
		if len(ifindexes) == 0 && i.leavesNAT() {
			i.add("nat-unserved", "the network namespace of cookie %d translates its own connections, and no device leads to it at which its packets could be served: its rules see endpoints in place of Services", cookie)
		}
	}
	return nil
}
