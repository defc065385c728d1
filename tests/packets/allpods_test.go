package packets_test

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/beeline-lb/beeline/tests/tier"
)

// podLink is a device of node 1 to which the routes to pods of both nodes lead, by its own address.
const podLink = "podlink"

var podLinkAddrs = parseAddrs("10.244.1.254", "fd44:0:0:1::fe")

// TestAllPodsDevice: where the routes to pods of this node and of others lead to one device, at
// which a program sends packets on, endpoints on both nodes answer. Those on this node see the
// client, and answer it past that device, as they do with Cilium. With DSR so do those to which
// another node sends the packets.
func TestAllPodsDevice(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		serve func(*cluster, *testing.T, []string)
		// whom an endpoint on this node and one on the other node see
		here, there addrs
	}{
		"client": {
			func(c *cluster, t *testing.T, manifests []string) { c.serve(t, manifests) },
			clientAddrs, podLinkAddrs,
		},
		"masquerade": {
			func(c *cluster, t *testing.T, manifests []string) { c.serve(t, manifests, "--masquerade-all") },
			podLinkAddrs, podLinkAddrs,
		},
		"DSR": {
			func(c *cluster, t *testing.T, manifests []string) { c.serveDSR(t, manifests) },
			clientAddrs, clientAddrs,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tier.Variant(t, name != "masquerade")
			c := newCluster(t, false)
			c.leadToAllPods(t)
			manifests := append(c.service(1, "near", "", []endpoint{local}), c.service(2, "far", "", []endpoint{remote})...)
			manifests = append(manifests, c.service(3, "here", "externalTrafficPolicy: Local,", []endpoint{local, remote})...)
			tc.serve(c, t, manifests)
			c.podOf(local).Populate()
			for family, pod := range c.addrsOf(local) {
				said := beeline(t, c.nodes[0], "explain", "--from", pod.String(), netip.AddrPortFrom(clusterIP(1)[family], 80).String())
				if !strings.Contains(said, "a process of a pod of this node") || !strings.Contains(said, "socket: connect()") {
					t.Errorf("of a pod of this node is said:\n%s", said)
				}
			}
			for _, network := range networks {
				for i, want := range []greeting{
					{local.server(), netip.AddrPortFrom(tc.here.of(network), 0)},
					{remote.server(), netip.AddrPortFrom(tc.there.of(network), 0)},
					{local.server(), netip.AddrPortFrom(clientAddrs.of(network), 0)},
				} {
					c.wantGreeting(t, network, nodePort(network, i+1), want)
				}
				if c.direct {
					byOther := netip.AddrPortFrom(nodeAddrs(2).of(network), nodePort(network, 1).Port())
					c.wantGreeting(t, network, byOther, greeting{local.server(), netip.AddrPortFrom(clientAddrs.of(network), 0)})
				}
			}
		})
	}
}

// wantGreeting fails the test unless that endpoint answers the client, whose address it sees so.
func (c *cluster) wantGreeting(t *testing.T, network string, to netip.AddrPort, want greeting) {
	t.Helper()
	got, err := ask(c.client, network, to, "x")
	if err != nil || got.name != want.name || got.client.Addr() != want.client.Addr() {
		t.Errorf("%s to %s: %v, %v, want %s to see %s", network, to, got, err, want.name, want.client.Addr())
	}
}

