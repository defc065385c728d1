package datapath

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/devicemap"
)

// node is a network with one device of each kind that matters, named after what it
// is.
func node() *network {
	n := &network{addrs: make(map[int][]netip.Addr), held: make(map[netip.Addr]int), networks: make(map[int][]netip.Prefix)}
	add := func(l netlink.Link, encap string, flags net.Flags) int {
		l.Attrs().Index = len(n.links) + 1
		l.Attrs().EncapType = encap
		l.Attrs().Flags = flags
		n.links = append(n.links, l)
		return l.Attrs().Index
	}
	named := func(name string) netlink.LinkAttrs { return netlink.LinkAttrs{Name: name} }
	route := func(dst string, ifindex int, gateway net.IP) {
		_, prefix, _ := net.ParseCIDR(dst)
		n.routes = append(n.routes, netlink.Route{Dst: prefix, LinkIndex: ifindex, Gw: gateway, Type: unix.RTN_UNICAST})
	}
	gateway := net.IPv4(192, 0, 2, 1)

	lo := add(&netlink.Device{LinkAttrs: named("lo")}, "loopback", net.FlagUp|net.FlagLoopback)
	route("10.244.9.0/24", lo, nil)
	uplink := add(&netlink.Device{LinkAttrs: named("uplink")}, "ether", net.FlagUp)
	route("0.0.0.0/0", uplink, gateway)
	storage := add(&netlink.Device{LinkAttrs: named("storage")}, "ether", net.FlagUp)
	route("198.51.100.0/24", storage, nil)
	n.networks[storage] = prefixes("172.16.7.1/24")
	internal := add(&netlink.Device{LinkAttrs: named("internal")}, "ether", net.FlagUp)
	n.held[netip.MustParseAddr("203.0.113.7")] = internal
	podLink := add(&netlink.Device{LinkAttrs: named("pod-link")}, "ether", net.FlagUp)
	route("10.244.2.0/24", podLink, gateway)
	bridge := add(&netlink.Bridge{LinkAttrs: named("pod-bridge")}, "ether", net.FlagUp)
	route("10.244.1.0/24", bridge, nil)
	n.networks[bridge] = prefixes("10.244.1.1/24", "172.17.0.1/16") // of pods, and wider than it is named
	pod := add(&netlink.Veth{LinkAttrs: named("pod-veth")}, "ether", net.FlagUp)
	route("10.244.1.5/32", pod, nil)
	n.networks[pod] = prefixes("192.168.5.1/24")
	kind := add(&netlink.Veth{LinkAttrs: named("kind-veth")}, "ether", net.FlagUp)
	route("10.244.3.0/24", kind, gateway)
	// Devices that have nothing but an address, or a port.
	with := func(l netlink.Link, encap string, flags net.Flags, addrs ...string) int {
		index := add(l, encap, flags)
		n.networks[index] = prefixes(addrs...)
		return index
	}
	port := func(name string, master int) netlink.LinkAttrs {
		return netlink.LinkAttrs{Name: name, MasterIndex: master}
	}
	with(&netlink.Device{LinkAttrs: named("nic6")}, "ether", net.FlagUp, "169.254.7.1/16", "2001:db8:5::11/64")
	with(&netlink.Vlan{LinkAttrs: named("vlan")}, "ether", net.FlagUp, "192.168.6.1/24")
	with(&netlink.GenericLink{LinkType: "ppp", LinkAttrs: named("ppp")}, "ppp", net.FlagUp, "192.168.7.1/32")
	with(&netlink.Device{LinkAttrs: named("nic-down")}, "ether", 0, "192.168.8.1/24")
	with(&netlink.Device{LinkAttrs: named("nic-linklocal")}, "ether", net.FlagUp, "169.254.8.1/16")
	with(&netlink.Device{LinkAttrs: named("nic-of-pods")}, "ether", net.FlagUp, "10.244.1.9/24")
	with(&netlink.Device{LinkAttrs: named("nic-of-own-pods")}, "ether", net.FlagUp, "10.245.9.1/24")
	with(&netlink.Device{LinkAttrs: named("local-mode")}, "ether", net.FlagUp, "192.168.9.1/24")
	with(&netlink.Device{LinkAttrs: named("infiniband")}, "infiniband", net.FlagUp, "192.168.10.1/24")
	route("0.0.0.0/0", with(&netlink.Device{LinkAttrs: named("ib-uplink")}, "infiniband", net.FlagUp, "192.168.16.1/24"), gateway)
	n.held[netip.MustParseAddr("203.0.113.8")] = add(&netlink.Device{LinkAttrs: named("ib-internal")}, "infiniband", net.FlagUp)
	with(&netlink.Device{LinkAttrs: named("modem")}, "unknown519", net.FlagUp, "192.168.17.1/32")
	add(&netlink.Gretun{LinkAttrs: named("ip6gre")}, "unknown823", net.FlagUp)
	with(&netlink.Dummy{LinkAttrs: named("kube-ipvs0")}, "ether", net.FlagUp, "10.96.0.1/32")
	with(&netlink.GenericLink{LinkType: "openvswitch", LinkAttrs: named("gateway")}, "ether", net.FlagUp, "192.168.11.1/24")
	with(&netlink.Bridge{LinkAttrs: named("docker0")}, "ether", net.FlagUp, "172.17.0.1/16")
	lan := with(&netlink.Bridge{LinkAttrs: named("lan-bridge")}, "ether", net.FlagUp, "192.168.12.1/24")
	with(&netlink.Device{LinkAttrs: port("lan-port", lan)}, "ether", net.FlagUp, "192.168.12.2/24")
	add(&netlink.Veth{LinkAttrs: port("vm-port", lan)}, "ether", net.FlagUp)
	bond := with(&netlink.Bond{LinkAttrs: named("bond")}, "ether", net.FlagUp, "192.168.13.1/24")
	with(&netlink.Device{LinkAttrs: port("bond-port", bond)}, "ether", net.FlagUp, "192.168.13.2/24")
	vrf := with(&netlink.Vrf{LinkAttrs: named("vrf")}, "ether", net.FlagUp, "192.168.14.1/24")
	with(&netlink.Device{LinkAttrs: port("vrf-port", vrf)}, "ether", net.FlagUp, "192.168.15.1/24")
	add(&netlink.Vxlan{LinkAttrs: named("vxlan")}, "ether", net.FlagUp)
	add(&netlink.Vxlan{LinkAttrs: named("vxlan-down")}, "ether", 0)
	add(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "vxlan-port", MasterIndex: bridge}}, "ether", net.FlagUp)
	add(&netlink.Iptun{LinkAttrs: named("ipip")}, "ipip", net.FlagUp)
	add(&netlink.Wireguard{LinkAttrs: named("wireguard")}, "none", net.FlagUp)
	add(&netlink.Tuntap{LinkAttrs: named("tun")}, "none", net.FlagUp)
	tap := add(&netlink.Tuntap{LinkAttrs: named("vm-tap")}, "ether", net.FlagUp)
	route("10.244.1.9/32", tap, nil)
	return n
}

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, s := range list {
		out[i] = netip.MustParsePrefix(s)
	}
	return out
}

