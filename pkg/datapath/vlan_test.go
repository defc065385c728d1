package datapath

import (
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/beeline-lb/beeline/pkg/devicemap"
)

// tagged is a network with VLANs on a device and on a bond, by names.
func tagged() (*network, map[string]netlink.Link) {
	n, named := &network{}, make(map[string]netlink.Link)
	add := func(l netlink.Link, name string, on string) {
		*l.Attrs() = netlink.NewLinkAttrs()
		l.Attrs().Name, l.Attrs().Index, l.Attrs().Flags, l.Attrs().EncapType = name, len(n.links)+1, net.FlagUp, "ether"
		if parent := named[on]; parent != nil {
			l.Attrs().ParentIndex = parent.Attrs().Index
		}
		n.links, named[name] = append(n.links, l), l
	}
	vlan := func(name, on string, protocol netlink.VlanProtocol, id int) {
		add(&netlink.Vlan{VlanId: id, VlanProtocol: protocol}, name, on)
	}
	add(&netlink.Device{}, "eth0", "")
	vlan("five", "eth0", netlink.VLAN_PROTOCOL_8021Q, 5)
	vlan("outer", "eth0", netlink.VLAN_PROTOCOL_8021AD, 100)
	vlan("inner", "outer", netlink.VLAN_PROTOCOL_8021Q, 7)
	vlan("third", "inner", netlink.VLAN_PROTOCOL_8021Q, 8)
	vlan("down", "eth0", netlink.VLAN_PROTOCOL_8021Q, 6)
	named["down"].Attrs().Flags = 0
	vlan("elsewhere", "eth0", netlink.VLAN_PROTOCOL_8021Q, 9)
	named["elsewhere"].Attrs().NetNsID = 0
	add(&netlink.Bond{}, "bond", "")
	vlan("bond.5", "bond", netlink.VLAN_PROTOCOL_8021Q, 5)
	for _, port := range []string{"port1", "port2"} {
		add(&netlink.Device{}, port, "")
		named[port].Attrs().MasterIndex = named["bond"].Attrs().Index
	}
	return n, named
}

var (
	five  = devicemap.Tags{{Protocol: 0x8100, ID: 5}}
	outer = devicemap.Tags{{Protocol: 0x88a8, ID: 100}}
	inner = devicemap.Tags{{Protocol: 0x88a8, ID: 100}, {Protocol: 0x8100, ID: 7}}
)

func TestWhereXDPServes(t *testing.T) {
	t.Parallel()
	n, named := tagged()
	for _, tc := range []struct {
		name, root string
		tags       devicemap.Tags
		why        string
	}{
		{"eth0", "eth0", devicemap.Tags{}, ""},
		{"five", "eth0", five, ""},
		{"outer", "eth0", outer, ""},
		{"inner", "eth0", inner, ""},
		{"bond.5", "bond", five, ""},
		{"third", "", devicemap.Tags{}, "more than 2 VLAN tags"},
		{"down", "", devicemap.Tags{}, "down is down"},
		{"elsewhere", "", devicemap.Tags{}, "another network namespace"},
	} {
		b, err := n.base(named[tc.name])
		var no xdpError
		switch {
		case tc.why != "":
			if !errors.As(err, &no) || !strings.Contains(no.reason, tc.why) {
				t.Errorf("%s: error %v, want %q", tc.name, err, tc.why)
			}
		case err != nil || b.link != named[tc.root] || b.tags != tc.tags:
			t.Errorf("%s: served at %v with tags %v, want %s and %v: %v", tc.name, b.link, b.tags, tc.root, tc.tags, err)
		}
	}
}

// TestFrames: of which frames XDP has to be told whose they are.
func TestFrames(t *testing.T) {
	t.Parallel()
	n, named := tagged()
	index := func(name string) int { return named[name].Attrs().Index }
	at := func(name string, tags devicemap.Tags) devicemap.Frames {
		return devicemap.Frames{Ifindex: index(name), Tags: tags}
	}
	for _, tc := range []struct {
		name   string
		served []string
		want   map[devicemap.Frames]uint32
	}{
		{"a device alone", []string{"eth0"}, nil},
		{"with VLANs", []string{"eth0", "five", "inner", "third", "down"}, map[devicemap.Frames]uint32{
			at("eth0", five): 2, at("eth0", inner): 3,
		}},
		{"VLANs alone", []string{"five", "outer"}, map[devicemap.Frames]uint32{
			at("eth0", five): 1, at("eth0", outer): 2,
		}},
		{"a bond with a VLAN", []string{"bond", "bond.5"}, map[devicemap.Frames]uint32{
			at("port1", devicemap.Tags{}): 1, at("port2", devicemap.Tags{}): 1,
			at("port1", five): 2, at("port2", five): 2,
		}},
	} {
		var devices []devicemap.Device
		for i, name := range tc.served {
			device := devicemap.Device{ID: uint32(i + 1), Ifindex: index(name)}
			if b, err := n.base(named[name]); err == nil {
				device.Root, device.Tags = b.link.Attrs().Index, b.tags
			}
			devices = append(devices, device)
		}
		if got := n.frames(devices); !maps.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// TestGenericXDPServesDevicesThemselves: VLANs and bonds are nothing special to it, but
// that it leaves alone what has VLANs on it.
func TestGenericXDPServesDevicesThemselves(t *testing.T) {
	t.Parallel()
	n, named := tagged()
	n.generic = true
	var devices []devicemap.Device
	for name, l := range named {
		b, err := n.base(l)
		if err != nil || b.link != l || b.tags != (devicemap.Tags{}) {
			t.Errorf("%s: served at %v with tags %v: %v", name, b.link, b.tags, err)
		}
		err = n.checkTags(l)
		var no xdpError
		if below := slices.Contains([]string{"eth0", "outer", "inner", "bond"}, name); errors.As(err, &no) != below || !below && err != nil {
			t.Errorf("%s, with VLANs %v: %v", name, below, err)
		}
		devices = append(devices, devicemap.Device{ID: uint32(len(devices) + 1), Ifindex: l.Attrs().Index, Root: l.Attrs().Index})
	}
	if frames := n.frames(devices); len(frames) > 0 {
		t.Errorf("it has to be told of %v", frames)
	}
}

func TestPortsOfAChosenBondAreNotChosen(t *testing.T) {
	t.Parallel()
	n, _ := tagged()
	for pattern, want := range map[string][]string{
		"*o*":   {"outer", "down", "bond", "bond.5"},
		"port*": {"port1", "port2"},
	} {
		var got []string
		served, _ := n.choose(&choice{patterns: []string{pattern}})
		for _, c := range served {
			got = append(got, c.link.Attrs().Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s chooses %q, want %q", pattern, got, want)
		}
	}
}