// leadToAllPods has node 1 reach the routed pods of both nodes by one device.
func (c *cluster) leadToAllPods(t *testing.T) {
	t.Helper()
	n := c.nodes[0]
	n.SetSysctl("ipv4/conf/all/rp_filter", "0") // what a pod sends comes by another device
	n.AddLink(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: podLink}, PeerName: "podlink-peer"})
	for _, a := range podLinkAddrs {
		n.AddAddr(podLink, netip.PrefixFrom(a, a.BitLen()).String())
	}
	n.AddRoute(netip.PrefixFrom(podLinkAddrs[0], 32), netip.Addr{}, podLink)
	here, there := c.macOf(t, n.routed, "eth0"), c.macOf(t, c.nodes[1].Namespace, uplink)
	err := n.Run(func() error {
		var links [4]netlink.Link
		for i, name := range []string{podLink, "podlink-peer", "vethrouted", uplink} {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			links[i] = link
		}
		at, peer, pod, out := links[0], links[1], links[2].Attrs().Index, links[3].Attrs().Index
		return errors.Join(
			netlink.LinkSetARPOff(at), netlink.LinkSetUp(peer),
			sendOn(at.Attrs().Index, sender(hop{here, pod}, hop{there, out})),
			movePods(n, at.Attrs().Index, pod))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// movePods moves the routes of node 1 to the routed pods of both nodes to a device, from that of
// its own pod. The kernel takes the device's address for a gateway of IPv4 alone.
func movePods(node1 *node, to, from int) error {
	var errs []error
	for family, gateway := range []net.IP{podLinkAddrs[0].AsSlice(), nil} {
		own := node1.routedAddrs()[family]
		errs = append(errs, netlink.RouteDel(&netlink.Route{LinkIndex: from, Dst: prefixNet(netip.PrefixFrom(own, own.BitLen())), Scope: netlink.SCOPE_NOWHERE}))
		for i := 1; i <= 2; i++ {
			errs = append(errs, netlink.RouteReplace(&netlink.Route{LinkIndex: to, Dst: prefixNet(podRangesOf(i)[family]), Gw: gateway}))
		}
	}
	return errors.Join(errs...)
}

// hop is where a frame is sent on: the next MAC address, and the device.
type hop struct {
	mac     net.HardwareAddr
	ifindex int
}

// sender returns a program that sends packets to pods of node 1 by one hop, all others by another
// one. The number of the node is in the third byte of the address, of IPv6 in the eighth.
func sender(here, there hop) asm.Instructions {
	const ethertype = 16 // of __sk_buff.protocol
	program := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R7, asm.R6, ethertype, asm.Word),
		asm.Mov.Imm(asm.R2, 14+16+2),
		asm.JEq.Imm(asm.R7, int32(binary.NativeEndian.Uint16([]byte{0x08, 0x00})), "load"),
		asm.Mov.Imm(asm.R2, 14+24+7),
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("load"),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, -8),
		asm.Mov.Imm(asm.R4, 1),
		asm.FnSkbLoadBytes.Call(),
		asm.LoadMem(asm.R8, asm.RFP, -8, asm.Byte),
		asm.JEq.Imm(asm.R8, 1, "here"),
	}
	program = append(program, there.instructions()...)
	own := here.instructions()
	own[0] = own[0].WithSymbol("here")
	return append(program, own...)
}

func (h hop) instructions() asm.Instructions {
	instructions := asm.Instructions{asm.Mov.Reg(asm.R1, asm.R6)}
	for i, b := range h.mac {
		instructions = append(instructions, asm.StoreImm(asm.RFP, int16(i-8), int64(b), asm.Byte))
	}
	return append(instructions,
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, -8),
		asm.Mov.Imm(asm.R4, int32(len(h.mac))),
		asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(),
		asm.Mov.Imm(asm.R1, int32(h.ifindex)),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
	)
}

// sendOn attaches a program to a device's egress, by clsact, which older kernels have, too.
func sendOn(ifindex int, instructions asm.Instructions) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: instructions, License: "GPL"})
	if err != nil {
		return err
	}
	defer program.Close()
	qdisc := netlink.QdiscAttrs{LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
	return errors.Join(
		netlink.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: qdisc, QdiscType: "clsact"}),
		netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs:  netlink.FilterAttrs{LinkIndex: ifindex, Parent: netlink.HANDLE_MIN_EGRESS, Priority: 50, Protocol: unix.ETH_P_ALL},
			Fd:           program.FD(),
			DirectAction: true,
		}))
}
