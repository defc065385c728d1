package netns_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/pkg/bpfmap"
	"github.com/beeline-lb/beeline/pkg/datapath"
	"github.com/beeline-lb/beeline/pkg/statusmap"
	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
)

// wire is the other end of a host's uplink.
const wire = "node"

// wires is a host whose uplink carries several networks. In each, the machine outside
// has an address at which a client is and one at which a backend is.
type wires struct {
	*lab.Host
	devices []string // of the host, of each network
}

// newWires makes a host with a device for each of the tags' networks.
func newWires(t *testing.T, uplink string, h *lab.Host, tags ...[]netlink.Vlan) *wires {
	t.Helper()
	w := &wires{Host: h}
	for _, n := range []*lab.Namespace{h.Namespace, h.Outside} {
		n.SetSysctl("ipv6/conf/default/accept_dad", "0")
		n.SetChecksumOffload(false)
	}
	h.SetSysctl("ipv4/ip_forward", "1")
	h.SetSysctl("ipv6/conf/all/forwarding", "1")
	h.Outside.PassXDP(wire)
	for i, list := range tags {
		device := addVLANs(t, h.Namespace, uplink, list)
		peer := addVLANs(t, h.Outside, wire, list)
		for _, family := range families {
			h.AddAddr(device, w.prefix(i, family, 1))
			h.Outside.AddAddr(peer, w.prefix(i, family, 2))
			h.Outside.AddAddr(peer, w.prefix(i, family, 3))
		}
		w.devices = append(w.devices, device)
	}
	return w
}

var families = []byte{4, 6}

// prefix returns the address of a machine in a network, with the network's length.
func (w *wires) prefix(network int, family, machine byte) string {
	if family == 4 {
		return fmt.Sprintf("10.7.%d.%d/24", network, machine)
	}
	return fmt.Sprintf("fd07:0:0:%d::%d/64", network, machine)
}

func (w *wires) addr(network int, family, machine byte) netip.Addr {
	return netip.MustParsePrefix(w.prefix(network, family, machine)).Addr()
}

// addVLANs makes devices of VLANs, each on the one before, and returns the name of the
// last. The test is skipped where the kernel has no VLANs.
func addVLANs(t *testing.T, n *lab.Namespace, parent string, list []netlink.Vlan) string {
	t.Helper()
	for _, vlan := range list {
		err := n.Run(func() error {
			l, err := netlink.LinkByName(parent)
			if err != nil {
				return err
			}
			vlan.LinkAttrs = netlink.NewLinkAttrs()
			vlan.ParentIndex, vlan.Name = l.Attrs().Index, fmt.Sprintf("%s.%d", parent, vlan.VlanId)
			if err := netlink.LinkAdd(&vlan); err != nil {
				return err
			}
			return netlink.LinkSetUp(&vlan)
		})
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("the kernel has no VLAN devices: they need the module 8021q")
		}
		if err != nil {
			t.Fatalf("add VLAN %d to %s: %v", vlan.VlanId, parent, err)
		}
		parent = vlan.Name
	}
	return parent
}

// serve starts the backends, and an agent with a Service for each.
func (w *wires) serve(t *testing.T, options lab.AgentOptions) *lab.Agent {
	t.Helper()
	for i := range w.devices {
		for _, family := range families {
			at := netip.AddrPortFrom(w.addr(i, family, 3), 8080)
			w.Outside.ServeTCP(at)
			w.Outside.ServeUDP(at)
		}
	}
	return w.start(options)
}

// start starts an agent with a Service for each network, whose backend is there.
func (w *wires) start(options lab.AgentOptions) *lab.Agent {
	a := w.Serve(options)
	var manifests []string
	for i := range w.devices {
		name := fmt.Sprintf("web%d", i)
		manifests = append(manifests, lab.Service(name, fmt.Sprintf(`{clusterIPs: ["10.96.0.%d", "fd96::%d"], ports: [{name: t, port: 80}, {name: u, port: 80, protocol: UDP}]}`, i+1, i+1)),
			lab.Slice(name, "t:8080/TCP,u:8080/UDP", w.addr(i, 4, 3)), lab.Slice(name, "t:8080/TCP,u:8080/UDP", w.addr(i, 6, 3)))
	}
	a.Apply(manifests...)
	return a
}