func TestChoice(t *testing.T) {
	t.Parallel()
	unknownInAuto := map[string]string{"ib-uplink": "default route", "ib-internal": "holds node IP 203.0.113.8"}
	for _, tc := range []struct {
		name      string
		patterns  []string
		nodePorts []netip.Prefix
		want      map[string]string
		unknown   map[string]string // those whose frames are not known
	}{
		{"auto in networks of NodePorts", []string{DevicesAuto}, prefixes("172.16.0.0/12", "0.0.0.0/0", "192.168.5.0/24", "10.244.0.0/16"), map[string]string{
			"uplink":     "default route",
			"internal":   "holds node IP 203.0.113.7",
			"pod-link":   "route to pods in 10.244.2.0/24",
			"kind-veth":  "route to pods in 10.244.3.0/24",
			"vxlan":      "overlay (vxlan)",
			"ipip":       "overlay (ipip)",
			"wireguard":  "overlay (wireguard)",
			"tun":        "overlay (tuntap)",
			"storage":    "in 172.16.0.0/12 of nodePortAddresses",
			"pod-veth":   "in 192.168.5.0/24 of nodePortAddresses",
			"nic6":       "has address 2001:db8:5::11",
			"vlan":       "has address 192.168.6.1",
			"ppp":        "has address 192.168.7.1",
			"modem":      "has address 192.168.17.1",
			"ip6gre":     "overlay (ip6gre)",
			"lan-bridge": "has address 192.168.12.1",
			"bond":       "has address 192.168.13.1",
		}, unknownInAuto},
		{"auto", []string{DevicesAuto}, nil, map[string]string{
			"uplink":     "default route",
			"internal":   "holds node IP 203.0.113.7",
			"pod-link":   "route to pods in 10.244.2.0/24",
			"kind-veth":  "route to pods in 10.244.3.0/24",
			"vxlan":      "overlay (vxlan)",
			"ipip":       "overlay (ipip)",
			"wireguard":  "overlay (wireguard)",
			"tun":        "overlay (tuntap)",
			"storage":    "has address 172.16.7.1",
			"nic6":       "has address 2001:db8:5::11",
			"vlan":       "has address 192.168.6.1",
			"ppp":        "has address 192.168.7.1",
			"modem":      "has address 192.168.17.1",
			"ip6gre":     "overlay (ip6gre)",
			"lan-bridge": "has address 192.168.12.1",
			"bond":       "has address 192.168.13.1",
		}, unknownInAuto},
		{"patterns", []string{"uplink", "stor*"}, nil, map[string]string{
			"uplink":  "matches uplink of devices",
			"storage": "matches stor* of devices",
		}, nil},
		{"loopback is never chosen", []string{"lo"}, nil, nil, nil},
		{"no such device", []string{"eth9"}, nil, nil, nil},
		{"frames of InfiniBand are not known", []string{"infini*"}, nil, nil, map[string]string{"infiniband": "matches infini* of devices"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			served, unknown := node().choose(&choice{tc.patterns, []netip.Addr{netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("203.0.113.8")},
				prefixes("10.244.0.0/16"), prefixes("10.245.9.0/24"), tc.nodePorts, func(name string) bool { return name == "local-mode" }})
			for want, list := range map[*map[string]string][]chosen{&tc.want: served, &tc.unknown: unknown} {
				got := make(map[string]string)
				for _, c := range list {
					got[c.link.Attrs().Name] = c.reason
				}
				if !maps.Equal(got, *want) {
					t.Errorf("chosen: %q\nwant:   %q", got, *want)
				}
			}
		})
	}
}

