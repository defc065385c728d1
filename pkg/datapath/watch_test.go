package datapath

import (
	"encoding/binary"
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// linkMessage returns a message about the device 7 as the kernel sends it, of a type and with some
// attributes.
func linkMessage(t *testing.T, kind uint16, attributes ...*nl.RtAttr) *netlink.LinkUpdate {
	t.Helper()
	info := nl.NewIfInfomsg(unix.AF_UNSPEC)
	info.Type, info.Index, info.Flags = unix.ARPHRD_ETHER, 7, unix.IFF_UP|unix.IFF_RUNNING
	body := info.Serialize()
	for _, a := range attributes {
		body = append(body, a.Serialize()...)
	}
	header := unix.NlMsghdr{Len: uint32(unix.SizeofNlMsghdr + len(body)), Type: kind}
	link, err := netlink.LinkDeserialize(&header, body)
	if err != nil {
		t.Fatal(err)
	}
	return &netlink.LinkUpdate{IfInfomsg: *nl.DeserializeIfInfomsg(body), Header: header, Link: link}
}

// TestWatchPartialLink: a message with no more than a device's name and what a wireless driver tells
// changes nothing of the device; one that describes it does.
func TestWatchPartialLink(t *testing.T) {
	number := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	name := nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("wlan0"))
	address := nl.NewRtAttr(unix.IFLA_ADDRESS, []byte{2, 0, 0, 0, 0, 7})
	full := func(mtu uint32) []*nl.RtAttr {
		return []*nl.RtAttr{name, nl.NewRtAttr(unix.IFLA_MTU, number(mtu)), nl.NewRtAttr(unix.IFLA_MASTER, number(3)), address}
	}
	scanned := []*nl.RtAttr{name, nl.NewRtAttr(unix.IFLA_WIRELESS, []byte{16, 0, 0x19, 0x8b, 15: 0})} // SIOCGIWSCAN
	w := newWatch(nil)
	for _, tt := range []struct {
		name       string
		kind       uint16
		attributes []*nl.RtAttr
		acts       bool
		mtu        int // afterwards; 0: the device is not known
	}{
		{"scanned before it is known", unix.RTM_NEWLINK, scanned, false, 0},
		{"added", unix.RTM_NEWLINK, full(1500), true, 1500},
		{"scanned", unix.RTM_NEWLINK, scanned, false, 1500},
		{"changed", unix.RTM_NEWLINK, full(1400), true, 1400},
		{"removed", unix.RTM_DELLINK, full(1400), true, 0},
	} {
		if tt.name == "scanned" {
			w.choose(map[int]bool{7: true}) // every change counts
		}
		if got := w.link(linkMessage(t, tt.kind, tt.attributes...)); got != tt.acts {
			t.Errorf("%s: acted upon: %t, want %t", tt.name, got, tt.acts)
		}
		l := w.links[7]
		if l == nil || tt.mtu == 0 {
			if (l != nil) != (tt.mtu != 0) {
				t.Errorf("%s: the device is known: %t", tt.name, l != nil)
			}
			continue
		}
		if a := l.Attrs(); a.Name != "wlan0" || a.MTU != tt.mtu || a.MasterIndex != 3 || a.HardwareAddr.String() != "02:00:00:00:00:07" {
			t.Errorf("%s: the device is %+v", tt.name, a)
		}
	}
}

// TestWatchRouteBeforeDevice: a route to pods by a device that the kernel has not told of yet matters when that turns
// out to be no pod's, and then alone. So does one by a device that was taken for a pod's.
func TestWatchRouteBeforeDevice(t *testing.T) {
	kind := func(name string) []*nl.RtAttr {
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(nl.IFLA_INFO_KIND, nl.ZeroTerminated(name))
		return []*nl.RtAttr{nl.NewRtAttr(unix.IFLA_MTU, binary.NativeEndian.AppendUint32(nil, 1500)), info}
	}
	_, dst, err := net.ParseCIDR("10.88.0.0/24")
	if err != nil {
		t.Fatal(err)
	}
	route := &netlink.RouteUpdate{Type: unix.RTM_NEWROUTE, Route: netlink.Route{Type: unix.RTN_UNICAST, Dst: dst, LinkIndex: 7}}
	for _, tt := range []struct {
		name    string
		devices []string // what it turns out to be, one after the other; "" is gone
		matters bool
	}{
		{"a pod's", []string{"veth"}, false},
		{"another's", []string{"vlan"}, true},
		{"gone, and another's with its index", []string{"", "vlan"}, false},
		{"a pod's, then another's", []string{"veth", "vlan"}, true},
	} {
		w := newWatch(func(*netlink.Route) bool { return true })
		w.route(route)
		for _, device := range tt.devices {
			if device == "" {
				w.link(linkMessage(t, unix.RTM_DELLINK, kind("vlan")...))
			} else {
				w.link(linkMessage(t, unix.RTM_NEWLINK, kind(device)...))
			}
		}
		if w.routesChanged != tt.matters {
			t.Errorf("%s: routes are to be read again: %t, want %t", tt.name, w.routesChanged, tt.matters)
		}
	}
}