// checkAll reaches each Service from each network, over all protocols. Each time XDP
// has to send packets in both directions, or none at all.
func (w *wires) checkAll(t *testing.T, a *lab.Agent, byXDP bool) {
	t.Helper()
	for from := range w.devices {
		for _, family := range families {
			for to := range w.devices {
				service := netip.MustParsePrefix(fmt.Sprintf("10.96.0.%d/32", to+1))
				if family == 6 {
					service = netip.MustParsePrefix(fmt.Sprintf("fd96::%d/128", to+1))
				}
				w.route(t, service, w.addr(from, family, 1))
				for _, network := range []string{"tcp", "udp"} {
					w.check(t, a, fmt.Sprintf("%s%d", network, family), netip.AddrPortFrom(service.Addr(), 80),
						netip.AddrPortFrom(w.addr(to, family, 3), 8080), byXDP)
				}
			}
		}
	}
}

// route makes the machine outside reach a Service by the host's address in a network.
func (w *wires) route(t *testing.T, to netip.Prefix, gateway netip.Addr) {
	t.Helper()
	dst, err := netlink.ParseIPNet(to.String())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Outside.Run(func() error { return netlink.RouteReplace(&netlink.Route{Dst: dst, Gw: gateway.AsSlice()}) }); err != nil {
		t.Fatal(err)
	}
}

// check reaches a Service and looks whether XDP has sent packets. The first ones make the
// neighbours known, which XDP waits for.
func (w *wires) check(t *testing.T, a *lab.Agent, network string, to, want netip.AddrPort, byXDP bool) {
	t.Helper()
	ask := func() uint64 {
		before := sentByXDP(t, a)
		got, err := w.ask(network, to)
		if err != nil || got != want.String() {
			t.Errorf("%s to %s: reached %v, want %v: %v", network, to, got, want, err)
		}
		return sentByXDP(t, a) - before
	}
	if !byXDP {
		if sent := ask(); sent > 0 {
			t.Errorf("%s to %s: XDP has sent %d packets", network, to, sent)
		}
		return
	}
	lab.Eventually(t, fmt.Sprintf("XDP serves %s to %s in both directions", network, to), func() bool { return ask() >= 2 || t.Failed() })
}

// ask returns which server answers. Over UDP it sends more than [lab.Namespace.Reach]
// does: XDP leaves alone what is shorter than a header of TCP.
func (w *wires) ask(network string, to netip.AddrPort) (string, error) {
	if strings.HasPrefix(network, "tcp") {
		got, err := w.Outside.Reach(network, to)
		return got.String(), err
	}
	s := w.Outside.Socket(network)
	defer s.Close()
	if err := s.Connect(to); err != nil {
		return "", err
	}
	if err := s.Send("who is it that answers?"); err != nil {
		return "", err
	}
	answer, _, err := s.Receive()
	return answer, err
}

// sentByXDP returns how many packets XDP has sent.
func sentByXDP(t *testing.T, a *lab.Agent) uint64 {
	t.Helper()
	reasons, err := statusmap.New(a.Maps()).Reasons()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range reasons {
		if r.Name == "xdp_sent" {
			return r.Count
		}
	}
	t.Fatal("no counter xdp_sent")
	return 0
}