func TestEachHopOfADefaultRouteIsChosen(t *testing.T) {
	t.Parallel()
	n := &network{routes: []netlink.Route{
		{Type: unix.RTN_UNICAST, MultiPath: []*netlink.NexthopInfo{{LinkIndex: 2}, {LinkIndex: 3}}},
		{Type: unix.RTN_UNREACHABLE, LinkIndex: 4},
	}}
	if got := n.defaultDevices(); !maps.Equal(got, map[int]bool{2: true, 3: true}) {
		t.Errorf("devices of default routes: %v, want 2 and 3", got)
	}
}

// TestLeadsToAllPods: a gateway that is this machine's own address tells nothing of where pods are.
func TestLeadsToAllPods(t *testing.T) {
	t.Parallel()
	own := net.IPv4(10, 244, 1, 1)
	pods, others := prefixNet("10.244.2.0/24"), prefixNet("192.168.2.0/24")
	n := &network{held: map[netip.Addr]int{netip.MustParseAddr("10.244.1.1"): 2}, routes: []netlink.Route{
		{Type: unix.RTN_UNICAST, Dst: pods, LinkIndex: 2, Gw: own},
		{Type: unix.RTN_UNICAST, Dst: pods, LinkIndex: 3, Gw: net.IPv4(192, 0, 2, 1)},
		{Type: unix.RTN_UNICAST, Dst: pods, LinkIndex: 4},
		{Type: unix.RTN_UNICAST, Dst: others, LinkIndex: 5, Gw: own},
		{Type: unix.RTN_UNICAST, Dst: pods, MultiPath: []*netlink.NexthopInfo{{LinkIndex: 6}, {LinkIndex: 7, Gw: own}}},
	}}
	if got := n.leadsToAllPods(prefixes("10.244.0.0/16")); !maps.Equal(got, map[int]bool{2: true, 7: true}) {
		t.Errorf("devices that lead to all pods: %v, want 2 and 7", got)
	}
}

func prefixNet(s string) *net.IPNet {
	_, prefix, _ := net.ParseCIDR(s)
	return prefix
}

