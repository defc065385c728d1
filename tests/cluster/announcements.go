package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// announcements are the MAC addresses that were told, by ARP or NDP, for IPs of the nodes'
// network.
type announcements struct {
	mu    sync.Mutex
	heard map[netip.Addr][]string
}

// hearAnnouncements listens at the router until ctx ends.
func hearAnnouncements(ctx context.Context) (*announcements, error) {
	bridge, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return nil, err
	}
	all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return nil, fmt.Errorf("listen to ARP and NDP: %w", err)
	}
	err = errors.Join(
		unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: all, Ifindex: bridge.Attrs().Index}),
		unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}))
	if err != nil {
		return nil, errors.Join(err, unix.Close(socket))
	}
	a := &announcements{heard: make(map[netip.Addr][]string)}
	go a.listen(ctx, socket)
	return a, nil
}

func (a *announcements) listen(ctx context.Context, socket int) {
	defer unix.Close(socket)
	frame := make([]byte, 128)
	for ctx.Err() == nil {
		n, _, err := unix.Recvfrom(socket, frame, 0)
		if err != nil {
			continue // nothing was sent for a second
		}
		if ip, mac := announced(frame[:n]); ip.IsValid() {
			a.add(ip, mac.String())
		}
	}
}

func (a *announcements) add(ip netip.Addr, mac string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(a.heard[ip], mac) {
		a.heard[ip] = append(a.heard[ip], mac)
	}
}

// since returns the MAC addresses that were told for an IP since the last call.
func (a *announcements) since(ip netip.Addr) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	macs := a.heard[ip]
	delete(a.heard, ip)
	return macs
}

// Offsets in an Ethernet frame: of ARP's sender, and of a neighbor advertisement (RFC 4861,
// section 4.4) without extension headers.
const (
	offsetEtherType = 12
	offsetARPMAC    = 22
	offsetARPIP     = 28
	lengthARP       = 42
	offsetIPv6Next  = 20
	offsetNDPType   = 54
	offsetNDPTarget = 62
	offsetNDPOption = 78
	lengthNDP       = 86
	typeAdvertised  = 136
	optionTargetMAC = 2
)

// announced returns the IP and MAC address that a frame tells, if it is of ARP or a neighbor
// advertisement.
func announced(frame []byte) (ip netip.Addr, mac net.HardwareAddr) {
	if len(frame) < lengthARP {
		return ip, nil
	}
	switch binary.BigEndian.Uint16(frame[offsetEtherType:]) {
	case unix.ETH_P_ARP:
		ip, _ = netip.AddrFromSlice(frame[offsetARPIP : offsetARPIP+4])
		mac = frame[offsetARPMAC : offsetARPMAC+6]
	case unix.ETH_P_IPV6:
		if len(frame) < lengthNDP || frame[offsetIPv6Next] != unix.IPPROTO_ICMPV6 ||
			frame[offsetNDPType] != typeAdvertised || frame[offsetNDPOption] != optionTargetMAC {
			return ip, nil
		}
		ip, _ = netip.AddrFromSlice(frame[offsetNDPTarget : offsetNDPTarget+16])
		mac = frame[offsetNDPOption+2 : offsetNDPOption+8]
	}
	return ip, bytes.Clone(mac)
}

// forgetNeighbor has the router ask for the MAC address of an IP again.
func forgetNeighbor(ip netip.Addr) error {
	bridge, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return err
	}
	err = netlink.NeighDel(&netlink.Neigh{LinkIndex: bridge.Attrs().Index, IP: ip.AsSlice()})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// neighborNode returns the node whose MAC address the router has for an IP, or 0.
func (c *cluster) neighborNode(ip netip.Addr) (int, error) {
	bridge, err := netlink.LinkByName(bridgeName)
	if err != nil {
		return 0, err
	}
	family := netlink.FAMILY_V4
	if ip.Is6() {
		family = netlink.FAMILY_V6
	}
	neighbors, err := netlink.NeighList(bridge.Attrs().Index, family)
	if err != nil {
		return 0, err
	}
	for _, n := range neighbors {
		if n.IP.Equal(ip.AsSlice()) {
			return c.nodeOf(n.HardwareAddr.String()), nil
		}
	}
	return 0, nil
}

// nodeOf returns the node with a MAC address on the fabric, or 0.
func (c *cluster) nodeOf(mac string) int {
	for i := 1; i <= c.Nodes; i++ {
		if fabricMAC(i).String() == mac {
			return i
		}
	}
	return 0
}
