package main

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tunnelName is a node's VXLAN device.
const tunnelName = "vxlan0"

// tunnelPort is VXLAN's own (RFC 7348).
const tunnelPort = 4789

// tunnelOverhead is what outer IPv4, UDP, VXLAN and inner Ethernet headers take.
const tunnelOverhead = 50

// tunnelMAC is the address of the i-th node's tunnel device.
func tunnelMAC(i int) net.HardwareAddr { return net.HardwareAddr{0x02, 0x18, 0, 0, 0, byte(i)} }

// setUpTunnel sends packets to the pods of the other nodes through a tunnel, as an
// overlay network does: each peer has a neighbour and a forwarding entry.
func setUpTunnel(i, nodes int) error {
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	tunnel := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{
			Name:         tunnelName,
			MTU:          eth0.Attrs().MTU - tunnelOverhead,
			HardwareAddr: tunnelMAC(i),
		},
		VxlanId:      1,
		VtepDevIndex: eth0.Attrs().Index,
		SrcAddr:      nodeAddrs(i)[0].Addr().AsSlice(),
		Port:         tunnelPort,
	}
	if err := netlink.LinkAdd(tunnel); err != nil {
		return fmt.Errorf("make a tunnel: %w", err)
	}
	if err := netlink.LinkSetUp(tunnel); err != nil {
		return err
	}
	// The first address of the node's pod range is the tunnel's own.
	for _, pods := range podRanges(i) {
		own := pods.Masked().Addr()
		err = errors.Join(err, netlink.AddrAdd(tunnel, &netlink.Addr{
			IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(own.BitLen(), own.BitLen())},
			Flags: unix.IFA_F_NODAD,
		}))
	}
	for peer := 1; peer <= nodes; peer++ {
		if peer != i {
			err = errors.Join(err, tunnelTo(tunnel.Attrs().Index, peer))
		}
	}
	return err
}

// tunnelTo makes the routes to a peer's pods through the tunnel.
func tunnelTo(index, peer int) error {
	forward := netlink.Neigh{
		LinkIndex: index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
		IP: nodeAddrs(peer)[0].Addr().AsSlice(), HardwareAddr: tunnelMAC(peer),
	}
	if err := netlink.NeighAppend(&forward); err != nil {
		return fmt.Errorf("forward to node %d: %w", peer, err)
	}
	for _, pods := range podRanges(peer) {
		gateway := pods.Masked().Addr()
		neighbour := netlink.Neigh{
			LinkIndex: index, State: netlink.NUD_PERMANENT,
			IP: gateway.AsSlice(), HardwareAddr: tunnelMAC(peer),
		}
		if err := netlink.NeighSet(&neighbour); err != nil {
			return fmt.Errorf("neighbour %s: %w", gateway, err)
		}
		err := addRoute(netlink.Route{
			LinkIndex: index, Dst: ipNet(pods), Gw: gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
		})
		if err != nil {
			return err
		}
	}
	return nil
}