func TestDevicePatternsAreChecked(t *testing.T) {
	t.Parallel()
	for _, good := range [][]string{nil, {"auto"}, {"none"}, {"eth0", "bond*"}} {
		if err := CheckDevices(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range [][]string{{""}, {"eth["}, {"auto", "eth0"}, {"eth0", "none"}} {
		if err := CheckDevices(bad); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	former := []devicemap.Device{
		{ID: 1, Name: "eth0", Ifindex: 2}, {ID: 2, Name: "wg0"}, {ID: 3, Name: "eth1", Ifindex: 5},
	}
	for _, tc := range []struct {
		name   string
		device devicemap.Device
		want   uint32
	}{
		{"the same", devicemap.Device{Name: "eth1", Ifindex: 5}, 3},
		{"made again", devicemap.Device{Name: "wg0", Ifindex: 9}, 2},
		{"made again before it was missed", devicemap.Device{Name: "eth1", Ifindex: 9}, 3},
		{"renamed", devicemap.Device{Name: "lan0", Ifindex: 2}, 1},
		{"new", devicemap.Device{Name: "eth7", Ifindex: 9}, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			devices := []devicemap.Device{tc.device}
			assignIDs(devices, former)
			if devices[0].ID != tc.want {
				t.Errorf("ID %d, want %d", devices[0].ID, tc.want)
			}
		})
	}
}

func TestIDsOfGoneDevicesAreTheLastToBeUsed(t *testing.T) {
	t.Parallel()
	former := []devicemap.Device{{ID: 1, Name: "gone"}}
	devices := make([]devicemap.Device, devicemap.MaxDevices+1)
	for i := range devices {
		devices[i] = devicemap.Device{Name: "new", Ifindex: i + 1}
	}
	assignIDs(devices, former)
	if first, last, none := devices[0].ID, devices[devicemap.MaxDevices-1].ID, devices[devicemap.MaxDevices].ID; first != 2 || last != 1 || none != 0 {
		t.Errorf("IDs %d to %d, then %d; want 2 to 1, then 0", first, last, none)
	}
}

// TestInternalDevices: a device counts as internal by its whole name or its beginning.
func TestInternalDevices(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		internal Internal
		want     bool
	}{
		{Internal{}, false},
		{Internal{Bridge: "uplink"}, true},
		{Internal{Bridge: "up"}, false},
		{Internal{InterfacePrefix: "up"}, true},
		{Internal{InterfacePrefix: "link"}, false},
	} {
		d := &Datapath{opts: Options{Devices: []string{"uplink"}, Internal: tc.internal}}
		if got, _ := d.plan(node(), nil, nil, nil); len(got) != 1 || got[0].Internal != tc.want {
			t.Errorf("%+v: devices %+v, want uplink with internal %t", tc.internal, got, tc.want)
		}
	}
}

// TestRoomForAddresses: devices that have nothing but an address leave IDs to others, which may
// come later.
func TestRoomForAddresses(t *testing.T) {
	t.Parallel()
	n := node()
	base := len(n.links)
	for i := range devicemap.MaxDevices {
		index := base + i + 1
		n.links = append(n.links, &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("vlan%d", i), Index: index, Flags: net.FlagUp, EncapType: "ether"}})
		n.networks[index] = prefixes(fmt.Sprintf("100.64.%d.1/24", i))
	}
	n.links = append(n.links, &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "last", Index: len(n.links) + 1, Flags: net.FlagUp, EncapType: "ether"}})
	d := &Datapath{opts: Options{Devices: []string{DevicesAuto}}}
	served, last := 0, false
	devices, _ := d.plan(n, nil, nil, nil)
	for _, device := range devices {
		if addressed := strings.HasPrefix(device.Reason, devicemap.ReasonAddress); addressed && device.ID != 0 {
			served++
		}
		last = last || device.Name == "last" && device.ID != 0
	}
	if served != devicemap.MaxAddressed || !last {
		t.Errorf("%d devices are served for their address, want %d; the overlay is: %t", served, devicemap.MaxAddressed, last)
	}
}

// TestRoomBesideOverlays: a default route's device is served also where there is an overlay to each of many nodes, and
// came first.
func TestRoomBesideOverlays(t *testing.T) {
	t.Parallel()
	n := node()
	uplink := n.links[1]
	n.links = slices.Delete(n.links, 1, 2)
	for i := range devicemap.MaxDevices + 10 {
		n.links = append(n.links, &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("tunnel%d", i), Index: 100 + i, Flags: net.FlagUp, EncapType: "ether"}})
	}
	n.links = append(n.links, uplink)
	d := &Datapath{opts: Options{Devices: []string{DevicesAuto}}}
	overlays, served := 0, false
	devices, _ := d.plan(n, nil, nil, nil)
	for _, device := range devices {
		if device.ID != 0 && device.Overlay() {
			overlays++
		}
		served = served || device.Name == uplink.Attrs().Name && device.ID != 0
	}
	if overlays != devicemap.MaxOverlays || !served {
		t.Errorf("%d overlays are served, want %d; %s is: %t", overlays, devicemap.MaxOverlays, uplink.Attrs().Name, served)
	}
}