// tag is a VLAN; stag one of a provider.
func tag(id int) netlink.Vlan {
	return netlink.Vlan{VlanId: id, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
}

func stag(id int) netlink.Vlan {
	return netlink.Vlan{VlanId: id, VlanProtocol: netlink.VLAN_PROTOCOL_8021AD}
}

// TestVLANs: clients in an untagged network, in a VLAN and in a stacked VLAN (802.1ad) reach backends
// in each of them through the node, by XDP and by tc.
func TestVLANs(t *testing.T) {
	tier.SameInEveryKernel(t)
	vlans := [][]netlink.Vlan{{tag(5)}, {stag(100), tag(7)}}
	all := slices.Insert(slices.Clone(vlans), 0, nil)
	for _, c := range []struct {
		name     string
		mode     datapath.XDPMode
		networks [][]netlink.Vlan
		offload  bool // tags come off before
	}{
		{"XDP", datapath.XDPNative, all, false},
		{"XDP, the device below is not served", datapath.XDPNative, vlans, false},
		{"generic XDP, tags come off before", datapath.XDPGeneric, vlans, true},
		{"tc", datapath.XDPOff, all, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := lab.NewHost(t)
			w := newWires(t, lab.Uplink, h, c.networks...)
			h.SetFeatures(c.offload, lab.Uplink, lab.VLANFeatures...)
			h.Outside.SetFeatures(c.offload, wire, lab.VLANFeatures...)
			a := w.serve(t, lab.AgentOptions{Devices: w.devices, XDP: c.mode})
			w.checkAll(t, a, c.mode != datapath.XDPOff)
		})
	}
}

// TestVLANsWithOffload: tc serves a device that strips VLAN tags (rxvlan).
func TestVLANsWithOffload(t *testing.T) {
	h := lab.NewHost(t)
	w := newWires(t, lab.Uplink, h, nil, []netlink.Vlan{tag(5)})
	a := w.serve(t, lab.AgentOptions{Devices: w.devices, XDP: datapath.XDPNative})
	w.checkAll(t, a, false)
	for _, d := range w.served(t) {
		if d.XDP != datapath.XDPOff || !strings.Contains(d.NoXDP, "ethtool -K uplink rxvlan off") {
			t.Errorf("%s is served by XDP %s: %q", d.Name, d.XDP, d.NoXDP)
		}
	}
}

// served returns the devices that the host serves.
func (w *wires) served(t *testing.T) (list []datapath.Device) {
	t.Helper()
	w.read(t, func(maps *bpfmap.Maps) (err error) {
		list, err = datapath.Devices(w.BPFFS, maps)
		return err
	})
	return list
}

// read calls fn with the maps on the host.
func (w *wires) read(t *testing.T, fn func(*bpfmap.Maps) error) {
	t.Helper()
	maps, err := bpfmap.Open(datapath.Dir(w.BPFFS))
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	if err := w.Run(func() error { return fn(maps) }); err != nil {
		t.Fatal(err)
	}
}

// TestBond: packets of a bond's ports are served, tagged and untagged; by generic XDP unless the bond
// has VLANs.
func TestBond(t *testing.T) {
	for mode, networks := range map[datapath.XDPMode][][]netlink.Vlan{
		datapath.XDPNative: {nil, {tag(5)}}, datapath.XDPGeneric: {nil},
	} {
		t.Run(string(mode), func(t *testing.T) {
			h := lab.NewHost(t)
			addBond(t, h.Namespace, "bond", lab.Uplink)
			w := newWires(t, "bond", h, networks...)
			h.SetFeatures(false, lab.Uplink, lab.VLANFeatures...)
			h.Outside.SetFeatures(false, wire, lab.VLANFeatures...)
			// The port is no device of its own.
			a := w.serve(t, lab.AgentOptions{Devices: append(w.devices, lab.Uplink), XDP: mode})
			w.checkAll(t, a, true)
			for _, d := range w.served(t) {
				if d.Name == lab.Uplink || d.XDP != mode || d.NoXDP != "" {
					t.Errorf("%s is served by XDP %s: %q", d.Name, d.XDP, d.NoXDP)
				}
			}
		})
	}
}

// addBond makes a bond of one port. The test is skipped where the kernel has no bonds.
func addBond(t *testing.T, n *lab.Namespace, name, port string) {
	t.Helper()
	err := n.Run(func() error {
		bond := netlink.NewLinkBond(netlink.NewLinkAttrs())
		bond.Name, bond.Mode, bond.Miimon = name, netlink.BOND_MODE_ACTIVE_BACKUP, 10
		if err := netlink.LinkAdd(bond); err != nil {
			return err
		}
		l, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetMaster(l, bond), netlink.LinkSetUp(l), netlink.LinkSetUp(bond))
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("the kernel has no bonds: they need the module bonding")
	}
	if err != nil {
		t.Fatalf("make a bond: %v", err)
	}
}
