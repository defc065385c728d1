package datapath

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/devicemap"
)

// base is where XDP can serve a device: at the device itself or, of a VLAN in a driver, at
// the one below, where its frames have tags.
type base struct {
	link netlink.Link
	tags devicemap.Tags
}

// base returns where XDP can serve the device. The error is an [xdpError] when it cannot.
func (n *network) base(l netlink.Link) (base, error) {
	b := base{link: l}
	for {
		vlan, ok := b.link.(*netlink.Vlan)
		if !ok || n.generic {
			return b, nil
		}
		name, parent := vlan.Attrs().Name, n.link(vlan.Attrs().ParentIndex)
		switch {
		case vlan.Attrs().Flags&net.FlagUp == 0:
			return base{}, xdpError{name + " is down"}
		case vlan.Attrs().NetNsID >= 0 || parent == nil:
			return base{}, xdpError{"the device below " + name + " is in another network namespace"}
		case b.tags[devicemap.MaxTags-1] != devicemap.Tag{}:
			return base{}, xdpError{fmt.Sprintf("its frames have more than %d VLAN tags", devicemap.MaxTags)}
		}
		copy(b.tags[1:], b.tags[:])
		b.tags[0] = devicemap.Tag{Protocol: uint16(vlan.VlanProtocol), ID: uint16(vlan.VlanId)}
		b.link = parent
	}
}

// link returns the device of an index, nil when there is none.
func (n *network) link(ifindex int) netlink.Link {
	at := slices.IndexFunc(n.links, func(l netlink.Link) bool { return l.Attrs().Index == ifindex })
	if at < 0 {
		return nil
	}
	return n.links[at]
}

// drivers returns the devices at which the XDP program of a device runs: the ports of a
// bond, else the device itself.
func (n *network) drivers(l netlink.Link) []netlink.Link {
	if l.Type() != "bond" || n.generic {
		return []netlink.Link{l}
	}
	return slices.DeleteFunc(slices.Clone(n.links), func(port netlink.Link) bool {
		return port.Attrs().MasterIndex != l.Attrs().Index
	})
}

// ownsFrames reports whether what comes in by a device without tags is a packet of that
// device, and such packets are served: then XDP has nothing to look up.
func (n *network) ownsFrames(root netlink.Link, devices []devicemap.Device) bool {
	return (root.Type() != "bond" || n.generic) &&
		slices.ContainsFunc(devices, func(d devicemap.Device) bool { return d.Ifindex == root.Attrs().Index })
}

// frames returns which frames XDP has to look up, and the devices that they belong to, but for those without
// an ID, see [withinRoom].
func (n *network) frames(devices []devicemap.Device) map[devicemap.Frames]uint32 {
	frames := make(map[devicemap.Frames]uint32)
	for _, d := range devices {
		root := n.link(d.Root)
		if d.ID == 0 || root == nil || d.Root == d.Ifindex && n.ownsFrames(root, devices) {
			continue
		}
		for _, driver := range n.drivers(root) {
			frames[devicemap.Frames{Ifindex: driver.Attrs().Index, Tags: d.Tags}] = d.ID
		}
	}
	return frames
}

// tagFeatures are the features of a device that takes tags off before XDP sees a frame,
// and the names by which people switch them.
var tagFeatures = map[netlink.VlanProtocol]struct{ name, option string }{
	netlink.VLAN_PROTOCOL_8021Q:  {"rx-vlan-hw-parse", "rxvlan"},
	netlink.VLAN_PROTOCOL_8021AD: {"rx-vlan-stag-hw-parse", "rx-vlan-stag-hw-parse"},
}

// checkTags returns an [xdpError] when frames of VLANs come to the device's XDP program
// without their tags: it would take them for others. Generic XDP gets them so at some
// devices, whatever their features: the kernel takes tags off before a bond or a bridge.
func (n *network) checkTags(root netlink.Link) error {
	for _, l := range n.links {
		vlan, ok := l.(*netlink.Vlan)
		if !ok || vlan.Attrs().ParentIndex != root.Attrs().Index || vlan.Attrs().NetNsID >= 0 {
			continue
		}
		if n.generic {
			return xdpError{"frames of its VLANs may have lost their tags: only those are served"}
		}
		feature := tagFeatures[vlan.VlanProtocol]
		for _, driver := range n.drivers(root) {
			name := driver.Attrs().Name
			active, err := activeFeatures(driver.Attrs().Index)
			if gone(err) {
				return err
			}
			if err != nil {
				return xdpError{fmt.Sprintf("whether %s keeps VLAN tags is not known: %v", name, err)}
			}
			if slices.Contains(active, feature.name) {
				return xdpError{fmt.Sprintf("VLAN tags come off too early: ethtool -K %s %s off", name, feature.option)}
			}
		}
	}
	return nil
}

// activeFeatures asks the kernel which features of a device are switched on, by the names
// that ethtool -k shows for those that have no other.
func activeFeatures(ifindex int) ([]string, error) {
	family, err := netlink.GenlFamilyGet(unix.ETHTOOL_GENL_NAME)
	if err != nil {
		return nil, err
	}
	request := nl.NewNetlinkRequest(int(family.ID), 0)
	request.AddData(&nl.Genlmsg{Command: unix.ETHTOOL_MSG_FEATURES_GET, Version: uint8(family.Version)})
	header := nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_HEADER|unix.NLA_F_NESTED, nil)
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_INDEX, nl.Uint32Attr(uint32(ifindex)))
	request.AddData(header)
	answers, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	if len(answers) == 0 {
		return nil, errors.New("the kernel tells no features")
	}
	var names []string
	bits := inside([][]byte{answers[0][nl.SizeofGenlmsg:]},
		unix.ETHTOOL_A_FEATURES_ACTIVE, unix.ETHTOOL_A_BITSET_BITS, unix.ETHTOOL_A_BITSET_BITS_BIT, unix.ETHTOOL_A_BITSET_BIT_NAME)
	for _, name := range bits {
		names = append(names, unix.ByteSliceToString(name))
	}
	return names, nil
}

// inside returns the values of all attributes that are found by a path of types.
func inside(values [][]byte, path ...uint16) [][]byte {
	for _, kind := range path {
		var next [][]byte
		for _, v := range values {
			attributes, err := nl.ParseRouteAttr(v)
			if err != nil {
				continue
			}
			for _, a := range attributes {
				if a.Attr.Type&nl.NLA_TYPE_MASK == kind {
					next = append(next, a.Value)
				}
			}
		}
		values = next
	}
	return values
}
